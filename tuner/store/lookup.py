"""Which configuration to use: asks the store, climbs the ladder, and says why it did not end higher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner.kernel import Kernel
from tuner.store.ladder import Head, Rung, candidates, climb, default
from tuner.store.models import DeviceRecord, ObservationRecord
from tuner.store.read import observations, problem_of
from tuner.store.reasons import Fact, reasons
from tuner.store.rows import Observation
from tuner.types import Config, Device, Kind, Problem, Status, tie


@dataclass(frozen=True, slots=True)
class Match:
    """What a lookup returns: the configuration, how it was found, and why it was not found further up the ladder."""

    config: Config
    rung: Rung
    observation: Observation | None
    """The row that the configuration comes from; None for the default."""
    reasons: tuple[tuple[Rung, str], ...]
    """For each rung above, each field that did not fit: `source: stored 1a2b..., current 9f8e...: ...`."""
    problem: Problem
    device: Device
    source_hash: str
    space_hash: str

    @property
    def expected_us(self) -> float | None:
        """The stored time, us: measured or predicted for this very problem and device; None where there is none."""
        row = self.observation
        if row is None or row.device.key != self.device.key or row.measurement.problem.key != self.problem.key:
            return None
        return row.measurement.median_us


@dataclass(frozen=True, slots=True)
class Remembered:
    """A failure that a read-only store cannot keep: it holds for as long as the store is open."""

    head: Head
    source_hash: str


def look_up(
    session: Session, kernel: Kernel, problem: Problem, device: Device, remembered: Sequence[Remembered] = ()
) -> Match:
    """The best known configuration of `kernel` for `problem` on `device`.

    Raises:
        ValueError: `problem` is another kernel's, or its search space is empty.
    """
    if problem.kernel != kernel.name:
        raise ValueError(f"{problem.label} is not a problem of {kernel.name}")
    source_hash = kernel.source_hash
    space = kernel.space(problem, device)
    failures = [
        item.head for item in remembered if item.source_hash == source_hash and item.head.problem.kernel == kernel.name
    ]
    # The usual hit needs few rows; only where it fails are all rows of the kernel read.
    exact = heads(session, kernel.name, source_hash, problem=problem, device=device)
    result = climb(candidates([*exact, *failures]), problem, device, space)
    why: tuple[tuple[Rung, str], ...] = ()
    if result.rung is not Rung.EXACT:
        everything = heads(session, kernel.name, source_hash)
        result = climb(candidates([*everything, *failures]), problem, device, space)
        why = reasons(kernel, problem, device, source_hash, facts(session, kernel.name), result)
    observation = None
    if result.head is not None:
        observation = observations(session, ObservationRecord.uuid == result.head.uuid)[0]
    return Match(
        config=result.head.config if result.head else default(space, result.forbidden),
        rung=result.rung,
        observation=observation,
        reasons=why,
        problem=problem,
        device=device,
        source_hash=source_hash,
        space_hash=space.hash,
    )


def best(
    session: Session, problem: Problem, device: Device, source_hash: str, kind: Kind = Kind.MEASURED
) -> Observation | None:
    """The fastest ok row of exactly this problem, device, source and kind, the simplest of a tie; None without any.

    A later row of the same configuration replaces an earlier one, and a configuration whose latest row is a failure
    does not count.
    """
    usable = (
        head
        for candidate in candidates(heads(session, problem.kernel, source_hash, problem=problem, device=device))
        if (head := candidate.usable(kind))
    )
    head = min(usable, key=lambda head: head.standing, default=None)
    return observations(session, ObservationRecord.uuid == head.uuid)[0] if head else None


def heads(
    session: Session,
    kernel: str,
    source_hash: str,
    *,
    problem: Problem | None = None,
    device: Device | None = None,
) -> list[Head]:
    """The latest row of each kind for every configuration, problem and device of `kernel` with this source."""
    row = ObservationRecord
    place = (DeviceRecord.key, row.problem_key, row.config_key)
    latest_first = (row.created_at.desc(), row.id.desc())
    query = (
        select(
            row.uuid,
            row.problem_key,
            row.config_key,
            row.status,
            row.message,
            row.kind,
            row.median_us,
            row.extra,
            DeviceRecord.key,
            DeviceRecord.name,
            DeviceRecord.arch,
            DeviceRecord.sm_count,
            func.row_number().over(partition_by=place, order_by=latest_first).label("age"),
            func.row_number().over(partition_by=(*place, row.kind), order_by=latest_first).label("age_in_kind"),
        )
        .join(DeviceRecord, DeviceRecord.id == row.device_id)
        .where(row.kernel == kernel, row.source_hash == source_hash)
    )
    if problem is not None:
        query = query.where(row.problem_key == problem.key)
    if device is not None:
        query = query.where(DeviceRecord.key == device.key)
    newest = query.subquery()
    problems = {problem.key: problem} if problem else _problems(session, kernel)
    configs: dict[str, Config] = {}
    found = []
    for item in session.execute(select(newest).where(newest.c.age_in_kind == 1)):
        if item.config_key not in configs:
            configs[item.config_key] = Config.of(json.loads(item.config_key))
        found.append(
            Head(
                uuid=item.uuid,
                problem=problems[item.problem_key],
                config=configs[item.config_key],
                status=Status(item.status),
                message=item.message,
                kind=Kind(item.kind),
                median_us=item.median_us,
                device_key=item.key,
                device_name=item.name,
                arch=item.arch,
                sm_count=item.sm_count,
                is_latest=item.age == 1,
                tied_us=tie(item.extra)[0],
                tie_rank=tie(item.extra)[1],
            )
        )
    return found


def facts(session: Session, kernel: str) -> list[Fact]:
    """What the store has of `kernel`, from any source, device and problem."""
    row = ObservationRecord
    problems = _problems(session, kernel)
    query = (
        select(row.problem_key, DeviceRecord.key, DeviceRecord.name, DeviceRecord.arch, row.source_hash, row.kind)
        .distinct()
        .join(DeviceRecord, DeviceRecord.id == row.device_id)
        .where(row.kernel == kernel)
    )
    return [
        Fact(problems[problem_key], device_key, name, arch, source, Kind(kind))
        for problem_key, device_key, name, arch, source, kind in session.execute(query)
    ]


def _problems(session: Session, kernel: str) -> dict[str, Problem]:
    """The problems that the store has rows for, by key, their sizes in the order in which they were first recorded."""
    row = ObservationRecord
    first = select(func.min(row.id)).where(row.kernel == kernel).group_by(row.problem_key)
    query = select(row.problem_key, row.dims, row.options).where(row.id.in_(first))
    return {key: problem_of(kernel, dims, options) for key, dims, options in session.execute(query)}
