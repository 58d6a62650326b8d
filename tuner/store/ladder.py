"""The ladder of a lookup, as pure functions of what the store holds: which configuration to take, and from where.

The rungs, first that holds:

exact         measured for this kernel, problem, device and source.
nearest       measured on this device for the nearest other problem with the same options.
architecture  measured on another device of the same architecture, the same problem first, then the nearest.
predicted     predicted, not measured. The same problem first, then the nearest. Within each: for this device, then for
              this architecture, then for older architectures (the latest first: a newer GPU offers all that an older
              one does, so the configuration fits), then for newer ones (the closest first).
default       the kernel's own default.

Every configuration must be valid in the space of the wanted problem on the wanted device, and rows of another source
are never considered. Of winners that measuring could not tell apart, the simplest is taken (`tuner.finals`). Other ties
are broken by sizes, device and the configuration's text, so the answer never depends on
the order of rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from tuner.space import Space
from tuner.store.rows import Observation
from tuner.types import Config, Device, Kind, Problem, Status, tie


class Rung(StrEnum):
    """How a lookup found its configuration, from the best to the last resort."""

    EXACT = "exact"
    NEAREST = "nearest"
    ARCHITECTURE = "architecture"
    PREDICTED = "predicted"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Head:
    """The latest row of one kind for one configuration, problem and device, of the current source."""

    uuid: str
    problem: Problem
    config: Config
    status: Status
    message: str
    kind: Kind
    median_us: float | None
    device_key: str
    device_name: str
    arch: str
    sm_count: int
    is_latest: bool
    """No row of the other kind is later."""
    tied_us: float | None = None
    """What it counts as in a tie: the time of the fastest there."""
    tie_rank: int = 0
    """Its place in the tie; the simplest has 0."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK and self.median_us is not None

    @property
    def standing(self) -> tuple[float, int, str]:
        """As `Measurement.standing`: the fastest first, and of a tie the simplest."""
        us = self.tied_us if self.tied_us is not None else self.median_us
        return (us if us is not None else math.inf, self.tie_rank, self.config.key)


def head_of(observation: Observation) -> Head:
    """`observation` as the latest row of its configuration, problem and device."""
    measurement, device = observation.measurement, observation.device
    return Head(
        uuid=observation.uuid,
        problem=measurement.problem,
        config=measurement.config,
        status=measurement.status,
        message=measurement.message,
        kind=measurement.kind,
        median_us=measurement.median_us,
        device_key=device.key,
        device_name=device.name,
        arch=device.arch,
        sm_count=device.sm_count,
        is_latest=True,
        tied_us=tie(measurement.extra)[0],
        tie_rank=tie(measurement.extra)[1],
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """All that counts of one configuration, for one problem and device."""

    measured: Head | None
    predicted: Head | None

    @property
    def failure(self) -> Head | None:
        """The row that forbids the configuration: a failed latest row, or a failed latest measurement.

        A prediction does not bring back what a measurement saw fail.
        """
        for head in (self.measured, self.predicted):
            if head and not head.ok and (head.is_latest or head is self.measured):
                return head
        return None

    def usable(self, kind: Kind) -> Head | None:
        """The row of `kind` to serve; None where there is none or the configuration is forbidden."""
        head = self.measured if kind is Kind.MEASURED else self.predicted
        return head if head and head.ok and self.failure is None else None

    @property
    def any(self) -> Head:
        head = self.measured or self.predicted
        assert head is not None
        return head


def candidates(heads: Iterable[Head]) -> list[Candidate]:
    """Heads brought together per configuration, problem and device; of two of one kind the last counts."""
    groups: dict[tuple[str, Problem, Config], dict[Kind, Head]] = defaultdict(dict)
    for head in heads:
        groups[head.device_key, head.problem, head.config][head.kind] = head
    return [Candidate(group.get(Kind.MEASURED), group.get(Kind.PREDICTED)) for group in groups.values()]


def comparable(a: Problem, b: Problem) -> bool:
    """Whether a configuration may pass between the problems: same kernel, options, and names of sizes."""
    return a.kernel == b.kernel and a.options == b.options and _names(a) == _names(b)


def distance(a: Problem, b: Problem) -> float:
    """How far apart the sizes are: Euclidean, in powers of two per dimension. 32x1024x64 is not 32x64x1024.

    Raises:
        ValueError: the problems are not comparable.
    """
    if not comparable(a, b):
        raise ValueError(f"{a.label} and {b.label} cannot be compared")
    return math.hypot(*(math.log2(a[name]) - math.log2(b[name]) for name in _names(a)))


@dataclass(frozen=True, slots=True)
class Step:
    """One rung: the kind of row that it takes, which rows it looks at, and which of them it prefers (least first)."""

    rung: Rung
    kind: Kind
    looks_at: Callable[[Head], bool]
    preference: Callable[[Head], tuple[Any, ...]]


def steps(problem: Problem, device: Device) -> tuple[Step, ...]:
    """The rungs above the default, for `problem` on `device`."""

    def here(head: Head) -> bool:
        return head.device_key == device.key

    def gap(head: Head) -> float:
        return abs(math.log2(head.sm_count) - math.log2(device.sm_count))

    @cache
    def distance_to(other: Problem) -> float:
        return distance(problem, other)

    def far(head: Head) -> float:
        return distance_to(head.problem)

    def kinship(head: Head) -> tuple[int, int]:
        if here(head):
            return 0, 0
        newer = int(head.arch.removeprefix("sm_")) - device.capability
        if newer == 0:
            return 1, 0
        return (2, -newer) if newer < 0 else (3, newer)

    def last(head: Head) -> tuple[Any, ...]:
        return head.device_key, head.problem.dims, head.standing

    return (
        Step(
            Rung.EXACT,
            Kind.MEASURED,
            lambda head: here(head) and far(head) == 0,
            last,
        ),
        Step(
            Rung.NEAREST,
            Kind.MEASURED,
            lambda head: here(head) and far(head) > 0,
            lambda head: (far(head), *last(head)),
        ),
        Step(
            Rung.ARCHITECTURE,
            Kind.MEASURED,
            lambda head: not here(head) and head.arch == device.arch,
            lambda head: (far(head), gap(head), *last(head)),
        ),
        Step(
            Rung.PREDICTED,
            Kind.PREDICTED,
            lambda _: True,
            lambda head: (far(head) > 0, kinship(head), far(head), gap(head), *last(head)),
        ),
    )


@dataclass(frozen=True, slots=True)
class Rejected:
    """A configuration that a rung would have taken."""

    head: Head
    reason: str


@dataclass(frozen=True, slots=True)
class Climb:
    """Where the ladder ended: the rung, its row (None for the default), and whom each rung above turned down."""

    rung: Rung
    head: Head | None
    rejected: dict[Rung, tuple[Rejected, ...]]
    forbidden: dict[Config, Head]
    """Configurations that are known to fail for the wanted problem on the wanted device."""


def climb(pool: Iterable[Candidate], problem: Problem, device: Device, space: Space) -> Climb:
    """Take the first rung that holds. `pool` is what the store has for the kernel's current source."""
    pool = list(pool)
    alike = {other for other in {candidate.any.problem for candidate in pool} if comparable(other, problem)}
    known = [candidate for candidate in pool if candidate.any.problem in alike]
    forbidden = {
        candidate.any.config: failure
        for candidate in known
        if candidate.any.device_key == device.key and distance(candidate.any.problem, problem) == 0
        if (failure := candidate.failure)
    }
    rejected: dict[Rung, tuple[Rejected, ...]] = {}
    for step in steps(problem, device):
        failed = [
            Rejected(failure, _failed(failure))
            for candidate in known
            if step.looks_at(candidate.any)
            if (failure := candidate.failure) and _of_kind(candidate, step.kind)
        ]
        usable = [head for candidate in known if (head := candidate.usable(step.kind)) and step.looks_at(head)]
        invalid = []
        for head in sorted(usable, key=step.preference):
            reason = space.broken(head.config)
            if reason is None and head.config in forbidden:
                reason = f"{_failed(forbidden[head.config])} for this problem on this device"
            if reason is None:
                return Climb(step.rung, head, rejected, forbidden)
            invalid.append(Rejected(head, reason))
        rejected[step.rung] = (*invalid, *failed)
    return Climb(Rung.DEFAULT, None, rejected, forbidden)


def default(space: Space, forbidden: Iterable[Config]) -> Config:
    """The space's default; where that is known to fail, the valid configuration nearest to it that is not.

    Where every configuration is known to fail it is the default after all: one must be tried.

    Raises:
        ValueError: the space is empty.
    """
    wanted, avoid = space.default(), frozenset(forbidden)
    if wanted not in avoid:
        return wanted
    others = (config for config in space if config not in avoid)
    return min(others, key=lambda config: sum(config[name] != wanted[name] for name in wanted), default=wanted)


def _of_kind(candidate: Candidate, kind: Kind) -> bool:
    return (candidate.measured if kind is Kind.MEASURED else candidate.predicted) is not None


def _failed(head: Head) -> str:
    return f"its latest row is {head.status}" + (f" ({head.message})" if head.message else "")


def _names(problem: Problem) -> frozenset[str]:
    return frozenset(name for name, _ in problem.dims)
