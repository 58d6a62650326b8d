"""Appending rows. Nothing stored is ever changed or removed; each function is one step of one transaction."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.store.models import (
    BaselineRecord,
    ContenderRecord,
    DeviceRecord,
    EnvironmentRecord,
    ObservationRecord,
    RaceRecord,
)
from tuner.store.rows import Observation, RaceRow, median_and_spread, new_uuid, now
from tuner.types import CacheState, Device, Environment, Problem, Status, canonical_json


def add_observation(session: Session, observation: Observation) -> None:
    """Append `observation`.

    Raises:
        ValueError: an ok row without a positive, finite time.
    """
    measurement = observation.measurement
    if measurement.ok and not _is_time(measurement.median_us):
        raise ValueError(f"an ok measurement needs a positive time in us, not {measurement.median_us}")
    session.add(
        ObservationRecord(
            uuid=observation.uuid,
            device_id=device_id(session, observation.device),
            environment_id=environment_id(session, observation.environment),
            kernel=measurement.problem.kernel,
            source_hash=observation.source_hash,
            space_hash=observation.space_hash,
            problem_key=measurement.problem.key,
            dims=[list(dim) for dim in measurement.problem.dims],
            options=dict(measurement.problem.options),
            config_key=measurement.config.key,
            config=dict(measurement.config),
            status=measurement.status.value,
            kind=measurement.kind.value,
            message=measurement.message,
            samples_us=list(measurement.samples_us),
            median_us=measurement.median_us,
            spread=measurement.spread,
            error=_error(measurement.error),
            tolerance=measurement.tolerance,
            cache=measurement.cache.value if measurement.cache else None,
            seed=measurement.seed,
            registers=measurement.registers,
            shared_bytes=measurement.shared_bytes,
            spill_bytes=measurement.spill_bytes,
            compile_s=measurement.compile_s,
            verified_by=measurement.verified_by,
            extra=dict(measurement.extra),
            created_at=observation.created_at,
        )
    )


def quarantined(
    observation: Observation, status: Status, message: str, *, problem: Problem, device: Device, space_hash: str
) -> Observation:
    """The row that says that the configuration of `observation` failed for `problem` on `device`; not yet stored.

    Raises:
        ValueError: `status` is ok.
    """
    if status is Status.OK:
        raise ValueError("a configuration is quarantined with the status of its failure, not ok")
    return replace(
        observation,
        uuid=new_uuid(),
        measurement=replace(
            observation.measurement,
            problem=problem,
            status=status,
            message=message,
            samples_us=(),
            median_us=None,
            spread=None,
            error=None,
            compile_s=None,
            extra={"quarantined": observation.uuid},
        ),
        device=device,
        space_hash=space_hash,
        # The latest row decides, so this one is later even where the clock was set back meanwhile.
        created_at=max(now(), observation.created_at + timedelta(microseconds=1)),
    )


def add_baseline(
    session: Session,
    problem: Problem,
    device: Device,
    environment: Environment,
    library: str,
    samples_us: Sequence[float],
    cache: CacheState,
) -> str:
    """Append a library's time for `problem`; the row's UUID.

    Raises:
        ValueError: no samples, or one that is not a positive, finite time.
    """
    if not samples_us or not all(_is_time(sample) for sample in samples_us):
        raise ValueError(f"a baseline needs positive times in us, not {list(samples_us)}")
    median, spread = median_and_spread(samples_us)
    uuid = new_uuid()
    session.add(
        BaselineRecord(
            uuid=uuid,
            device_id=device_id(session, device),
            environment_id=environment_id(session, environment),
            kernel=problem.kernel,
            problem_key=problem.key,
            dims=[list(dim) for dim in problem.dims],
            options=dict(problem.options),
            library=library,
            samples_us=[float(sample) for sample in samples_us],
            median_us=median,
            spread=spread,
            cache=cache.value,
            created_at=now(),
        )
    )
    return uuid


def add_race(session: Session, race: RaceRow) -> str:
    """Append `race` and its contenders; the race's UUID. A loss that diverged is kept as NaN."""
    session.add(
        RaceRecord(
            uuid=race.uuid,
            device_id=device_id(session, race.device),
            environment_id=environment_id(session, race.environment),
            width=race.width,
            layers=race.layers,
            batch=race.batch,
            steps=race.steps,
            lr=race.lr,
            seed=race.seed,
            command=race.command,
            strongest=race.strongest,
            created_at=race.created_at,
            contenders=[
                ContenderRecord(
                    name=contender.name,
                    us_per_step=contender.us_per_step,
                    samples=list(contender.samples),
                    spread=contender.spread,
                    start_s=contender.start_s,
                    peak_bytes=contender.peak_bytes,
                    losses=[(step, loss if math.isfinite(loss) else None) for step, loss in contender.losses],
                    accuracy=contender.accuracy,
                    error=contender.error,
                )
                for contender in race.contenders
            ],
        )
    )
    return race.uuid


def device_id(session: Session, device: Device) -> int:
    """The id of `device` with exactly these properties; its row is made where it is new."""
    return _id_of(session, DeviceRecord, asdict(device), key=device.key)


def environment_id(session: Session, environment: Environment) -> int:
    """The id of `environment`; its row is made where it is new."""
    return _id_of(session, EnvironmentRecord, asdict(environment))


def _id_of(
    session: Session,
    table: type[DeviceRecord] | type[EnvironmentRecord],
    values: dict[str, str | int | float],
    **more: str,
) -> int:
    fingerprint = hashlib.sha256(canonical_json(values).encode()).hexdigest()
    wanted = select(table.id).where(table.fingerprint == fingerprint)
    found = session.scalar(wanted)
    if found is not None:
        return found
    record = table(fingerprint=fingerprint, **values, **more)
    try:
        with session.begin_nested():
            session.add(record)
    except IntegrityError:
        # On a server another process may have added the same row since we looked.
        return session.scalars(wanted).one()
    return record.id


def _is_time(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _error(error: float | None) -> float | None:
    """An output with NaN in it is infinitely far from the reference; databases differ in what they make of NaN."""
    return math.inf if error is not None and math.isnan(error) else error
