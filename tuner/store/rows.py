"""What the store hands out and takes in: frozen rows with their device and environment attached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from tuner.types import CacheState, Device, Environment, Measurement, Problem

OURS = "tuned"
"""The name of our own contender in a race."""


def new_uuid() -> str:
    """A row's own identity, the same in every store that the row is copied to."""
    return str(uuid4())


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """The median of `samples`, and their interquartile range over that median (0 for a single sample)."""
    median = statistics.median(samples)
    if len(samples) < 2:
        return median, 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return median, (high - low) / median


@dataclass(frozen=True, slots=True)
class Observation:
    """One stored measurement or prediction, with all that it was made with."""

    uuid: str
    measurement: Measurement
    device: Device
    environment: Environment
    source_hash: str
    space_hash: str
    created_at: datetime
    """UTC."""


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """What a library needs for a problem. Times are microseconds per launch."""

    uuid: str
    problem: Problem
    device: Device
    environment: Environment
    library: str
    """`cuBLAS`."""
    samples_us: tuple[float, ...]
    median_us: float
    spread: float
    """Interquartile range of the samples over their median."""
    cache: CacheState
    created_at: datetime
    """UTC."""


@dataclass(frozen=True, slots=True)
class ContenderRow:
    """One contender of a race. Times are microseconds per training step unless the name says seconds."""

    name: str
    us_per_step: float | None
    """Median of the samples; None where the contender failed."""
    samples: tuple[float, ...] = ()
    spread: float | None = None
    """Interquartile range of the samples over their median."""
    start_s: float | None = None
    """From start to the first timed step: compilation and warm-up."""
    peak_bytes: int | None = None
    losses: tuple[tuple[int, float], ...] = ()
    """(step, loss)."""
    accuracy: float | None = None
    """Test accuracy, 0 to 1."""
    error: str | None = None
    """Why it has no time."""


@dataclass(frozen=True, slots=True)
class RaceRow:
    """One race of training steps between our kernels (`tuned`) and PyTorch's forms of the same step."""

    device: Device
    environment: Environment
    width: int
    layers: int
    """Hidden layers."""
    batch: int
    steps: int
    lr: float
    seed: int
    command: str
    """The command line that ran the race."""
    strongest: str
    """Name of the fastest contender that is not ours; empty where none finished."""
    contenders: tuple[ContenderRow, ...]
    uuid: str = field(default_factory=new_uuid)
    created_at: datetime = field(default_factory=now)
    """UTC."""

    def contender(self, name: str) -> ContenderRow | None:
        """The contender called `name`; None where it did not take part."""
        return next((contender for contender in self.contenders if contender.name == name), None)

    @property
    def ours(self) -> ContenderRow | None:
        return self.contender(OURS)

    @property
    def accuracy_ours(self) -> float | None:
        """Our test accuracy, 0 to 1."""
        return self.ours.accuracy if self.ours else None

    @property
    def speedup(self) -> float | None:
        """The strongest contender's time over ours; None where one of the two has no time."""
        ours, strongest = self.ours, self.contender(self.strongest)
        if ours is None or strongest is None or not ours.us_per_step or not strongest.us_per_step:
            return None
        return strongest.us_per_step / ours.us_per_step
