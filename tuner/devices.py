"""The GPUs that are known by their datasheets, and the one that is there.

Peaks are the vendor's public figures: memory bandwidth, and dense fp16 tensor-core rate with fp32 accumulation at the
boost clock (SMs x clock x FLOPs per SM and clock). The bandwidth of L2 is on no datasheet: it is reckoned as 20 bytes
per SM and clock, what a plain stream out of L2 draws on a T4 (1270 GB/s, Jia et al. 2019) and on an H200 (4.85 TB/s,
measured). Limits per block and per SM are
those of the CUDA programming guide's table of compute capabilities.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.types import Device, Environment

_KB = 1 << 10
_MB = 1 << 20
_GB = 1 << 30

_L2_BYTES_PER_CLOCK = 20
"""Per SM."""

_LAUNCH_US = 1.0
"""Gap between dependent kernels of one CUDA graph, about; what it is on a GPU at hand shows in the measurements."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Architecture:
    """Limits that all GPUs of a compute capability share. Shared memory in KB."""

    shared_per_block: int
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    flops_per_clock: int
    """Dense fp16 with fp32 sums, per SM."""


_ARCHITECTURES = {
    "sm_70": _Architecture(96, 96, 2048, 32, 1024),
    "sm_75": _Architecture(64, 64, 1024, 16, 1024),
    "sm_80": _Architecture(163, 164, 2048, 32, 2048),
    "sm_86": _Architecture(99, 100, 1536, 16, 512),
    "sm_89": _Architecture(99, 100, 1536, 24, 512),
    "sm_90": _Architecture(227, 228, 2048, 32, 4096),
    "sm_100": _Architecture(227, 228, 2048, 32, 8192),
    "sm_120": _Architecture(99, 100, 1536, 24, 512),
}


def _datasheet(
    name: str, arch: str, sms: int, ghz: float, memory_gb: float, gb_per_s: float, l2_mb: float, tflops: float
) -> Device:
    limits = _ARCHITECTURES[arch]
    return Device(
        name=name,
        arch=arch,
        sm_count=sms,
        shared_per_block=limits.shared_per_block * _KB,
        shared_per_sm=limits.shared_per_sm * _KB,
        registers_per_sm=65536,
        threads_per_sm=limits.threads_per_sm,
        blocks_per_sm=limits.blocks_per_sm,
        l2_bytes=int(l2_mb * _MB),
        memory_bytes=int(memory_gb * _GB),
        memory_bandwidth=gb_per_s * 1e9,
        l2_bandwidth=max(sms * ghz * 1e9 * _L2_BYTES_PER_CLOCK, gb_per_s * 1e9),
        tensor_flops=tflops * 1e12,
        clock_hz=ghz * 1e9,
        launch_us=_LAUNCH_US,
    )


_DATASHEETS = (
    _datasheet("Tesla V100-SXM2-16GB", "sm_70", 80, 1.53, 16, 900, 6, 125),
    _datasheet("Tesla T4", "sm_75", 40, 1.59, 16, 320, 4, 65),
    _datasheet("NVIDIA GeForce RTX 2080 Ti", "sm_75", 68, 1.545, 11, 616, 5.5, 53.8),
    _datasheet("NVIDIA TITAN RTX", "sm_75", 72, 1.77, 24, 672, 6, 130.5),
    _datasheet("NVIDIA A100-SXM4-40GB", "sm_80", 108, 1.41, 40, 1555, 40, 312),
    _datasheet("NVIDIA A100-SXM4-80GB", "sm_80", 108, 1.41, 80, 2039, 40, 312),
    _datasheet("NVIDIA A10", "sm_86", 72, 1.695, 24, 600, 6, 125),
    _datasheet("NVIDIA GeForce RTX 3090", "sm_86", 82, 1.695, 24, 936, 6, 71),
    _datasheet("NVIDIA L4", "sm_89", 58, 2.04, 24, 300, 48, 121),
    _datasheet("NVIDIA L40S", "sm_89", 142, 2.52, 48, 864, 96, 362),
    _datasheet("NVIDIA GeForce RTX 4090", "sm_89", 128, 2.52, 24, 1008, 72, 165.2),
    _datasheet("NVIDIA H100 80GB HBM3", "sm_90", 132, 1.83, 80, 3352, 50, 989.4),
    _datasheet("NVIDIA H100 PCIe", "sm_90", 114, 1.755, 80, 2039, 50, 756),
    _datasheet("NVIDIA H200", "sm_90", 132, 1.83, 141, 4800, 60, 989.4),
    _datasheet("NVIDIA B200", "sm_100", 148, 1.85, 180, 8000, 126, 2250),
    _datasheet("NVIDIA GeForce RTX 5090", "sm_120", 170, 2.407, 32, 1792, 96, 209.5),
)

KNOWN: dict[str, Device] = {device.name: device for device in _DATASHEETS}
"""By the name that the driver reports."""


def find(name: str) -> Device:
    """The known GPU that `name` means: its full name, or words of it in any case (`t4`, `rtx4090`, `a100 80gb`).

    Where several fit, the first of the catalogue is meant.

    Raises:
        UserError: none fits; the message lists them.
    """
    wanted = _squeeze(name)
    for device in KNOWN.values():
        if _squeeze(device.name) == wanted:
            return device
    words = [_squeeze(word) for word in re.split(r"[^0-9A-Za-z]+", name) if word]
    # A word is meant as a whole model name first: "a10" is the A10, though "a100" contains it.
    fits = [device for device in KNOWN.values() if words and all(word in _words(device) for word in words)]
    fits = fits or [device for device in KNOWN.values() if wanted and wanted in _squeeze(device.name)]
    if not fits:
        raise UserError(f"No GPU called {name!r} is known; choose one of: {', '.join(KNOWN)}.")
    return fits[0]


def _squeeze(text: str) -> str:
    return re.sub(r"[^0-9a-z]", "", text.lower())


def _words(device: Device) -> set[str]:
    return {_squeeze(word) for word in re.split(r"[^0-9A-Za-z]+", device.name)}


def resolve(spec: str | None) -> Device | None:
    """The GPU that `--device` names: `cuda`, `cuda:N`; None (left out): the first GPU where there is one.

    `cpu` or `none` mean the path without a GPU, and give None.

    Raises:
        UserError: no such GPU here, or `spec` is not understood.
    """
    index = device_index(spec)
    if index is None:
        return None
    count = _count()
    if spec is None and count == 0:
        return None
    if index >= count:
        seen = {0: "no GPU is visible", 1: "only cuda:0 is there"}.get(count, f"cuda:0 to cuda:{count - 1} are there")
        raise UserError(f"There is no device {spec}: {seen}; name one that is, or use --device cpu.")
    return current(index)


def device_index(spec: str | None) -> int | None:
    """The GPU's number in `spec` (`cuda:N`, 0 where it is left out); None for `cpu` and `none`.

    Raises:
        UserError: `spec` is not understood.
    """
    if spec in {"cpu", "none"}:
        return None
    match = re.fullmatch(r"cuda(?::(\d+))?", "cuda" if spec is None else spec)
    if match is None:
        raise UserError(f"--device {spec} is not understood; use cuda, cuda:N, or cpu.")
    return int(match.group(1) or 0)


def current(index: int = 0) -> Device | None:
    """The GPU number `index` as CuPy sees it; None where there is none (or no driver, or no CuPy).

    Limits are read from the driver. Peaks come from the catalogue where the name is in it (a slice of such a GPU, with
    fewer SMs, has its share of them), else from clocks and bus width.
    """
    if index >= _count():
        return None
    from cupy.cuda import runtime

    properties = runtime.getDeviceProperties(index)
    name = properties["name"].decode()
    arch = f"sm_{properties['major']}{properties['minor']}"
    sms = int(properties["multiProcessorCount"])
    peaks = _catalogue_peaks(name, sms) or _computed_peaks(runtime, index, arch, sms)
    return Device(
        name=name,
        arch=arch,
        sm_count=sms,
        shared_per_block=int(properties["sharedMemPerBlockOptin"]),
        shared_per_sm=int(properties["sharedMemPerMultiprocessor"]),
        registers_per_sm=int(properties["regsPerMultiprocessor"]),
        threads_per_sm=int(properties["maxThreadsPerMultiProcessor"]),
        blocks_per_sm=int(runtime.deviceGetAttribute(runtime.cudaDevAttrMaxBlocksPerMultiprocessor, index)),
        l2_bytes=int(properties["l2CacheSize"]),
        memory_bytes=int(properties["totalGlobalMem"]),
        launch_us=_LAUNCH_US,
        **peaks,
    )


def _count() -> int:
    """Number of GPUs that CuPy can use; 0 where CuPy, the driver or the GPU is missing."""
    try:
        from cupy.cuda import runtime
    except ImportError:
        return 0
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return 0


def _catalogue_peaks(name: str, sms: int) -> dict[str, float] | None:
    known = KNOWN.get(name)
    if known is None:
        return None
    share = min(1.0, sms / known.sm_count)
    return {
        "memory_bandwidth": known.memory_bandwidth * share,
        "l2_bandwidth": known.l2_bandwidth * share,
        "tensor_flops": known.tensor_flops * share,
        "clock_hz": known.clock_hz,
    }


def _computed_peaks(runtime: Any, index: int, arch: str, sms: int) -> dict[str, float]:
    """From clocks (the driver gives kHz; memory moves two words a clock) and the bus width in bits."""
    clock = 1e3 * float(runtime.deviceGetAttribute(runtime.cudaDevAttrClockRate, index))
    memory_clock = 1e3 * float(runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryClockRate, index))
    bus_bytes = float(runtime.deviceGetAttribute(runtime.cudaDevAttrGlobalMemoryBusWidth, index)) / 8
    bandwidth = 2 * memory_clock * bus_bytes
    limits = _ARCHITECTURES.get(arch) or _ARCHITECTURES["sm_90"]
    return {
        "memory_bandwidth": bandwidth,
        "l2_bandwidth": max(sms * clock * _L2_BYTES_PER_CLOCK, bandwidth),
        "tensor_flops": sms * clock * limits.flops_per_clock,
        "clock_hz": clock,
    }


def environment() -> Environment:
    """The software at hand. `MNIST_TUNE_HOST` replaces the host's name in what is stored."""
    return Environment(
        host=os.environ.get("MNIST_TUNE_HOST") or platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        driver=_driver(),
        nvrtc=_nvrtc(),
        cupy=_version("cupy-cuda13x") or _version("cupy-cuda12x") or _version("cupy"),
        torch=_version("torch"),
        compiler=_compiler(),
    )


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    """`580.159.04`, from the kernel module; `CUDA 13.0` where that is hidden (WSL); empty without a GPU."""
    module = Path("/sys/module/nvidia/version")
    if module.is_file():
        return module.read_text().strip()
    if _count() == 0:
        return ""
    from cupy.cuda import runtime

    version = runtime.driverGetVersion()
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def _nvrtc() -> str:
    from tuner.compile import nvrtc_version

    try:
        return nvrtc_version()
    except UserError:
        return ""


def _compiler() -> str:
    """First line of `g++ --version`; empty where there is no g++."""
    if shutil.which("g++") is None:
        return ""
    result = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False)
    return result.stdout.splitlines()[0] if result.stdout else ""
