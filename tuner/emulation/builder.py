"""Compiles a kernel with g++ into the cache, keyed by everything that goes into it."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tuner.cache import cache_dir
from tuner.emulation.compiler import COMMON_FLAGS, digest, machine_flags, run_compiler
from tuner.emulation.library import HEADERS, Library
from tuner.emulation.module import Module
from tuner.errors import UserError
from tuner.kernel import source_files
from tuner.types import Value

KERNEL_FLAGS = ("-O1", "-g1", "-w", "-fno-exceptions", "-fno-rtti", "-fno-gnu-unique", "-fvisibility=hidden")
"""-O1: -O2 compiles longer and runs no faster. -g1: reports name lines. Hidden, not unique: modules share nothing."""

CHECKS = ("-fsanitize=alignment,bounds",)
RACE_CHECKS = (*CHECKS, "-fsanitize=thread", "--param=tsan-distinguish-volatile=1")


def build(source: Path, entry: str, defines: Mapping[str, Value], *, checked: bool = False) -> Module:
    """The kernel `entry` of `source`, compiled with `defines` as macros (from the cache where it was built before).

    checked: also finds races between threads and reads of memory that nobody has written; about ten times slower.

    Raises:
        EmulationBuildError: g++ rejects the source.
        UserError: there is no g++, or the source file cannot be read.
    """
    source = source.resolve()
    if not source.is_file():
        raise UserError(f"The kernel source {source} does not exist; check its path.")
    library = Library.load()
    flags = [*COMMON_FLAGS, *machine_flags(), *KERNEL_FLAGS, *(RACE_CHECKS if checked else CHECKS)]
    text = wrapper(source, entry, defines)
    key = digest([path.read_bytes() for path in source_files(source)], [library.path.name, text, *flags])
    target = cache_dir("emulation") / f"{entry}-{key}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            compiled, linked = f"{folder}/kernel.o", f"{folder}/kernel.so"
            run_compiler([*flags, f"-I{HEADERS}", "-x", "c++", "-", "-c", "-o", compiled], text)
            # Without the sanitizer flags, so that their hooks are the runtime's and no sanitizer library is needed.
            run_compiler(["-shared", "-Wl,-z,defs", compiled, str(library.path), "-o", linked])
            Path(linked).replace(target)
    return open_module(library, target, entry, checked)


@functools.cache
def open_module(library: Library, path: Path, entry: str, checked: bool) -> Module:
    """Each file is opened once: what the runtime keeps about a module lives as long as the process."""
    return Module(library, path, entry, checked=checked)


def wrapper(source: Path, entry: str, defines: Mapping[str, Value]) -> str:
    """What g++ compiles: the headers, the kernel's macros, the kernel, its export.

    The macros follow the headers, whose own names (M, N, T) they might otherwise replace.
    """
    lines = [
        *(f"#include <{header.name}>" for header in sorted(HEADERS.glob("*.h"))),
        "#include <emulation/export.h>",
        *(f"#define {name} {value}" for name, value in sorted(defines.items())),
        f'#include "{source}"',
        f"MNT_EXPORT_KERNEL({entry})",
    ]
    return "\n".join(lines) + "\n"
