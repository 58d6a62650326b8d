"""The runtime: built by g++ on first use, and its C interface, through ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from tuner.cache import cache_dir
from tuner.emulation.compiler import COMMON_FLAGS, compiler_version, digest, machine_flags, processor, run_compiler

HEADERS = Path(__file__).parent / "headers"
SOURCES = Path(__file__).parent / "runtime"

RUNTIME_FLAGS = ("-O2", "-ftls-model=initial-exec")


class LaunchRequest(ctypes.Structure):
    """`LaunchRequest` of runtime/state.h, field by field."""

    _fields_: ClassVar = [
        ("module", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_uint64),
        ("time_limit_s", ctypes.c_double),
        ("reports", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cooperative", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("seed", ctypes.c_int32),
        ("precise", ctypes.c_int32),
        ("checked", ctypes.c_int32),
        ("cluster", ctypes.c_int32),
    ]


class Parameter(ctypes.Structure):
    """`MntParameter` of headers/emulation/export.h."""

    _fields_: ClassVar = [("bytes", ctypes.c_uint), ("kind", ctypes.c_char)]


class Library:
    """The loaded runtime. One per process: kernels find its symbols by its soname."""

    def __init__(self, path: Path) -> None:
        self.path = path
        runtime = ctypes.CDLL(str(path))
        self.allocate = runtime.mnt_emulation_allocate
        self.allocate.restype = ctypes.c_void_p
        self.allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int]
        self.release = runtime.mnt_emulation_release
        self.release.restype = None
        self.release.argtypes = [ctypes.c_void_p]
        self.open = runtime.mnt_emulation_open
        self.open.restype = ctypes.c_void_p
        self.open.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
        self.launch = runtime.mnt_emulation_launch
        self.launch.restype = ctypes.c_int
        self.launch.argtypes = [ctypes.POINTER(LaunchRequest)]
        self.free_text = runtime.mnt_emulation_free_text
        self.free_text.restype = None
        self.free_text.argtypes = [ctypes.c_void_p]

    @staticmethod
    @functools.cache
    def load() -> Library:
        """The runtime, built if need be.

        Raises:
            UserError: there is no g++.
        """
        return Library(build_runtime())


def build_runtime() -> Path:
    """The runtime's file in the cache; building it takes a few seconds.

    Raises:
        UserError: there is no g++.
    """
    sources = sorted(SOURCES.glob("*.cpp"))
    inputs = [*sources, *sorted(SOURCES.glob("*.h")), *sorted(HEADERS.rglob("*.h"))]
    flags = [*COMMON_FLAGS, *machine_flags(), *RUNTIME_FLAGS]
    key = digest([path.read_bytes() for path in inputs], [compiler_version(), processor(), *flags])
    target = cache_dir("emulation") / f"libmnt_emulation-{key}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:

        def compile_one(path: Path) -> str:
            compiled = f"{folder}/{path.stem}.o"
            run_compiler([*flags, "-c", str(path), "-o", compiled])
            return compiled

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sources))
        # Kernels are linked to the soname: the loaded runtime is found by it wherever the cache lies.
        linked = f"{folder}/runtime.so"
        run_compiler(["-shared", f"-Wl,-soname,{target.name}", *objects, "-o", linked, "-lpthread"])
        Path(linked).replace(target)
    return target
