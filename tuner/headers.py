"""CUDA's headers, parsed once by each compiler process instead of once for each candidate.

Parsing cuda_fp16.h and mma.h takes NVRTC about as long as it needs for a small kernel. It can keep what it has parsed
(a precompiled header, 14 MB), but only of what comes first in a source, and only while the macros before it are the
same. So the headers are put first and the tunables, which differ, after them. The machine code is the same
(test_headers.py). NVRTC maps its file to one address, so no process can use another's: each has a folder of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tuner.kernel import content, source_files
from tuner.types import Value

SHARED = ("cuda_fp16.h", "mma.h")
"""Those that are worth it, in the order in which they are parsed."""

SINCE = (12, 8)
"""The version of NVRTC that can."""

_PREFIX = "mnist-tune-headers-"


class Program(NamedTuple):
    """What NVRTC is given."""

    text: str
    options: tuple[str, ...]


def kept() -> tempfile.TemporaryDirectory[str]:
    """A folder for the processes of one pool; removes those that killed processes have left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdecimal() and not _alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


def plain(source: Path, defines: Mapping[str, Value]) -> Program:
    """`source` as it stands, the macros as options."""
    return Program(source.read_text(), tuple(f"-D{name}={value}" for name, value in sorted(defines.items())))


def precompiled(source: Path, defines: Mapping[str, Value], folder: Path) -> Program | None:
    """The same with what was parsed before taken from `folder`, or left there; None where that would not do.

    That is where `source` includes none of the headers, or where a macro might be meant for them.
    """
    wanted = _included(source)
    if not wanted or any(name.startswith(("_", "CUDA", "NV")) for name in defines):
        return None
    lines = [
        *(f"#include <{name}>" for name in wanted),
        "#pragma nv_hdrstop",
        *(f"#define {name} {value}" for name, value in sorted(defines.items())),
        f'#line 1 "{source.name}"',
    ]
    options = ("--pch", f"--pch-dir={folder}", "--pch-messages=false")
    return Program("\n".join([*lines, source.read_text()]), options)


def _included(source: Path) -> list[str]:
    """Of `SHARED`, what the source or a file that it includes names."""
    text = b"\n".join(content(path) for path in source_files(source)).decode()
    found = set(re.findall(r"^\s*#\s*include\s+<([^>]+)>", text, re.MULTILINE))
    return [name for name in SHARED if name in found]
