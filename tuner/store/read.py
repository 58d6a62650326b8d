"""Reading rows back as the values that were recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, selectinload

from tuner.store.models import BaselineRecord, DeviceRecord, EnvironmentRecord, ObservationRecord, RaceRecord
from tuner.store.rows import BaselineRow, ContenderRow, Observation, RaceRow
from tuner.types import CacheState, Config, Device, Environment, Kind, Measurement, Problem, Status

_DEVICE_FIELDS = tuple(field.name for field in fields(Device))
_ENVIRONMENT_FIELDS = tuple(field.name for field in fields(Environment))
_OBSERVATION_COLUMNS = tuple(ObservationRecord.__table__.columns)


def observations(session: Session, *conditions: ColumnElement[bool]) -> list[Observation]:
    """The observations that meet all `conditions`, in the order in which they were recorded."""
    devices, environments = _devices(session), _environments(session)
    # Columns, not mapped objects: a search store has tens of thousands of rows.
    rows = session.execute(
        select(*_OBSERVATION_COLUMNS)
        .join(DeviceRecord, DeviceRecord.id == ObservationRecord.device_id)
        .where(*conditions)
        .order_by(ObservationRecord.id)
    )
    return [_observation(row, devices[row.device_id], environments[row.environment_id]) for row in rows]


def baselines(session: Session, device: Device) -> list[BaselineRow]:
    """The libraries' times on `device`, oldest first."""
    devices, environments = _devices(session), _environments(session)
    records = session.scalars(
        select(BaselineRecord)
        .join(DeviceRecord, DeviceRecord.id == BaselineRecord.device_id)
        .where(DeviceRecord.key == device.key)
        .order_by(BaselineRecord.id)
    )
    return [
        BaselineRow(
            uuid=record.uuid,
            problem=problem_of(record.kernel, record.dims, record.options),
            device=devices[record.device_id],
            environment=environments[record.environment_id],
            library=record.library,
            samples_us=tuple(record.samples_us),
            median_us=record.median_us,
            spread=record.spread,
            cache=CacheState(record.cache),
            created_at=record.created_at,
        )
        for record in records
    ]


def races(session: Session, device: Device | None) -> list[RaceRow]:
    """The races, oldest first; those on `device` where it is given."""
    devices, environments = _devices(session), _environments(session)
    query = select(RaceRecord).options(selectinload(RaceRecord.contenders)).order_by(RaceRecord.id)
    if device is not None:
        query = query.join(DeviceRecord, DeviceRecord.id == RaceRecord.device_id).where(DeviceRecord.key == device.key)
    return [
        RaceRow(
            uuid=record.uuid,
            device=devices[record.device_id],
            environment=environments[record.environment_id],
            created_at=record.created_at,
            width=record.width,
            layers=record.layers,
            batch=record.batch,
            steps=record.steps,
            lr=record.lr,
            seed=record.seed,
            command=record.command,
            strongest=record.strongest,
            contenders=tuple(
                ContenderRow(
                    name=contender.name,
                    us_per_step=contender.us_per_step,
                    samples=tuple(contender.samples),
                    spread=contender.spread,
                    start_s=contender.start_s,
                    peak_bytes=contender.peak_bytes,
                    losses=tuple((step, math.nan if loss is None else loss) for step, loss in contender.losses),
                    accuracy=contender.accuracy,
                    error=contender.error,
                )
                for contender in record.contenders
            ),
        )
        for record in session.scalars(query)
    ]


def devices(session: Session) -> list[Device]:
    """Every device that the store has rows for, by name; where its properties changed over time, the latest."""
    latest = {device.key: device for device in _devices(session).values()}
    return sorted(latest.values(), key=lambda device: device.key)


def problem_of(kernel: str, dims: Sequence[Sequence[Any]], options: dict[str, str]) -> Problem:
    """The problem from its stored columns."""
    return Problem(kernel, tuple((name, size) for name, size in dims), tuple(sorted(options.items())))


def _devices(session: Session) -> dict[int, Device]:
    records = session.scalars(select(DeviceRecord).order_by(DeviceRecord.id))
    return {record.id: Device(**{name: getattr(record, name) for name in _DEVICE_FIELDS}) for record in records}


def _environments(session: Session) -> dict[int, Environment]:
    records = session.scalars(select(EnvironmentRecord))
    return {
        record.id: Environment(**{name: getattr(record, name) for name in _ENVIRONMENT_FIELDS}) for record in records
    }


def _observation(row: Any, device: Device, environment: Environment) -> Observation:
    measurement = Measurement(
        problem=problem_of(row.kernel, row.dims, row.options),
        config=Config.of(row.config),
        status=Status(row.status),
        kind=Kind(row.kind),
        message=row.message,
        samples_us=tuple(row.samples_us),
        median_us=row.median_us,
        spread=row.spread,
        error=row.error,
        tolerance=row.tolerance,
        cache=CacheState(row.cache) if row.cache else None,
        seed=row.seed,
        registers=row.registers,
        shared_bytes=row.shared_bytes,
        spill_bytes=row.spill_bytes,
        compile_s=row.compile_s,
        verified_by=row.verified_by,
        extra=row.extra,
    )
    return Observation(
        uuid=row.uuid,
        measurement=measurement,
        device=device,
        environment=environment,
        source_hash=row.source_hash,
        space_hash=row.space_hash,
        created_at=row.created_at,
    )
