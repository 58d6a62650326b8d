"""Thread-block clusters (sm_90): may the GPU start one of this size? More than 8 blocks must be allowed first.

The size itself is compiled in (`__cluster_dims__`). CuPy can neither allow the larger ones nor ask whether a cluster
finds its SMs side by side, so this goes to the driver, through NVIDIA's own bindings.
"""

from __future__ import annotations

from typing import Any

from tuner.backends.overlap import LaunchError, driver
from tuner.types import Launch

PORTABLE_BLOCKS = 8
"""What every GPU with clusters can start."""


def admit_cluster(function: int, launch: Launch) -> int:
    """Allow `function` (a CUfunction) its cluster, and count how many of them the GPU holds at once.

    Raises:
        LaunchError: the driver refuses the size.
        UserError: NVIDIA's bindings are not installed.
    """
    api = driver()
    handle = api.CUfunction(function)
    if launch.cluster > PORTABLE_BLOCKS:
        allowed = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _must(api, api.cuFuncSetAttribute(handle, allowed, 1))
    size = api.CUlaunchAttribute()
    size.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = launch.cluster, 1, 1
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    config.attrs = [size]
    config.numAttrs = 1
    return int(_must(api, api.cuOccupancyMaxActiveClusters(handle, config)))


def _must(api: Any, answer: tuple[Any, ...]) -> Any:
    """What the driver answered, where it did not refuse."""
    status, *found = answer
    if status != api.CUresult.CUDA_SUCCESS:
        raise LaunchError(status.name)
    return found[0] if found else None
