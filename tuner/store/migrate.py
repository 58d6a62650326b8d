"""Brings a store up to the version that this package reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DatabaseError

from tuner.errors import UserError
from tuner.store.models import Base
from tuner.store.session import Database

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0001"
"""The newest version that this package knows; versions are numbers of four digits."""

VERSION_TABLE = "mnist_tune_version"
"""Our own, so that Optuna may keep its tables and its `alembic_version` in the same database."""

MIGRATIONS = Path(__file__).with_name("migrations")

_POSTGRESQL_LOCK = 0x6D6E6973
"""Any number of our own ("mnis"); all processes that upgrade take the lock of this number."""


def prepare(database: Database) -> None:
    """Makes the tables of an empty store, upgrades an older one; one query where the store is up to date.

    Raises:
        UserError: the store is newer than this package, or must be upgraded but is read-only, or the file belongs to
            another program.
    """
    version = stored_version(database)
    if version == HEAD:
        return
    _refuse_newer(database, version)
    if database.location.read_only:
        raise UserError(
            f"The store {database.location.label} is read-only and has {_named(version)}, this package reads version "
            f"{HEAD}; copy it to where it can be written and name that with --db."
        )
    # The transaction is the lock: another process that opens the store waits here, then finds the work done.
    with database.migrating() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _POSTGRESQL_LOCK})
        version = _version(connection)
        if version == HEAD:
            return
        _refuse_newer(database, version)
        _refuse_foreign(database, connection, version)
        upgrade(connection)


def stored_version(database: Database) -> str | None:
    """The store's version; None where it has no tables of ours yet.

    Raises:
        UserError: not a database, damaged, or not reachable.
    """
    try:
        with database.engine.connect() as connection:
            found: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
        return found
    except DatabaseError:
        # Most likely there is no such table. Whatever else it was comes back here, and is explained.
        with database.connection() as connection:
            return _version(connection)


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Runs the migrations up to `revision` in the connection's transaction."""
    from alembic import command

    command.upgrade(_alembic(connection), revision)


def downgrade(connection: Connection, revision: str) -> None:
    """Takes the migrations back to `revision` ("base": no tables). What only newer versions can hold is lost."""
    from alembic import command

    command.downgrade(_alembic(connection), revision)


def _alembic(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return version


def _refuse_newer(database: Database, version: str | None) -> None:
    # A version that is not a number of ours can only come from a later package too.
    if version is not None and not (version.isdigit() and int(version) < int(HEAD)):
        raise UserError(
            f"The store {database.location.label} has version {version}, this package reads up to version {HEAD}; "
            "upgrade mnist-tune, or name another store with --db."
        )


def _refuse_foreign(database: Database, connection: Connection, version: str | None) -> None:
    if version is None:
        taken = sorted(set(inspect(connection).get_table_names()) & set(Base.metadata.tables))
        if taken:
            raise UserError(
                f"{database.location.label} is not a tuning store, but has tables of the same name "
                f"({', '.join(taken)}); name another store with --db."
            )


def _named(version: str | None) -> str:
    return "no tables yet" if version is None else f"version {version}"
