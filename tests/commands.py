"""Runs `mnist-tune` as a user does, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from cli import app; app(prog_name='mnist-tune')"]


_started: list[subprocess.Popen[str]] = []


def end_all() -> None:
    """Kill what `start` started and nobody ended: a test that fails half-way must not leave a process to run on."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def mnist_tune(*arguments: str | Path, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """`mnist-tune ARGUMENTS`, run to its end with `environment` added to this process's."""
    process = start(*arguments, **environment)
    output, complaints = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, output, complaints)


def start(
    *arguments: str | Path, options: dict[str, Any] | None = None, **environment: str | Path
) -> subprocess.Popen[str]:
    """`mnist-tune ARGUMENTS`, started, with its children in a process group of their own."""
    variables = {**os.environ, "COLUMNS": "80", **{name: str(value) for name, value in environment.items()}}
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **(options or {})}
    command = [*COMMAND, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, env=variables, text=True, start_new_session=True, **settings)
    _started.append(process)
    return process


def members(group: int) -> list[int]:
    """The processes of a process group that still run; on Linux."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group, *_ = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while this looked
        if int(of_group) == group and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def wait_until_gone(group: int, limit_s: float = 15.0) -> list[int]:
    """The processes of `group` that still run after `limit_s` seconds; waits no longer than there are any."""
    deadline = time.monotonic() + limit_s
    while (left := members(group)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
