"""One at a time on the GPU, among processes that start together: a lock that lies in a file.

PyTorch's autotuner times candidates while it compiles. Where several contenders start at once, each of these timings
takes the lock, and so do the steps that a lane makes; compiling, loading and capturing go on beside them.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

IN_TURNS = "started beside others, PyTorch's autotuner timing in turns"
BESIDE = "started beside others, and this PyTorch has no place for a lock: its autotuner timed beside them"


class Turns:
    """The lock in `path`, as this process holds it. May be taken again inside itself; a process that dies frees it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # as long as the process lives
        self._threads = threading.RLock()
        self._depth = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and have it for the length of the block."""
        with self._threads:
            if self._depth == 0:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)


def autotune_in_turns(turns: Turns) -> str:
    """Have PyTorch's autotuner, in this process, take `turns` for everything that it times on the GPU; what to note."""
    from torch._inductor.runtime import benchmarking

    return _hold(benchmarking, turns)


def _hold(benchmarking: Any, turns: Turns) -> str:
    announce = getattr(benchmarking, "set_gpu_benchmark_lock_context", None)
    if announce is not None:
        announce(turns.taken)
        return IN_TURNS
    # Before that hook (PyTorch 2.13 has it) there is one object by which everything is timed.
    benchmarker = getattr(benchmarking, "benchmarker", None)
    timing = getattr(benchmarker, "benchmark_gpu", None)
    if timing is None:
        return BESIDE
    benchmarker.benchmark_gpu = _in_turn(timing, turns)  # type: ignore[union-attr]
    return IN_TURNS


def _in_turn(timing: Callable[..., Any], turns: Turns) -> Callable[..., Any]:
    @wraps(timing)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with turns.taken():
            return timing(*args, **kwargs)

    return timed
