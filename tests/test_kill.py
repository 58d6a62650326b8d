"""`kill -9` at any moment of a search: no row is lost or half-written, no process stays, and the search goes on."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.commands import mnist_tune, start, wait_until_gone
from tuner.store import Store
from tuner.store.rows import Observation

PROBLEMS = """\
softmax_cross_entropy 8x10
gather_rows 4x32x2
softmax_cross_entropy 32x10
gather_rows 8x32x1
"""
TURNS = 20


def search(problems: Path, file: Path, trials: int) -> list[str | Path]:
    return ["search", "--shapes", problems, "--device", "cpu", "--trials", str(trials), "--db", file]


def rows(file: Path) -> dict[str, Observation]:
    """Every row, read back in full."""
    with Store.open(f"sqlite:///{file}?mode=ro") as store:
        return {row.uuid: row for row in store.observations()}


def wait_for_events(process: subprocess.Popen[str], count: int) -> None:
    """Read what a search prints until it has begun or ended a problem `count` times."""
    assert process.stdout is not None
    while count > 0 and (line := process.stdout.readline()):
        count -= line.startswith("[")


def check_whole(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def check_written(found: dict[str, Observation]) -> None:
    for row in found.values():
        seen = row.measurement
        assert row.device.name == "Tesla T4"
        assert seen.ok == bool(seen.samples_us) == (seen.median_us is not None)
        assert not seen.ok or seen.verified_by == "emulation"


def test_a_search_that_is_killed_twenty_times_loses_nothing_and_ends(tmp_path: Path) -> None:
    problems, file = tmp_path / "problems.txt", tmp_path / "tuning.db"
    problems.write_text(PROBLEMS)
    # Fills the cache for the others.
    assert mnist_tune(*search(problems, file, 3)).returncode == 0
    before = rows(file)
    moments = random.Random(5)
    interrupted = 0
    for turn in range(TURNS):
        # One more trial each time, so that there is always something left to do.
        process = start(*search(problems, file, 4 + turn), options={"stderr": subprocess.DEVNULL})
        # A problem by number, then a random instant: while it asks, compiles, ranks, verifies or records.
        wait_for_events(process, moments.randrange(2 * PROBLEMS.count("\n")))
        time.sleep(moments.uniform(0, 0.1))
        before |= rows(file)
        if turn % 2:
            process.kill()  # the command alone: its children must notice
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        interrupted += process.returncode == -signal.SIGKILL
        assert wait_until_gone(process.pid) == []
        after = rows(file)
        assert before.items() <= after.items()
        check_written(after)
        check_whole(file)
        before = after
    assert interrupted > TURNS / 2
    resumed = mnist_tune(*search(problems, file, 4 + TURNS), "--json")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert before.items() <= rows(file).items()
    # The log is folded again: the file alone is the store.
    assert {path.name for path in tmp_path.iterdir()} == {"problems.txt", "tuning.db"}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=lambda end: end.name)
def test_no_compiler_process_outlives_the_search(tmp_path: Path, end: signal.Signals) -> None:
    process = start("search", "--shapes", "32x64x64", "--device", "cpu", "--trials", "5000", "--db", tmp_path / "t.db")
    assert process.stdout is not None
    assert "No GPU is used" in process.stdout.readline()
    time.sleep(1.5)  # the pool is at work
    process.send_signal(end)
    output, complaints = process.communicate(timeout=60)
    assert wait_until_gone(process.pid) == []
    if end is signal.SIGINT:
        assert (process.returncode, complaints) == (130, "")
        assert "Everything recorded so far is stored" in output
