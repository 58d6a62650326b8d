"""Keeps asking, compiling, judging and recording going at the same time, in one thread.

The GPU gets whichever candidate is compiled, the oldest first, and one more than it is working on. While it works the
parent records what it is given back, tells the search, and asks it for more.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import connection

from tuner.candidates import Candidate, Candidates, outcome
from tuner.errors import UserError
from tuner.measuring import Measuring
from tuner.task import Task
from tuner.types import Binary, Config, Measurement

LOOK_AGAIN_S = 1.0
"""The longest sleep, so that a time budget is kept."""


class Pipeline:
    """From candidates to rows."""

    def __init__(self, task: Task, candidates: Candidates, gpu: Measuring) -> None:
        self._task = task
        self._candidates = candidates
        self._gpu = gpu
        self._judging: dict[Config, Candidate] = {}
        self.recorded: dict[Config, Measurement] = {}
        """The rows of this run, in the order of recording."""

    def rows(self) -> Iterator[Measurement]:
        """The row of each candidate, in the order of asking; those that the store did not know are recorded by then.

        The caller tells the search about each before it takes the next. When the task is overdue, what the GPU has is
        still recorded, and the rest dropped.

        Raises:
            UserError: see `outcome`, `Worker.wait` and `Store.record`; what was judged until then is recorded.
        """
        candidates = self._candidates
        while True:
            if self._task.overdue():
                candidates.drop()
                self._finish()
                return
            candidates.bell.hush()
            if self._gpu.at_work:
                self._collect(timeout_s=0.0)
            self._hand_out()
            if candidates.ask():
                continue
            known = candidates.next_known()
            if known is not None:
                assert known.row is not None
                yield known.row
            elif not candidates.waiting:
                return
            else:
                self._rest()

    def _hand_out(self) -> None:
        """Give the GPU what it may have."""
        while self._gpu.room:
            candidate = self._candidates.next_compiled()
            if candidate is None or candidate.compilation is None:
                return
            try:
                compiled = outcome(candidate.compilation)
            except UserError:
                self._finish()
                raise
            if isinstance(compiled, Binary) and candidate.ready_at is not None:
                self._task.spent.compiled(compiled, candidate.asked_at, candidate.ready_at)
            self._judging[candidate.config] = candidate
            row = self._gpu.start(candidate.config, compiled)
            if row is not None:
                self._keep(row)

    def _collect(self, timeout_s: float) -> None:
        """Record what the GPU has done, waiting for it or for a compiler."""
        # The bell matters only where the GPU could take one more.
        also = [self._candidates.bell] if self._gpu.room else []
        with self._task.spent.during("wait"):
            done = self._gpu.finished(also=also, timeout_s=timeout_s)
        if done is None:
            return
        answer, rows = done
        ready = (each.ready_at for each in self._candidates.waiting if each.row is None and each.ready_at is not None)
        self._task.spent.judged(answer, ready)
        try:
            self._hand_out()  # before the rows are recorded, which takes a while
        finally:
            for row in rows:
                self._keep(row)

    def _keep(self, row: Measurement) -> None:
        self._judging.pop(row.config).row = row
        self._task.record(row)
        self.recorded[row.config] = row

    def _rest(self) -> None:
        """Sleep until the GPU or a compiler is done with something."""
        if self._gpu.at_work:
            self._collect(LOOK_AGAIN_S)
            return
        with self._task.spent.during("wait"):
            connection.wait([self._candidates.bell.fileno()], LOOK_AGAIN_S)

    def _finish(self) -> None:
        """Wait for what the GPU has."""
        while self._gpu.at_work:
            self._collect(LOOK_AGAIN_S)
