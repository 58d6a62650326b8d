"""Where a contender runs during a race: in a process of its own, or here.

A process of its own makes start-up time and peak memory honest, keeps one contender's global settings from another,
and may die. It stays alive for the whole race, so that samples can alternate; it holds its memory on the device, but
only one process computes at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from trainer.agreement import Curve
from trainer.contenders.base import Contender, Task
from trainer.mlp import accuracy
from tuner.children import leave_interrupts_to_parent, shielded_from_interrupts

Factory = Callable[[], Contender]
"""Makes a contender; picklable, so that another process can."""


CACHES = ("MNIST_TUNE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
"""Where compilers keep what they made, ours included."""


class LaneError(Exception):
    """A contender failed. The message is one line."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What a contender leaves behind."""

    losses: Curve
    accuracy: float | None
    peak_bytes: int | None
    notes: str


class Lane(Protocol):
    """One contender's place in a race. Every method raises LaneError where the contender fails."""

    def start(self) -> float:
        """Make the contender, prepare it and make its first `steps_per_call` steps: seconds from nothing to there."""
        ...

    def run(self, steps: int) -> float:
        """Make the next `steps` steps: seconds on the device."""
        ...

    def finish(self) -> Finish:
        """The losses of all steps made, and the accuracy where the task has test images."""
        ...

    def close(self) -> None: ...


class LocalLane:
    """A contender in this process."""

    def __init__(self, factory: Factory, task: Task) -> None:
        self._factory = factory
        self._task = task
        self._contender: Contender | None = None
        self._done = 0

    def start(self) -> float:
        """See `Lane.start`."""
        started = time.perf_counter()
        self._attempt(self._prepare)
        self.run(self._task.steps_per_call)
        return time.perf_counter() - started

    def run(self, steps: int) -> float:
        """See `Lane.run`."""
        seconds: float = self._attempt(lambda: self._running.timed(self._done, steps))
        self._done += steps
        return seconds

    def finish(self) -> Finish:
        """See `Lane.finish`."""
        finish: Finish = self._attempt(self._finish)
        return finish

    def close(self) -> None:
        """See `Lane.close`."""
        if self._contender is not None:
            self._attempt(self._contender.close)
            self._contender = None

    @property
    def _running(self) -> Contender:
        if self._contender is None:
            raise LaneError("it has not started")
        return self._contender

    def _prepare(self) -> None:
        self._contender = self._factory()
        self._contender.prepare(self._task)

    def _finish(self) -> Finish:
        contender = self._running
        contender.synchronize()
        return Finish(contender.losses(0, self._done), self._accuracy(), contender.peak_bytes, contender.notes)

    def _accuracy(self) -> float | None:
        task = self._task
        if task.test_images is None or task.test_labels is None:
            return None
        return accuracy(self._running.weights(), task.test_images, task.test_labels)

    @staticmethod
    def _attempt(action: Callable[[], Any]) -> Any:
        """`action`, with whatever it raises as a LaneError: in a race, a contender's failure is a result."""
        try:
            return action()
        except LaneError:
            raise
        except Exception as error:
            raise LaneError(_one_line(error)) from error


class ProcessLane:
    """A contender in a spawned process that talks through a pipe; its output goes to a log file.

    `folder` holds the task (`Task.save`); the log is written there too. `timeout_s` bounds every answer. `cold` gives
    the process empty compiler caches of its own, so that its start is what a first user sees.
    """

    def __init__(self, factory: Factory, folder: Path, timeout_s: float, *, cold: bool = False) -> None:
        self._factory = factory
        self._folder = folder
        self._timeout_s = timeout_s
        self._caches = Path(tempfile.mkdtemp(prefix="caches-", dir=folder)) if cold else None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        handle, name = tempfile.mkstemp(prefix="lane-", suffix=".log", dir=folder)
        os.close(handle)
        self._log = Path(name)

    def start(self) -> float:
        """See `Lane.start`; counted from before the process is made."""
        started = time.perf_counter()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._factory, self._folder, self._log, self._caches), daemon=False
        )
        with shielded_from_interrupts():
            self._process.start()
        theirs.close()
        self._ask("start")
        return time.perf_counter() - started

    def run(self, steps: int) -> float:
        """See `Lane.run`."""
        seconds: float = self._ask("run", steps)
        return seconds

    def finish(self) -> Finish:
        """See `Lane.finish`."""
        finish: Finish = self._ask("finish")
        return finish

    def close(self) -> None:
        """See `Lane.close`. A process that does not end by itself within 10 s is killed."""
        if self._process is None or self._pipe is None:
            return
        self._pipe.close()  # the process ends when it reads the end of the pipe
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._process = self._pipe = None

    def _ask(self, method: str, *arguments: Any) -> Any:
        if self._process is None or self._pipe is None:
            raise LaneError("it has not started")
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(self._timeout_s):
                self._process.kill()
                raise LaneError(f"no answer within {self._timeout_s:g} s{self._last_words()}")
            done, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(10.0)
            raise LaneError(f"its process died (exit code {self._process.exitcode}){self._last_words()}") from error
        if not done:
            raise LaneError(value)
        return value

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""


def _serve(pipe: Connection, factory: Factory, folder: Path, log: Path, caches: Path | None) -> None:
    """The process of a ProcessLane: answer until the pipe ends."""
    if caches is not None:
        os.environ |= {name: str(caches / name) for name in CACHES}
    leave_interrupts_to_parent()  # the race closes the pipe
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)  # compilers write whole tables there
    os.dup2(output, 2)
    lane = LocalLane(factory, Task.load(folder))
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            break
        try:
            answer = (True, getattr(lane, method)(*arguments))
        except LaneError as error:
            answer = (False, str(error))
        pipe.send(answer)
    lane.close()


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
