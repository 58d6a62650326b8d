"""Nothing that was acknowledged is lost: not to `kill -9`, not to a second writer, not to the folding of the log."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import closing
from pathlib import Path

import pytest

from tests.tuner.store.conftest import ENVIRONMENT, ROOT, T4, Bench, Product, config, measured
from tuner.errors import UserError
from tuner.store import Store

RECORDER = """
import sys
from pathlib import Path
from tests.tuner.store.conftest import Bench, Product, config, measured
from tuner.store import Store

sys.stdin.readline()
bench = Bench(Store.open(sys.argv[1]), Product(Path(sys.argv[2])))
problem = bench.problem()
for number in range(int(sys.argv[3])):
    if sys.argv[4] == "reopen":
        bench.store.close()
        bench.store = Store.open(sys.argv[1])
    print(bench.record(measured(problem, config(16 << number % 4, 1), 5.0 + number)), flush=True)
bench.store.close()
"""


def recorder(file: Path, kernel: Product, count: int, how: str = "stay") -> subprocess.Popen[str]:
    """A process that, once it is told to `go`, records `count` rows and says each row's UUID when it is stored.

    With "reopen" it closes the store after each, so the log is folded all the while.
    """
    arguments = [sys.executable, "-c", RECORDER, str(file), str(kernel.source), str(count), how]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def check(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_kill_9_at_twenty_moments_loses_no_acknowledged_row(file: Path, kernel: Product) -> None:
    moments = random.Random(20)
    acknowledged: list[str] = []
    # The next two import what they need meanwhile, which takes a hundred times as long as what is tested.
    ready = deque(recorder(file, kernel, 10_000, how) for how in ("stay", "reopen"))
    for turn in range(20):
        process = ready.popleft()
        if turn < 18:
            ready.append(recorder(file, kernel, 10_000, "reopen" if turn % 2 else "stay"))
        go(process)
        assert process.stdout is not None
        # Some rows by number, then a random instant: while it computes, commits, folds the log, or answers.
        for _ in range(moments.randrange(12)):
            acknowledged.append(process.stdout.readline().strip())
        time.sleep(moments.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        rest, problems = process.communicate()
        assert process.returncode == -signal.SIGKILL, problems
        acknowledged += [line for line in rest.splitlines() if len(line) == 36]

        with Store.open(file) as store:
            rows = store.observations()
            stored = {row.uuid for row in rows}
        assert set(acknowledged) <= stored
        assert all(row.measurement.samples_us and row.device == T4 for row in rows)
        check(file)
        # A rollback journal that was just begun holds nothing; the next writer removes it.
        assert {path.name for path in file.parent.iterdir()} <= {"tuning.db", "tuning.db-journal"}
    assert len(acknowledged) > 50


def test_two_processes_and_a_reader_at_once(file: Path, kernel: Product) -> None:
    count = 40
    writers = [recorder(file, kernel, count) for _ in range(2)]
    for writer in writers:
        go(writer)
    seen = 0
    while any(writer.poll() is None for writer in writers):
        # Opening, reading and closing all the while: the closing must not take the log from the writers.
        with Store.open(file) as store:
            rows = len(store.observations())
        assert rows >= seen
        seen = rows
        time.sleep(0.01)
    answers = []
    for writer in writers:
        output, problems = writer.communicate()
        assert (problems, writer.returncode) == ("", 0)
        answers += output.split()
    with Store.open(file) as store:
        assert sorted(row.uuid for row in store.observations()) == sorted(answers)
        assert len(answers) == 2 * count
        assert len(store.devices()) == 1
    check(file)
    assert list(file.parent.iterdir()) == [file]


def test_threads_share_one_store(bench: Bench) -> None:
    problem = bench.problem()

    def work(number: int) -> None:
        for step in range(10):
            bench.record(measured(problem, config(16, 1 + number), 5.0 + step))
            bench.lookup(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bench.store.observations()) == 40


def test_the_last_one_out_folds_the_log(file: Path, kernel: Product) -> None:
    first, second = Store.open(file), Store.open(file)
    log = file.with_name("tuning.db-wal")
    for store in (first, second):
        Bench(store, kernel).record(measured(kernel.problem(32, 784, 128), config(), 5.0))
    assert log.exists()
    first.close()
    assert len(second.observations()) == 2
    Bench(second, kernel).record(measured(kernel.problem(32, 784, 128), config(), 4.0))
    second.close()
    assert list(file.parent.iterdir()) == [file]
    with Store.open(file) as store:
        assert len(store.observations()) == 3


def test_a_reader_that_stays_does_not_keep_rows_out_of_the_file(file: Path, kernel: Product) -> None:
    reader = Store.open(file)
    with Store.open(file) as writer:
        Bench(writer, kernel).record(measured(kernel.problem(32, 784, 128), config(), 5.0))
        assert len(reader.observations()) == 1
    # The file alone, as a copy or a commit would take it.
    copy = file.with_name("copy.db")
    copy.write_bytes(file.read_bytes())
    with Store.open(copy) as store:
        assert len(store.observations()) == 1
    reader.close()
    assert sorted(path.name for path in file.parent.iterdir()) == ["copy.db", "tuning.db"]


def test_how_sqlite_is_set_up(bench: Bench) -> None:
    with bench.store._database.connection(write=True) as connection:
        values = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    # synchronous 2 is FULL: the log is on the disk before a commit returns.
    assert values == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_a_row_that_fails_midway_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(Exception, match="not JSON serializable"):
        bench.record(measured(bench.problem(), config(), 5.0, extra={"bad": object()}))
    assert bench.store.observations() == []
    assert bench.store.devices() == []


def test_a_store_that_another_process_keeps_locked(
    file: Path, kernel: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(file).close()
    monkeypatch.setattr("tuner.store.session.BUSY_TIMEOUT_S", 0.0)
    with Store.open(file) as store, closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match=r"Another process kept the store .* locked for 0 s; try again later\."):
            Bench(store, kernel).record(measured(kernel.problem(32, 784, 128), config(), 5.0))
        other.execute("COMMIT")
        Bench(store, kernel).record(measured(kernel.problem(32, 784, 128), config(), 5.0))


def test_a_disk_that_is_full(bench: Bench) -> None:
    with bench.store._database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    row = measured(bench.problem(), config(), 5.0, message="x" * 10_000)
    with pytest.raises(UserError, match=r"cannot be written \(database or disk is full\); make room on its disk"):
        bench.record(row)
    with Store.open(bench.store.path) as store:
        check(store.path)


def test_a_search_that_reads_while_it_writes_sees_its_own_rows(bench: Bench) -> None:
    for step in range(5):
        bench.record(measured(bench.problem(), config(), 5.0 - step / 10))
        assert len(bench.store.observations()) == step + 1
    assert bench.lookup(bench.problem()).observation.environment == ENVIRONMENT
