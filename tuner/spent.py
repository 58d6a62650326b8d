"""Where the time of a search goes: the parent's, the compilers', and that of the child that owns the GPU."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tuner.types import Binary
from tuner.worker import Answer

PARENT = ("begin", "warm_up", "ask", "tell", "record", "wait", "finals")
"""What the parent does: reads the store and makes the search; has the GPU's process made ready and the library's
products timed; asks Optuna and tells it, records rows, waits for the GPU or a compiler; holds the finals. The rest is
starting processes."""

COMPILERS = ("compile", "queue")
"""Summed over the processes: compilations that succeeded, and what they waited for a free process."""

CHILD = ("load", "verify", "time")
"""What the child does with a candidate: load its module, verify it (inputs and reference included), time it."""


class Spent:
    """Seconds of one problem's search, by phase.

    The GPU's `period` begins when its child is warmed up and ends with the last trial. `busy` is what the child was at
    work on candidates in it, `starved` what it was idle though a compiled candidate was waiting, from the moment when
    its compilation was done. The rest of the period nothing was queued for it.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.busy = 0.0
        self.starved = 0.0
        self._begun: float | None = None
        self._idle_since = 0.0

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Book what happens in the block under `phase`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started

    def compiled(self, binary: Binary, asked_at: float, ready_at: float) -> None:
        """A compilation: its own time, and what it waited for a free compiler."""
        self.seconds["compile"] += binary.seconds
        self.seconds["queue"] += max(0.0, ready_at - asked_at - binary.seconds)

    def warmed_up(self) -> None:
        """The child is ready for the first trial."""
        self._begun = self._idle_since = time.monotonic()

    def judged(self, answer: Answer, ready: Iterable[float]) -> None:
        """The child's time for a trial; `ready` is when those were compiled that it could have begun with."""
        if self._begun is None:
            self._begun = self._idle_since = answer.started
        oldest = min(ready, default=answer.started)
        self.starved += max(0.0, answer.started - max(self._idle_since, oldest))
        self.busy += answer.finished - answer.started
        self._idle_since = answer.finished
        for phase, seconds in answer.spent.items():
            self.seconds[phase] += seconds

    @property
    def period(self) -> float:
        return 0.0 if self._begun is None else self._idle_since - self._begun

    def summary(self) -> dict[str, Any]:
        """Plain JSON, seconds; `gpu.share` is the part of its period in which the GPU was busy or nothing was queued
        for it, None where there was no period.
        """

        def rounded(phases: Iterable[str]) -> dict[str, float]:
            return {phase: round(self.seconds[phase], 3) for phase in phases}

        period = self.period
        return {
            "parent": rounded(PARENT),
            "compilers": rounded(COMPILERS),
            "gpu": {
                "period": round(period, 3),
                "busy": round(self.busy, 3),
                "starved": round(self.starved, 3),
                **rounded(CHILD),
                "share": round(1 - self.starved / period, 3) if period > 0 else None,
            },
        }


def sentence(spent: Iterable[Mapping[str, Any]], new: int, seconds: float) -> str:
    """Where the time of several searches (`Spent.summary`) went, for people; `new` candidates in `seconds`."""
    parts = list(spent)

    def total(group: str, phase: str) -> float:
        return float(sum(part[group][phase] for part in parts))

    period, busy, starved = (total("gpu", phase) for phase in ("period", "busy", "starved"))
    gpu = ", ".join(f"{phase} {total('gpu', phase):.1f}" for phase in CHILD)
    parent = ", ".join(f"{phase} {total('parent', phase):.1f}" for phase in PARENT)
    share = f"{1 - starved / period:.0%}" if period > 0 else "-"
    return (
        f"{new} new candidates in {seconds:.1f} s, {new / seconds:.1f} a second. Seconds: search {parent}; compilers "
        f"{total('compilers', 'compile'):.1f}; GPU's process {busy:.1f} of {period:.1f} ({gpu}), and {share} of that "
        "time it was busy or nothing was queued for it."
    )
