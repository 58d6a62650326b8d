"""What engines on the GPU share: a chosen kernel made ready, and the time of what a stream does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.plan import Choice
from tuner.backends.cuda import CudaRunner, Prepared
from tuner.compile import compile_kernel
from tuner.types import Failure


def ready(choice: Choice, runner: CudaRunner) -> Prepared:
    """The kernel of `choice`, compiled (from the cache where it is warm) and loaded.

    Raises:
        RuntimeError: it passed its check at look-up, and does not compile or load here.
    """
    kernel, problem, config = choice.kernel, choice.problem, choice.config
    binary = compile_kernel(kernel, problem, config, runner.device.arch)
    prepared = binary if isinstance(binary, Failure) else runner.prepare(kernel, problem, config, binary)
    if isinstance(prepared, Failure):
        raise RuntimeError(f"{problem.label} [{config.label}]: {prepared.message}")
    return prepared


class Stopwatch:
    """Two events on a stream."""

    def __init__(self, stream: Any) -> None:
        import cupy

        self._stream = stream
        self._start, self._stop = cupy.cuda.Event(), cupy.cuda.Event()

    def seconds(self, act: Callable[[], None]) -> float:
        """How long the device takes for what `act` enqueues; waits for its end."""
        import cupy

        self._start.record(self._stream)
        act()
        self._stop.record(self._stream)
        self._stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(self._start, self._stop)) * 1e-3
