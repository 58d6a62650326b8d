"""From the start of the process to the first trained step: where the seconds go.

Every moment counts for one part: that of the innermost `part` that is open, `other` where none is. So the parts add up
to the whole. The process's start is what the kernel noted (/proc/self/stat, in ticks of 10 ms, against the clock that
it is kept in), so that the interpreter's own start is in; where there is no such file it is the moment of asking, less
the processor time that the process had used by then, and `since` says which.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

_Value = TypeVar("_Value")

PARTS = {
    "imports": "imports",
    "data": "reading the data",
    "context": "CUDA context",
    "lookup": "opening the store and looking up",
    "check": "checking configurations",
    "compile": "compiling",
    "prepare": "upload and capture",
    "first_steps": "first steps",
    "other": "other",
}
"""Names of the parts, in order, and how they are called. `imports` includes the start of the interpreter."""

NOT_OURS = ("data", "context")
"""What a start takes whoever trains: reported, and left out where our own start-up is spoken of."""


@dataclass(frozen=True, slots=True)
class Started:
    """What the start came to, in seconds."""

    since: str
    """What they are counted from."""
    parts: Mapping[str, float]
    first_steps: int
    """Steps of the first call: the host hears of no step before the whole call is done."""

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())

    @property
    def own_s(self) -> float:
        """Without reading the data and creating the CUDA context."""
        return sum(seconds for name, seconds in self.parts.items() if name not in NOT_OURS)

    def document(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "since": self.since,
            "total_s": round(self.total_s, 4),
            "without_data_and_context_s": round(self.own_s, 4),
            "first_call_steps": self.first_steps,
            **{f"{name}_s": round(self.parts.get(name, 0.0), 4) for name in PARTS},
        }

    def __str__(self) -> str:
        steps = "step" if self.first_steps == 1 else f"{self.first_steps} steps"
        spent = ", ".join(
            f"{said} {self.parts[name]:.2f}" for name, said in PARTS.items() if self.parts.get(name, 0.0) >= 0.005
        )
        return (
            f"First {steps} done {self.total_s:.2f} s after {self.since}, {self.own_s:.2f} s without reading the data "
            f"and creating the CUDA context: {spent}."
        )


@dataclass(slots=True)
class Startup:
    """A start that is under way. Seconds are those of `time.monotonic`."""

    since: str
    parts: dict[str, float]
    _open: list[str] = field(default_factory=lambda: ["other"])
    _last: float = field(default_factory=time.monotonic)

    @classmethod
    def of_process(cls) -> Startup:
        """A start that began with this process; what has passed, and what will pass until `imported`, is imports."""
        age_s, since = process_age()
        return cls(since, {"imports": age_s}, ["imports"])

    @classmethod
    def from_here(cls, since: str) -> Startup:
        """A start that begins now, at `since`, for people."""
        return cls(since, {})

    def imported(self) -> None:
        """What the process needed from the beginning is imported."""
        self._charge()
        self._open = ["other"]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What passes in the block counts for `name`."""
        if name not in PARTS:
            raise ValueError(f"a start has no part {name!r}")
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def within(self, name: str, function: Callable[..., _Value]) -> Callable[..., _Value]:
        """`function`, with its time counted for `name`."""

        def counted(*arguments: Any) -> _Value:
            with self.part(name):
                return function(*arguments)

        return counted

    def done(self, first_steps: int) -> Started:
        """The first `first_steps` steps are made."""
        self._charge()
        return Started(self.since, dict(self.parts), first_steps)

    def _charge(self) -> None:
        now = time.monotonic()
        name = self._open[-1]
        self.parts[name] = self.parts.get(name, 0.0) + now - self._last
        self._last = now


def process_age(stat: Path = Path("/proc/self/stat")) -> tuple[float, str]:
    """How long this process has run, in seconds, and from when on that counts, for people."""
    try:
        # The name of the program, in brackets, may hold anything; the 22nd field of all is the start.
        fields = stat.read_text().rpartition(")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time(), "the interpreter's first work (no /proc/self/stat here)"
    return age_s, "the start of the process"
