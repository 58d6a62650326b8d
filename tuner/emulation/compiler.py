"""g++: where it is, what it is called with, and what it says when it fails."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tuner.emulation.errors import EmulationBuildError
from tuner.errors import UserError

COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off")
"""Kernels reinterpret halves as uint4, and a product and a sum must round as they are written."""


def compiler() -> str:
    """The path of g++.

    Raises:
        UserError: there is none, or this is not Linux.
    """
    if platform.system() != "Linux":
        raise UserError(f"Emulation runs on Linux only, not on {platform.system()}; use a Linux machine or container.")
    found = shutil.which("g++")
    if found is None:
        raise UserError("g++ was not found, and emulation compiles kernels with it; install it with: apt install g++")
    return found


@functools.cache
def compiler_version() -> str:
    """`g++ (Debian 12.2.0) 12.2.0`."""
    return run_compiler(["--version"]).splitlines()[0]


@functools.cache
def processor() -> str:
    """What -march=native depends on: a cache may be shared by several machines."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    lines = [line for line in text.splitlines() if line.startswith(("model name", "flags", "Features"))]
    return "\n".join([platform.machine(), *sorted(set(lines))])


def machine_flags() -> list[str]:
    """-march=native where g++ has it: half conversion by instruction (x86-64), wider vectors."""
    return ["-march=native"] if platform.machine() in {"x86_64", "aarch64"} else []


def run_compiler(arguments: Sequence[str], text: str = "") -> str:
    """Run g++; its output.

    Raises:
        EmulationBuildError: it failed; the message is its first error.
    """
    # In English and ASCII, whatever the user's language: the message is read for the word error.
    environment = {**os.environ, "LC_ALL": "C"}
    command = [compiler(), *arguments]
    result = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise EmulationBuildError(first_error(result.stderr))
    return result.stdout


def first_error(output: str) -> str:
    """The first line that names an error, without the folders before the file's name."""
    lines = output.splitlines()
    found = next((line for line in lines if re.search(r"error:|undefined reference", line)), None)
    return re.sub(r"^\S*/", "", found or "\n".join(lines[-3:]) or "g++ failed without a message")


def digest(contents: Iterable[bytes], names: Iterable[str]) -> str:
    """Hash of file contents and strings, for the name of a cached file."""
    result = hashlib.sha256()
    for part in [*contents, *(name.encode() for name in names)]:
        result.update(len(part).to_bytes(8, "little"))
        result.update(part)
    return result.hexdigest()[:20]
