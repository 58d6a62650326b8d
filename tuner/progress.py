"""What a search shows while it runs: a live display on a terminal, plain lines elsewhere, nothing with --json."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from tuner.types import Measurement, Problem


class Progress(Protocol):
    """Told by `tuner.tune.tune` what happens. A context manager: leaving it gives the terminal back."""

    def begin(self, number: int, total: int, problem: Problem, trials: int) -> None:
        """Problem `number` of `total` starts; it will have `trials` configurations at most."""
        ...

    def library(self, us: float | None) -> None:
        """What the library needs for the problem, where that is known."""
        ...

    def trial(self, row: Measurement, best: Measurement | None, known: int) -> None:
        """A candidate is done; `known` configurations are now."""
        ...

    def note(self, text: str) -> None: ...

    def end(self, best: Measurement | None) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Shows nothing."""

    def begin(self, number: int, total: int, problem: Problem, trials: int) -> None: ...

    def library(self, us: float | None) -> None: ...

    def trial(self, row: Measurement, best: Measurement | None, known: int) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, best: Measurement | None) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Plain(Silent):
    """A line when a problem starts, one now and then while it runs, one when it ends."""

    def __init__(self, console: Console, *, every_s: float = 10.0) -> None:
        self._console = console
        self._every_s = every_s
        self._title = ""
        self._trials = 0
        self._known = 0
        self._library_us: float | None = None
        self._said = 0.0

    def begin(self, number: int, total: int, problem: Problem, trials: int) -> None:
        self._title = f"[{number}/{total}] {problem.label}"
        self._trials, self._known, self._library_us = trials, 0, None
        self._say("")

    def library(self, us: float | None) -> None:
        self._library_us = us

    def trial(self, row: Measurement, best: Measurement | None, known: int) -> None:
        self._known = known
        if time.monotonic() - self._said >= self._every_s:
            self._say(f": {known} of {self._trials}, {standing(best, self._library_us)}")

    def note(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def end(self, best: Measurement | None) -> None:
        self._say(f": done, {standing(best, self._library_us)}")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(f"{self._title}{text}", highlight=False, markup=False, soft_wrap=True)


class Live(Silent):
    """Two bars: all problems, and the present one's trials, its best time and the ratio to the library's."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[standing]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self._all: TaskID | None = None
        self._now: TaskID | None = None
        self._library_us: float | None = None

    def begin(self, number: int, total: int, problem: Problem, trials: int) -> None:
        if self._all is None:
            self._all = self._bars.add_task("all problems", total=total, standing="")
        self._library_us = None
        self._now = self._bars.add_task(problem.label, total=trials, standing="")

    def library(self, us: float | None) -> None:
        self._library_us = us

    def trial(self, row: Measurement, best: Measurement | None, known: int) -> None:
        if self._now is not None:
            self._bars.update(self._now, completed=known, standing=standing(best, self._library_us))

    def note(self, text: str) -> None:
        if self._now is not None:
            self._bars.update(self._now, standing=text)

    def end(self, best: Measurement | None) -> None:
        if self._now is not None:
            self._bars.remove_task(self._now)
            self._now = None
        if self._all is not None:
            self._bars.advance(self._all)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def standing(best: Measurement | None, library_us: float | None) -> str:
    """`best 4.21 us, 1.31x cuBLAS`."""
    if best is None or best.median_us is None:
        return "none right so far"
    text = f"best {best.median_us:.2f} us"
    return f"{text}, {library_us / best.median_us:.2f}x cuBLAS" if library_us else text
