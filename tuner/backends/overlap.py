"""Programmatic dependent launch: a kernel may start while the kernel before it in the stream is still finishing.

CuPy cannot ask for it, so this goes to the driver, through NVIDIA's own bindings. Captured into a CUDA graph it becomes
a programmatic edge. Needs sm_90; the kernel must wait by itself before it touches what the kernel before it writes.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from tuner.errors import UserError
from tuner.types import Launch


class LaunchError(RuntimeError):
    """The driver refused a launch; the message is its name for the error."""


_C_TYPES = {
    "f4": ctypes.c_float,
    "f8": ctypes.c_double,
    "i4": ctypes.c_int32,
    "u4": ctypes.c_uint32,
    "i8": ctypes.c_int64,
}


def launch_overlapping(function: int, launch: Launch, values: tuple[Any, ...]) -> None:
    """Enqueue `function` (a CUfunction) on CuPy's current stream. `values` are CuPy arrays and NumPy scalars.

    Raises:
        LaunchError: the driver refuses it.
        UserError: NVIDIA's bindings are not installed.
    """
    import cupy

    api = driver()
    arguments = [_argument(value) for value in values]
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    config.hStream = api.CUstream(cupy.cuda.get_current_stream().ptr)
    config.attrs = [_attribute()]
    config.numAttrs = 1
    (status,) = api.cuLaunchKernelEx(config, api.CUfunction(function), ctypes.addressof(pointers), 0)
    if status != api.CUresult.CUDA_SUCCESS:
        raise LaunchError(status.name)


def _argument(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _C_TYPES[value.dtype.str[1:]](value.item())
    return ctypes.c_void_p(value.data.ptr)


@functools.cache
def driver() -> Any:
    """NVIDIA's bindings of the driver.

    Raises:
        UserError: they are not installed.
    """
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise UserError(
            "NVIDIA's CUDA bindings were not found; install them with: pip install cuda-bindings."
        ) from error
    return bindings


@functools.cache
def _attribute() -> Any:
    api = driver()
    attribute = api.CUlaunchAttribute()
    attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute
