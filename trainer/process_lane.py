"""A contender's place in a process of its own.

That makes start-up time and peak memory honest, keeps one contender's global settings from another, and may die. The
process stays alive for the whole race, so that samples can alternate; it holds its memory on the device, but only one
process makes steps at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainer.contenders.base import Task
from trainer.lanes import Factory, Finish, LaneError, LocalLane
from trainer.turns import Turns
from tuner.children import leave_interrupts_to_parent, shielded_from_interrupts

CACHES = ("MNIST_TUNE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
"""Where compilers keep what they made, ours included."""


class ProcessLane:
    """A contender in a spawned process that talks through a pipe; its output goes to a log file.

    `folder` holds the task (`Task.save`); the log is written there too. `timeout_s` bounds every answer. `cold` gives
    the process compiler caches of its own, empty at first, so that its start is what a first user sees; after `close`
    it may be started once more, with what the first start left there. `beside` says how many lanes may start at once:
    they share the cores then, and take turns on the GPU.
    """

    def __init__(
        self, factory: Factory, folder: Path, timeout_s: float, *, cold: bool = False, beside: int = 1
    ) -> None:
        self._factory = factory
        self._folder = folder
        self._timeout_s = timeout_s
        self._beside = beside
        self._began = 0.0
        self._caches = Path(tempfile.mkdtemp(prefix="caches-", dir=folder)) if cold else None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        handle, name = tempfile.mkstemp(prefix="lane-", suffix=".log", dir=folder)
        os.close(handle)
        self._log = Path(name)

    def begin(self) -> None:
        """See `Lane.begin`."""
        self._began = time.monotonic()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        house = _House(self._folder, self._log, self._caches, self._beside)
        self._process = context.Process(target=_serve, args=(theirs, self._factory, house), daemon=False)
        with shielded_from_interrupts():
            self._process.start()
        theirs.close()
        self._send("start")

    @property
    def answers(self) -> Connection | None:
        """See `Lane.answers`."""
        return self._pipe

    @property
    def deadline(self) -> float:
        """See `Lane.deadline`."""
        return self._began + self._timeout_s

    def start(self) -> float:
        """See `Lane.start`; counted from before the process is made, until it says that it is done."""
        if self._process is None:
            self.begin()
        _, finished = self._receive(max(0.0, self.deadline - time.monotonic()))
        return finished - self._began

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
        self._send(method, *arguments)
        return self._receive(self._timeout_s)[0]

    def _send(self, method: str, *arguments: Any) -> None:
        process, pipe = self._running
        try:
            pipe.send((method, arguments))
        except OSError as error:
            raise self._died(process) from error

    def _receive(self, patience_s: float) -> tuple[Any, float]:
        """The answer, and when it was given by `time.monotonic`, which all processes of a machine share."""
        process, pipe = self._running
        try:
            if not pipe.poll(patience_s):
                process.kill()
                raise LaneError(f"no answer within {self._timeout_s:g} s{self._last_words()}")
            done, value, given = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._died(process) from error
        if not done:
            raise LaneError(value)
        return value, given

    @property
    def _running(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        if self._process is None or self._pipe is None:
            raise LaneError("it has not started")
        return self._process, self._pipe

    def _died(self, process: multiprocessing.process.BaseProcess) -> LaneError:
        process.join(10.0)
        return LaneError(f"its process died (exit code {process.exitcode}){self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""


@dataclass(frozen=True, slots=True)
class _House:
    """Where the process of a ProcessLane lives."""

    folder: Path
    log: Path
    caches: Path | None
    beside: int

    def move_in(self) -> Turns | None:
        """Set up this process; whom it takes turns with."""
        if self.caches is not None:
            os.environ |= {name: str(self.caches / name) for name in CACHES}
        output = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)  # compilers write whole tables there
        os.dup2(output, 2)
        if self.beside == 1:
            return None
        # PyTorch's compiler would start a process per core for each of those that start together; with fewer than two
        # it compiles one candidate after the other.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(2, (os.cpu_count() or 1) // self.beside)))
        return Turns(self.folder / "gpu.lock")


def _serve(pipe: Connection, factory: Factory, house: _House) -> None:
    """The process of a ProcessLane: answer until the pipe ends."""
    leave_interrupts_to_parent()  # the race closes the pipe
    turns = house.move_in()
    lane = LocalLane(factory, Task.load(house.folder), turns)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            break
        try:
            done, value = True, getattr(lane, method)(*arguments)
        except LaneError as error:
            done, value = False, str(error)
        pipe.send((done, value, time.monotonic()))
    lane.close()
