"""Stores of every version open, are upgraded once, and are refused with one sentence where that cannot be."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from tests.tuner.store.conftest import ROOT, T4, Bench, Product, config, measured
from tuner.errors import UserError
from tuner.store import Store, migrate
from tuner.store.location import locate
from tuner.store.models import Base
from tuner.store.session import Database
from tuner.types import CacheState, Kind, Status

SNAPSHOT = Path(__file__).with_name("version_0001.sql")

ADDS_A_COLUMN = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.create_table("clocks", sa.Column("id", sa.Integer(), primary_key=True))
    with op.batch_alter_table("observations") as table:
        table.add_column(sa.Column("energy_j", sa.Double()))
    # SQLite makes the table anew for this, while other tables refer to it.
    with op.batch_alter_table("devices") as table:
        table.alter_column("name", type_=sa.Text(), existing_nullable=False)
    {then}


def downgrade():
    raise AssertionError("a store never goes back to an older version")
"""


def restore(file: Path) -> None:
    """Makes the store as version 0001 left it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SNAPSHOT.read_text())


def tables(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def version(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT version_num FROM mnist_tune_version").fetchone()[0]


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes this package one version newer, by a migration whose last line is `then`."""

    def make(then: str = "pass") -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(migrate.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / "v0002_energy.py").write_text(ADDS_A_COLUMN.format(then=then))
        monkeypatch.setattr(migrate, "MIGRATIONS", folder)
        monkeypatch.setattr(migrate, "HEAD", "0002")

    return make


def test_the_head_is_the_last_migration() -> None:
    assert ScriptDirectory(str(migrate.MIGRATIONS)).get_heads() == [migrate.HEAD]


def test_the_migrated_tables_are_those_of_the_models(file: Path) -> None:
    Store.open(file).close()
    database = Database(locate(file))
    with database.connection() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": migrate.VERSION_TABLE}
        )
        assert compare_metadata(context, Base.metadata) == []
        inspector = inspect(connection)
        for table in Base.metadata.tables.values():
            foreign_keys = {key["name"] for key in inspector.get_foreign_keys(table.name)}
            assert foreign_keys == {key.name for key in table.foreign_key_constraints}
    database.close()


def test_the_models_are_valid_for_postgresql() -> None:
    for table in Base.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_file_becomes_a_store(file: Path, content: bytes | None) -> None:
    if content is not None:
        file.write_bytes(content)
    with Store.open(file) as store:
        assert store.observations() == []
    assert version(file) == migrate.HEAD
    assert tables(file) == {*Base.metadata.tables, "mnist_tune_version"}


def test_a_store_of_version_1_keeps_its_rows(file: Path, kernel: Product) -> None:
    restore(file)
    with Store.open(file) as store:
        good, bad, guess = store.observations()
        assert (good.measurement.median_us, good.measurement.registers) == (12.5, 96)
        assert (good.measurement.cache, good.measurement.extra) == (CacheState.HOT, {"note": "kept"})
        assert bad.measurement.status is Status.WRONG
        assert guess.measurement.kind is Kind.PREDICTED
        assert good.device == T4
        assert store.baselines(T4)[0].median_us == 3.75
        assert store.races()[0].speedup == 45.0
        match = Bench(store, kernel).lookup(kernel.problem(32, 784, 128))
        assert (match.config, match.expected_us) == (config(64, 2), 12.5)


def test_an_older_store_is_upgraded_and_keeps_its_rows(file: Path, next_version) -> None:
    restore(file)
    next_version()
    Store.open(file).close()
    assert version(file) == "0002"
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*), count(energy_j) FROM observations").fetchone() == (3, 0)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        [(definition,)] = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'devices'").fetchall()
        assert "name TEXT NOT NULL" in definition


def test_an_upgraded_store_checks_foreign_keys_again(file: Path, next_version) -> None:
    restore(file)
    next_version()
    with Store.open(file) as store, store._database.connection() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_an_upgrade_that_would_leave_rows_without_their_device_is_undone(file: Path, next_version) -> None:
    restore(file)
    next_version(then="op.execute('DELETE FROM devices')")
    with pytest.raises(RuntimeError, match="refer to rows that are not there: baselines, observations, races"):
        Store.open(file)
    assert version(file) == "0001"
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM devices").fetchone() == (1,)


def test_an_upgrade_that_fails_changes_nothing(file: Path, next_version) -> None:
    restore(file)
    next_version(then="raise RuntimeError('in the middle')")
    with pytest.raises(RuntimeError, match="in the middle"):
        Store.open(file)
    assert version(file) == "0001"
    assert "clocks" not in tables(file)


def test_down_and_up_again(file: Path) -> None:
    restore(file)
    database = Database(locate(file))
    with database.connection(write=True) as connection:
        migrate.downgrade(connection, "base")
        assert set(inspect(connection).get_table_names()) == {"mnist_tune_version"}
    database.close()
    with Store.open(file) as store:
        assert store.observations() == []
    assert version(file) == migrate.HEAD


def test_a_newer_store_is_refused_and_left_alone(file: Path) -> None:
    restore(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE mnist_tune_version SET version_num = '0042'")
        connection.commit()
    before = file.read_bytes()
    with pytest.raises(UserError) as caught:
        Store.open(file)
    assert str(caught.value) == (
        f"The store {file} has version 0042, this package reads up to version {migrate.HEAD}; "
        "upgrade mnist-tune, or name another store with --db."
    )
    assert file.read_bytes() == before


def test_an_older_store_that_is_read_only_is_refused(file: Path, next_version) -> None:
    restore(file)
    next_version()
    with pytest.raises(UserError, match="is read-only and has version 0001, this package reads version 0002; copy it"):
        Store.open(f"sqlite:///{file}?mode=ro")


def test_an_empty_file_that_is_read_only_is_refused(file: Path) -> None:
    file.touch()
    with pytest.raises(UserError, match="is read-only and has no tables yet"):
        Store.open(f"sqlite:///{file}?mode=ro")


def test_optunas_tables_may_be_in_the_same_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('v3.2.0.a')")
        connection.commit()
    Store.open(file).close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("v3.2.0.a",)]
    assert version(file) == migrate.HEAD


def test_another_programs_tables_of_the_same_name_are_refused(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE devices (serial TEXT)")
    with pytest.raises(UserError, match=r"is not a tuning store, but has tables of the same name \(devices\)"):
        Store.open(file)
    assert tables(file) == {"devices"}


def test_many_processes_may_make_the_store_at_once(file: Path) -> None:
    program = "import sys; from tuner.store import Store; Store.open(sys.argv[1]).close()"
    others = [
        subprocess.Popen([sys.executable, "-c", program, str(file)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outcomes = [(other.communicate()[1], other.returncode) for other in others]
    assert outcomes == [("", 0)] * 3
    assert version(file) == migrate.HEAD


def test_opening_a_store_that_is_up_to_date_is_fast_and_silent(
    file: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    Store.open(file).close()
    assert capfd.readouterr() == ("", "")
    times = []
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            start = time.perf_counter()
            store = Store.open(file)
            times.append(time.perf_counter() - start)
            store.close()
    assert min(times) < 0.05
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_alembic_is_imported_only_for_an_upgrade(bench: Bench) -> None:
    bench.record(measured(bench.problem(), config(), 5.0))
    program = (
        "import sys; from tuner.store import Store; Store.open(sys.argv[1]).close(); "
        "assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(bench.store.path)], cwd=ROOT, check=True)
