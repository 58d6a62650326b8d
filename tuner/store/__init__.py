"""The persistent tuning database: append-only observations, and the lookup that finds the best of them.

with Store.open() as store:
    store.record(measurement, kernel=kernel, device=device, environment=environment)
    match = store.lookup(kernel, problem, device)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.kernel import Kernel
from tuner.store import read, record
from tuner.store.ladder import Rung, head_of
from tuner.store.location import default_path, locate
from tuner.store.lookup import Match, Remembered, best, look_up
from tuner.store.migrate import prepare
from tuner.store.models import DeviceRecord, ObservationRecord
from tuner.store.rows import BaselineRow, ContenderRow, Observation, RaceRow, new_uuid, now
from tuner.store.session import Database
from tuner.types import CacheState, Device, Environment, Kind, Measurement, Problem, Status

__all__ = [
    "BaselineRow",
    "ContenderRow",
    "Match",
    "Observation",
    "RaceRow",
    "Rung",
    "Store",
    "default_path",
]


class Store:
    """An open store. Every call is one short transaction, committed when it returns; many processes may share one.

    Calls that write raise `UserError` where the store is read-only, full, or locked by another process for 30 s.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: list[Remembered] = []

    @classmethod
    def open(cls, url: str | Path | None = None) -> Store:
        """Open the store that `url` names: a file, or an SQLAlchemy URL.

        None is MNIST_TUNE_DB, else `default_path()`. A file that is not there is made, an older store is upgraded.

        Raises:
            UserError: not a database, a newer version, a folder that does not exist, a server that cannot be reached.
        """
        database = Database(locate(url))
        try:
            prepare(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        """Close the connections. A SQLite file that nobody else has open is then whole by itself."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The SQLAlchemy URL, with its password."""
        return self._database.location.url.render_as_string(hide_password=False)

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for a server or a store in memory."""
        return self._database.location.path

    @property
    def label(self) -> str:
        """For people: the file, or the URL without its password."""
        return self._database.location.label

    @property
    def read_only(self) -> bool:
        return self._database.location.read_only

    def check_writable(self) -> None:
        """To be asked before long work whose result is to be stored.

        Raises:
            UserError: the store is read-only.
        """
        self._database.check_writable()

    def record(self, measurement: Measurement, *, kernel: Kernel, device: Device, environment: Environment) -> str:
        """Append `measurement`; the row's UUID. When this returns, the row is on disk.

        Raises:
            ValueError: the measurement is another kernel's, or ok without a positive time.
        """
        if measurement.problem.kernel != kernel.name:
            raise ValueError(f"{measurement.problem.label} is not a problem of {kernel.name}")
        row = Observation(
            uuid=new_uuid(),
            measurement=measurement,
            device=device,
            environment=environment,
            source_hash=kernel.source_hash,
            space_hash=kernel.space(measurement.problem, device).hash,
            created_at=now(),
        )
        with self._database.writing() as session:
            record.add_observation(session, row)
        return row.uuid

    def observations(
        self,
        *,
        kernel: str | None = None,
        problem: Problem | None = None,
        device: Device | None = None,
        source_hash: str | None = None,
        kind: Kind | None = None,
    ) -> list[Observation]:
        """The rows that meet all the conditions given, in the order in which they were recorded."""
        conditions = []
        if kernel is not None:
            conditions.append(ObservationRecord.kernel == kernel)
        if problem is not None:
            conditions += [ObservationRecord.kernel == problem.kernel, ObservationRecord.problem_key == problem.key]
        if device is not None:
            conditions.append(DeviceRecord.key == device.key)
        if source_hash is not None:
            conditions.append(ObservationRecord.source_hash == source_hash)
        if kind is not None:
            conditions.append(ObservationRecord.kind == kind.value)
        with self._database.reading() as session:
            return read.observations(session, *conditions)

    def lookup(self, kernel: Kernel, problem: Problem, device: Device) -> Match:
        """The configuration to use: from the first rung of the ladder that holds (see `tuner.store.ladder`).

        Raises:
            ValueError: `problem` is another kernel's, or its search space is empty.
        """
        with self._database.reading() as session:
            return look_up(session, kernel, problem, device, self._remembered)

    def best(
        self, problem: Problem, device: Device, source_hash: str, kind: Kind = Kind.MEASURED
    ) -> Observation | None:
        """The fastest row of exactly this problem, device, source and kind that still stands."""
        with self._database.reading() as session:
            return best(session, problem, device, source_hash, kind)

    def quarantine(
        self,
        observation_uuid: str,
        status: Status,
        message: str,
        environment: Environment,
        *,
        match: Match | None = None,
    ) -> str:
        """Append a row that says that the configuration of `observation_uuid` failed; the new row's UUID.

        Lookups do not serve the configuration again for that problem, device and source, unless it is measured anew.
        With `match`, the failure is booked where the configuration was tried (the problem and device of the lookup)
        and not where it was observed: what another device measured stays true there. A read-only store remembers the
        failure until it is closed.

        Raises:
            ValueError: no such row, or `status` is ok.
        """
        with self._database.reading() as session:
            found = read.observations(session, ObservationRecord.uuid == observation_uuid)
        if not found:
            raise ValueError(f"the store has no observation {observation_uuid}")
        row = record.quarantined(
            replace(found[0], environment=environment),
            status,
            message,
            problem=match.problem if match else found[0].measurement.problem,
            device=match.device if match else found[0].device,
            space_hash=match.space_hash if match else found[0].space_hash,
        )
        if self.read_only:
            self._remembered.append(Remembered(head_of(row), row.source_hash))
        else:
            with self._database.writing() as session:
                record.add_observation(session, row)
        return row.uuid

    def record_baseline(
        self,
        problem: Problem,
        device: Device,
        environment: Environment,
        library: str,
        samples_us: Sequence[float],
        cache: CacheState,
    ) -> str:
        """Append a library's time for `problem`, us per launch; the row's UUID.

        Raises:
            ValueError: no samples, or one that is not a positive time.
        """
        with self._database.writing() as session:
            return record.add_baseline(session, problem, device, environment, library, samples_us, cache)

    def baselines(self, device: Device) -> list[BaselineRow]:
        """The libraries' times on `device`, oldest first."""
        with self._database.reading() as session:
            return read.baselines(session, device)

    def record_race(self, race: RaceRow) -> str:
        """Append `race` with its contenders; its UUID."""
        with self._database.writing() as session:
            return record.add_race(session, race)

    def races(self, device: Device | None = None) -> list[RaceRow]:
        """The races, oldest first; those on `device` where it is given."""
        with self._database.reading() as session:
            return read.races(session, device)

    def devices(self) -> list[Device]:
        """Every device that the store has rows for, in the order of their keys."""
        with self._database.reading() as session:
            return read.devices(session)
