"""Connections and transactions, and how SQLite is made to lose nothing.

A SQLite store is in WAL mode while somebody writes it, so readers never wait and a killed process loses nothing that
was committed. The last writer to leave folds the log into the file and takes it out of WAL mode. So the file at rest
is whole by itself (it can be committed, copied, and read from a read-only folder), and reading it changes no byte.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from tuner.errors import UserError
from tuner.store.location import Location

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another one. A transaction takes milliseconds."""

_WRITE = "mnist_tune_write"
_REMAKE = "mnist_tune_remake"


class Database:
    """An open database: `reading()` and `writing()` give a session inside one transaction each."""

    def __init__(self, location: Location) -> None:
        """Connects.

        Raises:
            UserError: not a database, damaged, not reachable, or its driver is not installed.
        """
        self.location = location
        try:
            with self._explained():
                self.engine = _sqlite_engine(location) if location.is_sqlite else _server_engine(location)
        except (NoSuchModuleError, ModuleNotFoundError, ArgumentError) as error:
            raise UserError(
                f"The store {location.label} cannot be opened ({error}); check the URL and install its driver."
            ) from error
        self._writer = self.engine.execution_options(**{_WRITE: True})

    @contextmanager
    def connection(self, *, write: bool = False) -> Iterator[Connection]:
        """A connection in a transaction, committed at the end.

        Raises:
            UserError: the database cannot be used; see `_explanation`.
        """
        with self._explained(), (self._writer if write else self.engine).begin() as connection:
            yield connection

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """A connection in a transaction that may remake tables which others refer to.

        SQLite would take that for a broken foreign key, so here the foreign keys are checked once, at the end.
        """
        with self._explained(), self._writer.execution_options(**{_REMAKE: True}).begin() as connection:
            yield connection
            if self.location.is_sqlite:
                broken = sorted({row[0] for row in connection.exec_driver_sql("PRAGMA foreign_key_check")})
                if broken:
                    raise RuntimeError(
                        f"the migration left tables that refer to rows that are not there: {', '.join(broken)}"
                    )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one moment of the store."""
        with self.connection() as connection, Session(connection) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose changes are on disk when the block ends, or not there at all.

        Raises:
            UserError: the store is read-only, or another process kept it locked for 30 s.
        """
        self.check_writable()
        with self.connection(write=True) as connection, Session(connection) as session:
            yield session
            session.flush()

    def check_writable(self) -> None:
        """Raises `UserError` where the store is read-only."""
        if self.location.read_only:
            raise UserError(self._read_only_message())

    def close(self) -> None:
        """Closes all connections; the last one on a SQLite file leaves it whole by itself."""
        self.engine.dispose()
        if self.location.path and not self.location.read_only and self.location.path.exists():
            with self._explained():
                _fold_log(self.location)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what the user can mend into one sentence; a bug stays what it is."""
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            message = self._explanation(error)
            if message is None:
                raise
            raise UserError(message) from error

    def _explanation(self, error: DBAPIError | sqlite3.Error) -> str | None:
        label = self.location.label
        origin = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(origin, sqlite3.Error):
            if isinstance(error, OperationalError):
                return (
                    f"The database {label} cannot be reached ({_first_line(origin)}); check its URL and that it runs."
                )
            return None
        match _code(origin):
            case sqlite3.SQLITE_NOTADB:
                return f"{label} is not a SQLite database; name another file with --db, or move this one away."
            case sqlite3.SQLITE_CORRUPT:
                return f"The store {label} is damaged ({origin}); put a copy in its place, or name another with --db."
            case sqlite3.SQLITE_READONLY:
                return self._read_only_message()
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
                return f"The store {label} cannot be opened ({origin}); check its permissions and its folder's."
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return f"Another process kept the store {label} locked for {BUSY_TIMEOUT_S:.0f} s; try again later."
            case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
                return f"The store {label} cannot be written ({origin}); make room on its disk and try again."
        return None

    def _read_only_message(self) -> str:
        return (
            f"The store {self.location.label} is read-only; "
            "copy it to a folder that can be written and name the copy with --db."
        )


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no reason given"


def _connect(location: Location, flags: str = "") -> sqlite3.Connection:
    target = ":memory:"
    if location.path:
        target = f"{location.path.as_uri()}?mode={'ro' if location.read_only else 'rwc'}{flags}"
    # isolation_level None: the driver starts no transaction of its own, the engine below says BEGIN.
    connection = sqlite3.connect(
        target, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    # FULL: a commit is on the disk, not only in the kernel's memory, before it is acknowledged.
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _sqlite_engine(location: Location) -> Engine:
    flags = "&immutable=1" if location.read_only and _needs_immutable(location) else ""
    engine = create_engine(
        "sqlite://",
        creator=partial(_connect, location, flags),
        poolclass=QueuePool if location.path else StaticPool,
        json_serializer=_to_json,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes its lock at once, so that it waits its turn; a reader that turns writer would fail instead.
        options = connection.get_execution_options()
        connection.exec_driver_sql(f"PRAGMA foreign_keys={'OFF' if options.get(_REMAKE) else 'ON'}")
        if not options.get(_WRITE):
            connection.exec_driver_sql("BEGIN")
            return
        if location.path:
            _start_log(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _start_log(connection: Connection) -> None:
    """Puts the file into WAL mode, where it stays at least until this connection closes.

    SQLite does not always wait for other users of the file here, so this does. A file system that cannot share memory
    between processes keeps its rollback journal, which is as safe and only slower.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError as error:
            if not _is_busy(error.orig) or time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def _is_busy(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.Error) and _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 where the driver itself raised."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _needs_immutable(location: Location) -> bool:
    """Whether the file was left in WAL mode and can be read only by promising SQLite that nobody changes it."""
    try:
        with closing(_connect(location)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        assert location.path is not None
        log = location.path.with_name(location.path.name + "-wal")
        if _code(error) != sqlite3.SQLITE_CANTOPEN or (log.exists() and log.stat().st_size):
            raise
        return True
    return False


def _fold_log(location: Location) -> None:
    """Moves the log into the file and leaves WAL mode, where nobody else has the file open; else the last one does."""
    with closing(_connect(location)) as connection:
        connection.execute("PRAGMA busy_timeout=0")
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                connection.execute("PRAGMA journal_mode=DELETE").fetchone()
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise


def _server_engine(location: Location) -> Engine:
    return create_engine(location.url, pool_pre_ping=True, json_serializer=_to_json)


def _to_json(value: Any) -> str:
    """Strict JSON: NaN and infinity are no JSON, and not every database takes them."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
