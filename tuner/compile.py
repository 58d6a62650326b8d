"""Source + configuration + architecture -> cubin, by NVRTC; in this process or in a pool of them.

NVRTC needs neither a GPU nor a driver, so every candidate compiles anywhere, for any architecture. Cubins are kept in
the user's cache under a hash of everything that goes into them; they never travel in the store.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

from tuner.cache import cache_dir
from tuner.children import end_with_parent, leave_interrupts_to_parent, shielded_from_interrupts
from tuner.errors import UserError
from tuner.headers import SINCE, kept, plain, precompiled
from tuner.kernel import Kernel, content, source_files
from tuner.types import Binary, Config, Failure, Problem, Status, Value, canonical_json

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""What the kernels are compiled for in the tests; NVRTC accepts others too."""

HEADERS = ("cuda_fp16.h", "mma.h", "crt/mma.h")
"""What a WMMA kernel includes, directly or not."""

_INSTALL = "install them with: pip install 'mnist-tune[cuda13]'"


def compile_kernel(kernel: Kernel, problem: Problem, config: Config, arch: str) -> Binary | Failure:
    """Compile `kernel`, rendered for `problem` and `config`, for `arch` (`sm_75`); from the cache where it is there.

    Raises:
        UserError: NVRTC or its headers are not installed, or the cache cannot be written.
    """
    form = kernel.form(config)
    return compile_source(form.source, form.name, form.defines(problem, config), arch)


def compile_source(source: Path, entry: str, defines: Mapping[str, Value], arch: str) -> Binary | Failure:
    """Compile the `__global__` function `entry` of `source` with the macros `defines` for `arch`.

    Raises:
        UserError: NVRTC or its headers are not installed, or the cache cannot be written.
    """
    macros = plain(source, defines).options
    digest = hashlib.sha256(canonical_json([entry, list(macros), arch, nvrtc_version()]).encode())
    for path in source_files(source):
        digest.update(content(path))
    target = cache_dir("cubin") / f"{entry}-{arch}-{digest.hexdigest()[:24]}.cubin"
    facts = target.with_suffix(".json")
    if target.is_file() and facts.is_file():
        return Binary(path=target, entry=entry, arch=arch, **json.loads(facts.read_text()))
    started = time.perf_counter()
    built = _nvrtc(source, defines, arch)
    if isinstance(built, Failure):
        return built
    cubin, log = built
    found = {
        "registers": _number(r"Used (\d+) registers", log),
        "static_shared_bytes": _number(r"(\d+) bytes smem", log),
        "spill_bytes": _number(r"(\d+) bytes stack frame", log),
    }
    _write(target, cubin)
    _write(facts, json.dumps(found).encode())
    return Binary(path=target, entry=entry, arch=arch, seconds=time.perf_counter() - started, **found)


def _nvrtc(source: Path, defines: Mapping[str, Value], arch: str) -> tuple[bytes, str] | Failure:
    """The cubin and ptxas's report, or what the compiler said."""
    nvrtc = _library()
    can = _parsed is not None and tuple(map(int, nvrtc_version().split("."))) >= SINCE
    text, chosen = (precompiled(source, defines, _parsed) if _parsed and can else None) or plain(source, defines)
    options = (
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--ptxas-options=-v",
        "-default-device",
        f"-I{source.parent}",
        f"-I{include_dir()}",
        *chosen,
    )
    program = nvrtc.createProgram(text, source.name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip()
        first = next((line for line in log.splitlines() if "error" in line), log[:300] or str(error))
        return Failure(Status.COMPILE, first.strip())
    finally:
        nvrtc.destroyProgram(program)


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match.group(1)) if match else 0


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: another process may be looking for the same file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


@functools.cache
def _library():  # type: ignore[no-untyped-def]  # CuPy's binding has no types
    try:
        from cupy_backends.cuda.libs import nvrtc
    except ImportError as error:
        raise UserError(f"CuPy and NVRTC were not found; {_INSTALL}.") from error
    return nvrtc


@functools.cache
def nvrtc_version() -> str:
    """`13.0`.

    Raises:
        UserError: NVRTC is not installed.
    """
    try:
        major, minor = _library().getVersion()
    except (RuntimeError, OSError, ImportError) as error:
        raise UserError(f"NVRTC was not found; {_INSTALL}.") from error
    return f"{major}.{minor}"


def check_arch(arch: str) -> None:
    """Refuse an architecture before every candidate fails for it.

    Raises:
        UserError: NVRTC is not installed, or does not compile for `arch`.
    """
    version = nvrtc_version()
    known = [f"sm_{number}" for number in sorted(map(int, _library().getSupportedArchs()))]
    # sm_90a and sm_100f are variants of architectures that are listed without the letter.
    if arch.rstrip("af") not in known:
        raise UserError(f"NVRTC {version} does not compile for {arch}; it knows {', '.join(known)}.")


@functools.cache
def include_dir() -> Path:
    """The first folder that has all the CUDA headers that a WMMA kernel needs: pip's, else an installed toolkit's.

    Raises:
        UserError: there is none.
    """
    folders = _include_folders()
    for folder in folders:
        if all((folder / name).is_file() for name in HEADERS):
            return folder
    looked = f" (looked in {', '.join(map(str, folders))})" if folders else ""
    raise UserError(f"The CUDA headers {', '.join(HEADERS)} were not found{looked}; {_INSTALL}.")


def _include_folders() -> list[Path]:
    """Where the headers may be, the most likely to belong to NVRTC first."""
    from cuda import pathfinder

    found = [pathfinder.find_nvidia_header_directory(part) for part in ("nvrtc", "cudart")]
    homes = [pathfinder.get_cuda_path_or_home(), "/usr/local/cuda"]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes.insert(1, str(Path(nvcc).resolve().parent.parent))
    folders = [Path(folder) for folder in found if folder] + [Path(home) / "include" for home in homes if home]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


class CompilePool:
    """Compiles in several processes, ahead of whoever needs the result. A context manager.

    Processes are spawned, never forked: the parent may hold threads, and a compiler's crash stays in its child.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or os.cpu_count() or 1
        self._parsed = kept()
        self._pool = ProcessPoolExecutor(
            self.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(os.getpid(), self._parsed.name),
        )

    def submit(self, kernel: Kernel, problem: Problem, config: Config, arch: str) -> Future[Binary | Failure]:
        with shielded_from_interrupts():  # the pool starts its processes when they are needed
            return self._pool.submit(compile_kernel, kernel, problem, config, arch)

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._parsed.cleanup()


_parsed: Path | None = None
"""Where this process keeps headers that it has parsed; None where it compiles too little for that."""


def _begin(parent: int, folder: str) -> None:
    """A worker's first act: one that died of Ctrl-C would break the pool, and one must not outlive a killed parent."""
    global _parsed  # noqa: PLW0603 - a process of the pool has nothing else that lasts from one task to the next
    leave_interrupts_to_parent()
    end_with_parent(parent)
    with suppress(OSError):  # without room for it, headers are parsed each time
        own = Path(folder) / str(os.getpid())
        own.mkdir()
        _parsed = own
    os.nice(5)  # the GPU must not wait for its process or for the parent, which have little to do, but often
