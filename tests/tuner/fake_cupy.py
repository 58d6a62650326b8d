"""As much of CuPy as the engine uses, over NumPy and with a clock of its own: its logic is tested without a GPU.

What CuPy itself does is tested on a GPU (test_cuda_gpu.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest


class CUDADriverError(RuntimeError): ...


class CUDARuntimeError(RuntimeError): ...


class OutOfMemoryError(MemoryError): ...


class Gpu:
    """The fake device: what launches do, what they cost, and what goes wrong."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.launch_us = 2.0
        self.launches: list[tuple[Any, ...]] = []
        self.compute: Callable[..., None] = lambda *_: None
        self.load_error = ""
        self.launch_error = ""
        self.sync_error = ""
        self.blocks_per_sm = 4
        self.free_bytes = 1 << 34
        self.opted_in: int | None = None
        self._captured: list[Callable[[], None]] | None = None

    def install(self, patch: pytest.MonkeyPatch) -> Gpu:
        gpu = self
        stream = _Stream(self)

        class RawKernel:
            kernel = SimpleNamespace(ptr=1)

            @property
            def max_dynamic_shared_size_bytes(self) -> int:
                return gpu.opted_in or 0

            @max_dynamic_shared_size_bytes.setter
            def max_dynamic_shared_size_bytes(self, value: int) -> None:
                gpu.opted_in = value

            def __call__(self, grid: Any, block: Any, values: tuple[Any, ...], shared_mem: int = 0) -> None:
                if gpu.launch_error:
                    raise CUDADriverError(gpu.launch_error)
                gpu.do(lambda: gpu.run(values))

        class RawModule:
            def __init__(self, *, path: str, enable_cooperative_groups: bool) -> None:
                if gpu.load_error:
                    raise CUDADriverError(gpu.load_error)

            def get_function(self, name: str) -> RawKernel:
                return RawKernel()

        class Event:
            at = 0.0

            def record(self, _: Any) -> None:
                self.at = gpu.now_us

            def synchronize(self) -> None: ...

        cupy = ModuleType("cupy")
        cuda = ModuleType("cupy.cuda")
        values: dict[str, Any] = {
            "ndarray": np.ndarray,
            "uint8": np.uint8,
            "float16": np.float16,
            "float32": np.float32,
            "full": np.full,
            "concatenate": np.concatenate,
            "RawModule": RawModule,
            "random": SimpleNamespace(Generator=np.random.Generator, Philox4x3210=np.random.Philox),
            "cuda": cuda,
        }
        parts: dict[str, Any] = {
            "Device": lambda _: SimpleNamespace(use=lambda: None),
            "device": SimpleNamespace(get_cublas_handle=lambda: 7),
            "memory": SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            "driver": SimpleNamespace(
                CUDADriverError=CUDADriverError,
                occupancyMaxActiveBlocksPerMultiprocessor=lambda *_: gpu.blocks_per_sm,
            ),
            "runtime": SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError, memGetInfo=lambda: (gpu.free_bytes, gpu.free_bytes)
            ),
            "get_current_stream": lambda: stream,
            "Stream": lambda **_: stream,
            "Event": Event,
            "get_elapsed_time": lambda start, stop: (stop.at - start.at) * 1e-3,
        }

        for name, value in values.items():
            setattr(cupy, name, value)
        for name, value in parts.items():
            setattr(cuda, name, value)
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(sys.modules, "cupy.cuda", cuda)
        return self

    def run(self, values: tuple[Any, ...]) -> None:
        self.launches.append(values)
        self.now_us += self.launch_us
        self.compute(*values)

    def do(self, action: Callable[[], None]) -> None:
        if self._captured is not None:
            self._captured.append(action)
        else:
            action()


class _Stream:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def synchronize(self) -> None:
        if self._gpu.sync_error and self._gpu.launches:
            raise CUDARuntimeError(self._gpu.sync_error)

    def begin_capture(self) -> None:
        self._gpu._captured = []

    def end_capture(self) -> Any:
        captured, self._gpu._captured = self._gpu._captured or [], None

        def launch(_: Any) -> None:
            for action in captured:
                action()

        return SimpleNamespace(launch=launch)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...
