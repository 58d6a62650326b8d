"""The tables. A change here needs a migration in migrations/versions; a test compares the two.

Rows are only ever appended. Statuses, kinds and cache states are plain text, so a new one needs no migration.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, also where the database keeps no time zone (SQLite)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {float: Double}
    # Every constraint has a name, so that a later migration can drop it on any database.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class DeviceRecord(Base):
    """A GPU with the properties that it was seen with; other properties under the same key are another row."""

    __tablename__ = "devices"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    """Hash of all properties."""
    key: Mapped[str] = mapped_column(String(200), index=True)
    """`Device.key`, the identity in lookups."""
    name: Mapped[str] = mapped_column(String(160))
    arch: Mapped[str] = mapped_column(String(16))
    sm_count: Mapped[int]
    shared_per_block: Mapped[int]
    shared_per_sm: Mapped[int]
    registers_per_sm: Mapped[int]
    threads_per_sm: Mapped[int]
    blocks_per_sm: Mapped[int]
    l2_bytes: Mapped[int] = mapped_column(BigInteger)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    memory_bandwidth: Mapped[float]
    l2_bandwidth: Mapped[float]
    tensor_flops: Mapped[float]
    clock_hz: Mapped[float]
    launch_us: Mapped[float]


class EnvironmentRecord(Base):
    """The software that rows were made with."""

    __tablename__ = "environments"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    """Hash of all fields."""
    host: Mapped[str] = mapped_column(Text)
    system: Mapped[str] = mapped_column(Text)
    python: Mapped[str] = mapped_column(Text)
    driver: Mapped[str] = mapped_column(Text)
    nvrtc: Mapped[str] = mapped_column(Text)
    cupy: Mapped[str] = mapped_column(Text)
    torch: Mapped[str] = mapped_column(Text)
    compiler: Mapped[str] = mapped_column(Text)


class ObservationRecord(Base):
    """One measurement, prediction or failure of one configuration."""

    __tablename__ = "observations"
    __table_args__ = (
        Index(None, "kernel", "source_hash"),
        Index(None, "kernel", "problem_key"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    kernel: Mapped[str] = mapped_column(String(100))
    source_hash: Mapped[str] = mapped_column(String(64))
    space_hash: Mapped[str] = mapped_column(String(64))
    problem_key: Mapped[str] = mapped_column(String(400))
    """`Problem.key`."""
    dims: Mapped[list[list[Any]]] = mapped_column(JSON)
    """[name, size] pairs in the kernel's order."""
    options: Mapped[dict[str, str]] = mapped_column(JSON)
    config_key: Mapped[str] = mapped_column(Text)
    """`Config.key`."""
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(16))
    kind: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)
    samples_us: Mapped[list[float]] = mapped_column(JSON)
    median_us: Mapped[float | None]
    spread: Mapped[float | None]
    error: Mapped[float | None]
    tolerance: Mapped[float | None]
    cache: Mapped[str | None] = mapped_column(String(16))
    seed: Mapped[int] = mapped_column(BigInteger)
    registers: Mapped[int | None]
    shared_bytes: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    compile_s: Mapped[float | None]
    verified_by: Mapped[str] = mapped_column(String(32))
    extra: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BaselineRecord(Base):
    """A library's time for a problem on a device."""

    __tablename__ = "baselines"

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    kernel: Mapped[str] = mapped_column(String(100))
    problem_key: Mapped[str] = mapped_column(String(400))
    dims: Mapped[list[list[Any]]] = mapped_column(JSON)
    options: Mapped[dict[str, str]] = mapped_column(JSON)
    library: Mapped[str] = mapped_column(String(100))
    samples_us: Mapped[list[float]] = mapped_column(JSON)
    median_us: Mapped[float]
    spread: Mapped[float]
    cache: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class RaceRecord(Base):
    """A race; its contenders are rows of their own."""

    __tablename__ = "races"

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    width: Mapped[int]
    layers: Mapped[int]
    batch: Mapped[int]
    steps: Mapped[int]
    lr: Mapped[float]
    seed: Mapped[int] = mapped_column(BigInteger)
    command: Mapped[str] = mapped_column(Text)
    strongest: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    contenders: Mapped[list[ContenderRecord]] = relationship(order_by="ContenderRecord.id")


class ContenderRecord(Base):
    """One contender's result in a race."""

    __tablename__ = "contenders"

    id: Mapped[int] = mapped_column(primary_key=True)
    race_id: Mapped[int] = mapped_column(ForeignKey("races.id"), index=True)
    name: Mapped[str] = mapped_column(String(100))
    us_per_step: Mapped[float | None]
    samples: Mapped[list[float]] = mapped_column(JSON)
    spread: Mapped[float | None]
    start_s: Mapped[float | None]
    peak_bytes: Mapped[int | None] = mapped_column(BigInteger)
    losses: Mapped[list[tuple[int, float | None]]] = mapped_column(JSON)
    """(step, loss) pairs; null where the loss was not a finite number."""
    accuracy: Mapped[float | None]
    error: Mapped[str | None] = mapped_column(Text)
