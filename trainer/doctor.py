"""`mnist-tune doctor`: what is here, what is not, and the one command that mends it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer import data
from trainer.download import is_complete
from tuner import compile as compiler
from tuner.cache import cache_dir
from tuner.errors import UserError
from tuner.store import Store
from tuner.store.location import locate
from tuner.types import Failure

PROBE_ARCH = "sm_75"
"""The architecture that the kernels are designed for, so NVRTC must serve it."""

_CHILD_S = 120
"""Longest that a child may take. Importing PyTorch from a cold disk takes tens of seconds."""

_PROBE_KERNEL = """\
#include <mma.h>
extern "C" __global__ void probe(const half* a, const half* b, float* c) {
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> x;
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::row_major> y;
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> z;
    nvcuda::wmma::fill_fragment(z, 0.0f);
    nvcuda::wmma::load_matrix_sync(x, a, 16);
    nvcuda::wmma::load_matrix_sync(y, b, 16);
    nvcuda::wmma::mma_sync(z, x, y, z);
    nvcuda::wmma::store_matrix_sync(c, z, 16, nvcuda::wmma::mem_row_major);
}
"""

# Children: a broken CUDA or PyTorch installation may end the process that imports it.
_GPU_CHILD = """\
import json
from cupy.cuda import runtime
try:
    count = runtime.getDeviceCount()
except runtime.CUDARuntimeError as error:
    print(json.dumps({"reason": str(error)}))
else:
    names = []
    for index in range(count):
        properties = runtime.getDeviceProperties(index)
        names.append(f"{properties['name'].decode()} (sm_{properties['major']}{properties['minor']})")
    print(json.dumps({"names": names, "serves": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion()}))
"""
_TORCH_CHILD = """\
import json
import torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.is_available()}))
"""


class State(StrEnum):
    """What a check found."""

    OK = "ok"
    NOTE = "note"
    """Not here, and everything still works without it, or in its own way."""
    MISSING = "missing"
    """Needed, and not here or broken."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked for."""

    name: str
    state: State
    found: str
    mend: str = ""
    """The one command that mends it; empty where nothing needs mending."""


def run_doctor(store_url: str | None, data_dir: Path | None, as_json: bool, console: Console) -> int:
    """Print what is found of everything that mnist-tune uses; 0, or 1 where something needed is missing or broken.

    Changes nothing: no download, no store made, no row written. Compiles two probes in the cache folder.
    """
    looks: list[Callable[[], list[Check]]] = [
        _gpu,
        _nvrtc,
        _cpp,
        _cache,
        lambda: _store(store_url),
        lambda: _data(data_dir),
        _torch,
    ]
    with ThreadPoolExecutor(len(looks)) as pool:
        checks = [check for found in pool.map(lambda look: look(), looks) for check in found]
    healthy = all(check.state is not State.MISSING for check in checks)
    if as_json:
        document = {"healthy": healthy, "checks": [asdict(check) for check in checks]}
        console.out(json.dumps(document, indent=2), highlight=False)
    else:
        _show(checks, healthy, console)
    return 0 if healthy else 1


def _show(checks: list[Check], healthy: bool, console: Console) -> None:
    marks = {State.OK: ("ok", "green"), State.NOTE: ("note", "yellow"), State.MISSING: ("missing", "bold red")}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = marks[check.state]
        table.add_row(Text(mark, style=style), check.name, Text(check.found))
        if check.mend:
            table.add_row("", "", Text(check.mend, style="cyan"))
    console.print(table)
    console.print("\nEverything needed is here." if healthy else "\nSomething needed is missing: see above.")


def _child(code: str) -> dict[str, Any] | str:
    """What the Python program `code` prints as its last line, as JSON; or why it did not come to that."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_CHILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_CHILD_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else f"ended with code {done.returncode}"
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _driver_version() -> str | None:
    """The NVIDIA kernel driver's version; None where there is none."""
    module = Path("/sys/module/nvidia/version")
    if module.is_file():
        return module.read_text().strip()
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_CHILD_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def _gpu() -> list[Check]:
    """GPU and driver. None at all is a note: everything but timing works without."""
    version = _driver_version()
    if version is None:
        driver = Check("driver", State.NOTE, "no NVIDIA driver")
    else:
        driver = Check("driver", State.OK, f"NVIDIA {version}")
    found = _child(_GPU_CHILD)
    if isinstance(found, str):
        extra = _extra()
        return [Check("GPU", State.MISSING, f"CuPy does not work: {found}", _pip(extra)), driver]
    names = found.get("names", [])
    if names:
        serves, needs = int(found["serves"]), int(found["runtime"])
        if serves // 1000 < needs // 1000:
            old = f"{', '.join(names)}; the driver serves CUDA {serves // 1000}, CuPy needs {needs // 1000}"
            return [Check("GPU", State.MISSING, old, _pip("cuda12")), driver]
        return [Check("GPU", State.OK, ", ".join(names)), driver]
    if version is None:
        without = "none; searches verify by emulation and predict, training runs on the CPU"
        return [Check("GPU", State.NOTE, without), driver]
    # A note too: a container sees its host's driver without being given the GPU.
    if os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return [Check("GPU", State.NOTE, "hidden by CUDA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES"), driver]
    said = f"a driver is there, but no GPU can be used: {found.get('reason', 'none is visible')}"
    return [Check("GPU", State.NOTE, said, "nvidia-smi"), driver]


def _extra() -> str:
    """The extra whose CUDA the driver serves."""
    version = _driver_version() or ""
    major = version.partition(".")[0]
    # CUDA 13 needs driver 580 or newer.
    return "cuda12" if major.isdigit() and int(major) < 580 else "cuda13"


def _pip(extra: str) -> str:
    """Installs CuPy, NVRTC and the headers, for this Python."""
    checkout = Path(__file__).parents[1]
    target = f"-e '{checkout}[{extra}]'" if (checkout / "pyproject.toml").is_file() else f"'mnist-tune[{extra}]'"
    return f"{sys.executable} -m pip install {target}"


def _reason(error: UserError) -> str:
    """The part of the sentence before what to do, which stands below it here."""
    return str(error).partition(";")[0].rstrip(".")


def _nvrtc() -> list[Check]:
    """NVRTC and its headers, and whether they really compile a tensor-core kernel."""
    try:
        version = compiler.nvrtc_version()
    except UserError as error:
        return [Check("NVRTC", State.MISSING, _reason(error), _pip(_extra()))]
    try:
        headers = Check("CUDA headers", State.OK, str(compiler.include_dir()))
    except UserError as error:
        headers = Check("CUDA headers", State.MISSING, _reason(error), _pip(_extra()))
        return [Check("NVRTC", State.OK, version), headers]
    try:
        # In the cache folder's cubins, under a hash of the source: a second look is answered from there.
        source = cache_dir("doctor") / "probe.cu"
        source.write_text(_PROBE_KERNEL)
        built = compiler.compile_source(source, "probe", {}, PROBE_ARCH)
    except UserError as error:
        # The cache folder; its own check says how to mend it.
        return [Check("NVRTC", State.NOTE, f"{version}; not tried, because: {_reason(error)}"), headers]
    if isinstance(built, Failure):
        return [Check("NVRTC", State.MISSING, f"{version}, but: {built.message}", _pip(_extra())), headers]
    return [Check("NVRTC", State.OK, f"{version}, compiles WMMA for {PROBE_ARCH}"), headers]


def _cpp() -> list[Check]:
    """g++, which emulation needs: everything that is verified without a GPU."""
    mend = "apt-get install g++"
    # Where a GPU verifies, nothing is emulated.
    absent = State.MISSING if _driver_version() is None else State.NOTE
    if shutil.which("g++") is None:
        return [Check("g++", absent, "not found; kernels cannot be emulated without it", mend)]
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=False).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text("#include <atomic>\n#include <vector>\nstd::vector<int> probe() { return {1}; }\n")
        command = ["g++", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(source.with_suffix(".so"))]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        lines = built.stderr.strip().splitlines()
        reason = next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")
        return [Check("g++", absent, f"{version}, but it does not compile C++20: {reason}", mend)]
    return [Check("g++", State.OK, f"{version} ({platform.machine()}, {os.cpu_count()} cores)")]


def _cache() -> list[Check]:
    try:
        return [Check("cache", State.OK, str(cache_dir()))]
    except UserError as error:
        mend = f"export MNIST_TUNE_CACHE={Path(tempfile.gettempdir()) / 'mnist-tune'}"
        return [Check("cache", State.MISSING, _reason(error), mend)]


def _store(url: str | None) -> list[Check]:
    """The store, opened for reading only."""
    try:
        location = locate(url)
        if location.path is not None:
            if not location.path.exists():
                return [Check("store", State.NOTE, f"{location.path} is not there yet", "mnist-tune search")]
            url = f"sqlite:///{location.path}?mode=ro"
        with Store.open(url) as store:
            rows, devices = len(store.observations()), store.devices()
    except UserError as error:
        elsewhere = f"export MNIST_TUNE_DB={Path.home() / 'mnist-tune.db'}"
        return [Check("store", State.MISSING, str(error), elsewhere)]
    names = ", ".join(device.name for device in devices) or "no device"
    note = "; read-only, results cannot be added" if location.read_only else ""
    return [Check("store", State.OK, f"{location.label}: {rows:,} rows ({names}){note}")]


def _data(folder: Path | None) -> list[Check]:
    """The data set that `train` would use now; nothing is downloaded to find out."""
    if folder is None:
        try:
            complete = is_complete(cache_dir("mnist"))
        except UserError as error:
            # Its own check says how to mend it.
            return [Check("data", State.NOTE, f"not looked for, because: {_reason(error)}")]
        if not complete and os.environ.get("MNIST_TUNE_OFFLINE", "") not in {"", "0"}:
            return [Check("data", State.NOTE, "downloads are off: the shipped sample of MNIST")]
        if not complete:
            later = "MNIST is not in the cache; train downloads it (11 MB), or uses the shipped sample"
            return [Check("data", State.NOTE, later, "mnist-tune train --data DIR")]
    try:
        found = data.load(folder, allow_download=False)
    except UserError as error:
        return [Check("data", State.MISSING, str(error), "mnist-tune train")]
    size = f"{len(found.train_images):,} images to train, {len(found.test_images):,} to test"
    return [Check("data", State.OK, f"{found.source}: {size}")]


def _torch() -> list[Check]:
    """PyTorch, whom the tuned step races; tuning works without."""
    found = _child(_TORCH_CHILD)
    if isinstance(found, str):
        return [Check("PyTorch", State.MISSING, f"does not work: {found}", f"{sys.executable} -m pip install torch")]
    build = f"CUDA {found['cuda']}" if found["cuda"] else "CPU build"
    if _driver_version() is not None and not found["gpu"]:
        reinstall = f"{sys.executable} -m pip install --force-reinstall torch"
        return [Check("PyTorch", State.NOTE, f"{found['version']} ({build}) does not see the GPU: no race", reinstall)]
    return [Check("PyTorch", State.OK, f"{found['version']} ({build})")]
