"""Where a contender runs during a race: here (`LocalLane`), or in a process of its own (`trainer.process_lane`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, Protocol

from trainer.agreement import Curve
from trainer.contenders.base import Contender, Task
from trainer.contenders.pytorch import TorchContender
from trainer.mlp import accuracy
from trainer.turns import Turns, autotune_in_turns

Factory = Callable[[], Contender]
"""Makes a contender; picklable, so that another process can."""


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

    def begin(self) -> None:
        """Set out to start. A process of its own goes on by itself; `answers` says when there is something to hear."""
        ...

    @property
    def answers(self) -> Connection | None:
        """What can be read from as soon as the start is over; None where it is over."""
        ...

    @property
    def deadline(self) -> float:
        """When, by `time.monotonic`, the start has taken too long."""
        ...

    def start(self) -> float:
        """Make the contender, prepare it and make its first `steps_per_call` steps: seconds from nothing to there.

        What `begin` began is waited for.
        """
        ...

    def run(self, steps: int) -> float:
        """Make the next `steps` steps: seconds on the device."""
        ...

    def finish(self) -> Finish:
        """The losses of all steps made, and the accuracy where the task has test images."""
        ...

    def close(self) -> None: ...


def started_first(lanes: Sequence[Lane]) -> list[Lane]:
    """Of `lanes` that began to start, those that are done or late; waits until there is one."""
    pipes = {id(lane.answers): lane for lane in lanes if lane.answers is not None}
    done = [lane for lane in lanes if lane.answers is None]
    if done:
        return done
    patience = max(0.0, min(lane.deadline for lane in lanes) - time.monotonic())
    ready = connection.wait([lane.answers for lane in lanes if lane.answers is not None], patience)
    return [pipes[id(pipe)] for pipe in ready] or [min(lanes, key=lambda lane: lane.deadline)]


class LocalLane:
    """A contender in this process. `turns` is taken for its steps, and for what PyTorch's autotuner times."""

    deadline = float("inf")
    answers = None

    def __init__(self, factory: Factory, task: Task, turns: Turns | None = None) -> None:
        self._factory = factory
        self._task = task
        self._turns = turns
        self._said = ""
        self._contender: Contender | None = None
        self._done = 0

    def begin(self) -> None:
        """See `Lane.begin`; everything is left to `start`."""

    def start(self) -> float:
        """See `Lane.start`."""
        started = time.perf_counter()
        self._done = 0
        self._attempt(self._prepare)
        self.run(self._task.steps_per_call)
        return time.perf_counter() - started

    def run(self, steps: int) -> float:
        """See `Lane.run`."""
        with self._turn():
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

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._turns is None else self._turns.taken()

    def _prepare(self) -> None:
        self._contender = self._factory()
        if self._turns is not None and isinstance(self._contender, TorchContender):
            self._said = autotune_in_turns(self._turns)
        self._contender.prepare(self._task)

    def _finish(self) -> Finish:
        contender = self._running
        contender.synchronize()
        notes = "; ".join(note for note in (contender.notes, self._said) if note)
        return Finish(contender.losses(0, self._done), self._accuracy(), contender.peak_bytes, notes)

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


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
