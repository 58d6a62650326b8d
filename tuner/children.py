"""What child processes owe their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


def leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches every process of a terminal; the parent alone decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def shielded_from_interrupts() -> Iterator[None]:
    """Processes that are started in this block are not hit by Ctrl-C while they still import what they need.

    A child inherits that the signal is held back. This process gets it when the block ends, or at once where it has
    another thread to take it.
    """
    # multiprocessing starts it with the first child, and would let the signal through then.
    resource_tracker.ensure_running()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def end_with_parent(parent: int) -> None:
    """End this process when `parent` (its process id) ends, however it does; on Linux.

    A parent that was killed with SIGKILL can tell nobody, and a child that hangs on the GPU, or waits for work in a
    pool, would stay for ever. The parent's thread that started this process must be one that lives as long as it.
    """
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it was gone before this could be asked for
