"""Where a store may be, and the one sentence where it cannot be there."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import platformdirs
import pytest

from tests.tuner.store.conftest import ENVIRONMENT, ROOT, T4, Bench, Product, config, measured
from tuner.errors import UserError
from tuner.store import Rung, Store, default_path, location
from tuner.types import Status


def sentence(url: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        Store.open(url)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.fixture
def filled(file: Path, empty: Path, kernel: Product) -> Path:
    """A store with one row, closed."""
    shutil.copyfile(empty, file)
    with Store.open(file) as store:
        Bench(store, kernel).record(measured(kernel.problem(32, 784, 128), config(), 5.0))
    return file


class TestNames:
    def test_a_path_a_string_and_a_url_name_the_same_file(self, filled: Path) -> None:
        for name in (filled, str(filled), f"sqlite:///{filled}"):
            with Store.open(name) as store:
                assert store.path == filled
                assert store.url == f"sqlite:///{filled}"
                assert len(store.observations()) == 1

    def test_characters_that_mean_something_in_a_url(self, tmp_path: Path) -> None:
        file = tmp_path / "a b?mode=ro#%41.db"
        Store.open(file).close()
        assert [path.name for path in tmp_path.iterdir()] == [file.name]

    def test_a_relative_path_and_a_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("one.db", "~/two.db"):
            Store.open(name).close()
        assert {path.name for path in tmp_path.iterdir()} == {"one.db", "two.db"}

    def test_the_environment_variable(self, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MNIST_TUNE_DB", str(filled))
        with Store.open() as store:
            assert store.path == filled

    def test_a_home_folder_that_is_nobodys(self) -> None:
        with pytest.raises(UserError, match=r"The home folder in ~no-such-user/x\.db is nobody's; write .* in full\."):
            location.locate("~no-such-user/x.db")

    def test_a_device_is_no_file(self) -> None:
        with pytest.raises(UserError, match=r"^/dev/null is not a regular file, so it cannot hold a store; name"):
            location.locate("/dev/null")

    def test_a_password_is_not_shown(self) -> None:
        place = location.locate("postgresql://me:secret@host/tuning")
        assert place.label == "postgresql://me:***@host/tuning"
        assert (place.path, place.is_sqlite) == (None, False)


class TestDefault:
    def test_in_a_checkout_it_is_the_repositorys(self) -> None:
        assert default_path() == ROOT / "tuning.db"

    def test_installed_it_is_a_copy_of_the_packaged_one(
        self, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "site-packages" / "tuner" / "store"
        package.mkdir(parents=True)
        (package / "tuning.db").write_bytes(filled.read_bytes())
        monkeypatch.setattr(location, "__file__", str(package / "location.py"))
        monkeypatch.setattr(platformdirs, "user_data_dir", lambda name: str(tmp_path / "data" / name))
        monkeypatch.delenv("MNIST_TUNE_DB")
        expected = tmp_path / "data" / "mnist-tune" / "tuning.db"

        assert default_path() == expected
        assert expected.read_bytes() == filled.read_bytes()
        assert [path.name for path in expected.parent.iterdir()] == ["tuning.db"]
        with Store.open() as store:
            store.quarantine(store.observations()[0].uuid, Status.WRONG, "", ENVIRONMENT)
        with Store.open() as store:
            assert len(store.observations()) == 2
        assert (package / "tuning.db").read_bytes() == filled.read_bytes()

    def test_installed_without_a_packaged_one_it_starts_empty(self, tmp_path: Path) -> None:
        target = tmp_path / "data" / "tuning.db"
        assert location.seeded(target, tmp_path / "none.db") == target
        assert not target.exists()
        assert target.parent.is_dir()

    def test_a_data_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("a file")
        with pytest.raises(UserError, match=r"data folder .* cannot be written .*; name a store with --db"):
            location.seeded(tmp_path / "data" / "mnist-tune" / "tuning.db", tmp_path / "none.db")


class TestRefused:
    def test_a_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        assert sentence(tmp_path / "nowhere" / "tuning.db") == (
            f"The folder {tmp_path}/nowhere does not exist; make it, or name another store with --db."
        )

    def test_a_folder(self, tmp_path: Path) -> None:
        assert (
            sentence(tmp_path)
            == f"{tmp_path} is a folder; name the store's file in it, for example {tmp_path}/tuning.db."
        )

    def test_a_name_that_is_too_long(self, tmp_path: Path) -> None:
        assert "cannot be reached (File name too long)" in sentence(tmp_path / ("x" * 300))

    @pytest.mark.parametrize(
        "content", [b"not a database, but longer than its header\n" * 40, b"no", b"\x7fELF" * 4096]
    )
    def test_a_file_that_is_not_a_database(self, file: Path, content: bytes) -> None:
        file.write_bytes(content)
        expected = f"{file} is not a SQLite database; name another file with --db, or move this one away."
        assert sentence(file) == expected
        assert sentence(f"sqlite:///{file}?mode=ro") == expected
        assert file.read_bytes() == content
        assert list(file.parent.iterdir()) == [file]

    def test_a_damaged_file(self, filled: Path) -> None:
        content = bytearray(filled.read_bytes())
        content[4096:] = b"\xa5" * (len(content) - 4096)
        filled.write_bytes(content)
        assert sentence(filled).startswith(f"The store {filled} is damaged (")

    def test_a_file_that_was_cut_off(self, filled: Path) -> None:
        filled.write_bytes(filled.read_bytes()[: 3 * 4096 + 100])
        with pytest.raises(UserError, match="is damaged"), Store.open(filled) as store:
            store.observations()

    @pytest.mark.parametrize("url", ["postgresql:/host", "://", "sqlite:/x://"])
    def test_a_url_that_is_none(self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert "does not exist" in sentence(url) or "neither a file nor a database URL" in sentence(url)

    def test_an_unknown_database(self) -> None:
        assert "check the URL and install its driver" in sentence("nosuchdatabase://host/name")

    def test_a_driver_that_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg2", None)
        assert "install its driver" in sentence("postgresql+psycopg2://host/name")

    def test_an_unknown_option_of_a_file(self, file: Path) -> None:
        assert "unknown option 'cache'" in sentence(f"sqlite:///{file}?cache=shared")


class TestReadOnly:
    @pytest.fixture(params=["mode=ro", "immutable=1", "permission of the file", "permission of the folder"])
    def name(self, request: pytest.FixtureRequest, filled: Path):
        """What opens `filled` so that it cannot be written."""
        match request.param:
            case "permission of the file":
                filled.chmod(0o444)
                yield str(filled)
            case "permission of the folder":
                filled.parent.chmod(0o555)
                yield str(filled)
                filled.parent.chmod(0o755)
            case option:
                yield f"sqlite:///{filled}?{option}"

    def test_it_is_looked_up_and_left_alone(self, name: str, filled: Path, kernel: Product) -> None:
        before = filled.read_bytes()
        with Store.open(name) as store:
            assert store.read_only
            assert Bench(store, kernel).lookup(kernel.problem(32, 784, 128)).expected_us == 5.0
            assert list(filled.parent.iterdir()) == [filled]
        assert filled.read_bytes() == before
        assert list(filled.parent.iterdir()) == [filled]

    def test_writing_it_gets_one_sentence(self, name: str, filled: Path, kernel: Product) -> None:
        with Store.open(name) as store:
            expected = (
                f"The store {filled} is read-only; copy it to a folder that can be written and name the copy with --db."
            )
            with pytest.raises(UserError) as caught:
                Bench(store, kernel).record(measured(kernel.problem(32, 784, 128), config(), 4.0))
            assert str(caught.value) == expected

    def test_a_failure_is_remembered_while_it_is_open(self, name: str, kernel: Product) -> None:
        problem = kernel.problem(32, 784, 128)
        for _ in range(2):
            with Store.open(name) as store:
                match = Bench(store, kernel).lookup(problem)
                assert match.observation is not None
                store.quarantine(match.observation.uuid, Status.WRONG, "", ENVIRONMENT, match=match)
                again = Bench(store, kernel).lookup(problem)
                assert again.rung is Rung.DEFAULT
                reason = "config: BLOCK_N=64 STAGES=2 (32x784x128): its latest row is wrong"
                assert again.reasons[0] == (Rung.EXACT, reason)
                assert len(store.observations()) == 1

    def test_a_file_that_was_left_in_wal_mode_can_still_be_read(
        self, filled: Path, kernel: Product, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(sqlite3.connect(filled)) as connection:
            assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        before = filled.read_bytes()
        assert before[18:20] == b"\x02\x02"
        # Root may write any folder, so let SQLite meet one that cannot hold its shared-memory file.
        (filled.parent / "tuning.db-shm").mkdir()
        with Store.open(f"sqlite:///{filled}?mode=ro") as store:
            assert Bench(store, kernel).lookup(kernel.problem(32, 784, 128)).expected_us == 5.0
        assert filled.read_bytes() == before

    def test_a_file_that_is_not_there_cannot_be_made(self, file: Path) -> None:
        file.parent.chmod(0o555)
        assert "does not exist and cannot be made, its folder is read-only" in sentence(file)
        file.parent.chmod(0o755)


def test_reading_changes_no_byte_and_leaves_no_file(filled: Path, kernel: Product) -> None:
    before, when = filled.read_bytes(), filled.stat().st_mtime_ns
    with Store.open(filled) as store:
        bench = Bench(store, kernel)
        bench.lookup(kernel.problem(32, 784, 128))
        bench.lookup(kernel.problem(64, 784, 128))
        assert (store.observations(), store.baselines(T4), store.races(), store.devices()) != ()
        assert list(filled.parent.iterdir()) == [filled]
    assert (filled.read_bytes(), filled.stat().st_mtime_ns) == (before, when)
    assert list(filled.parent.iterdir()) == [filled]


def test_a_closed_store_is_one_file_out_of_wal_mode(filled: Path) -> None:
    assert list(filled.parent.iterdir()) == [filled]
    # Bytes 18 and 19 of a SQLite file: 1 is a rollback journal, 2 is WAL (sqlite.org/fileformat2.html).
    assert filled.read_bytes()[18:20] == b"\x01\x01"
