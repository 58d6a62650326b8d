"""Contenders that start at once: who may, what it does to their times, and that samples are beside nothing."""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.trainer.fakes import Compiles, Dies, Fake, Hangs, Logged, Second, Third
from trainer import race as race_module
from trainer.contenders import Task
from trainer.contenders.model import Eager
from trainer.lanes import LocalLane
from trainer.mlp import Network, fresh_weights
from trainer.race import Race, race
from trainer.schedule import Schedule
from trainer.turns import BESIDE, IN_TURNS, Turns, _hold, autotune_in_turns

SCHEDULE = Schedule(steps=40, repeats=2, warmup=20, lead_in=0)
ONES = np.ones(SCHEDULE.total, np.float32)


@pytest.fixture
def task() -> Task:
    rng = np.random.default_rng(0)
    return Task(
        weights=fresh_weights(Network(8, layers=1, batch=4), seed=1),
        images=rng.random((16, 784), dtype=np.float32).astype(np.float16),
        labels=rng.integers(0, 10, 16).astype(np.uint8),
        order=rng.integers(0, 16, (SCHEDULE.total, 4)).astype(np.int32),
        lr=0.05,
        steps_per_call=10,
        device="cpu",
    )


@pytest.fixture(autouse=True)
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own losses are 1 throughout, as the fakes' are."""
    monkeypatch.setattr(race_module, "_yardstick", lambda *_: (ONES, ONES))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "log"
    monkeypatch.setenv("FAKES_LOG", str(file))
    return file


Span = tuple[str, str, float, float]


def spans(log: Path) -> Iterator[Span]:
    for line in log.read_text().splitlines():
        name, what, began, ended = line.split()
        yield name, what, float(began), float(ended)


def overlap(a: Span, b: Span) -> bool:
    return a[2] < b[3] and b[2] < a[3]


def started(task: Task, starts: int, **options: object) -> Race:
    return race(Logged, {"second": Second, "third": Third}, task, schedule=SCHEDULE, starts=starts, **options)


def test_starts_overlap_ours_and_samples_do_not(task: Task, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKES_MEET", "1")
    result = started(task, 2)
    assert result.starts == 2
    all_spans = list(spans(log))
    [ours] = [span for span in all_spans if span[:2] == ("Logged", "prepare")]
    theirs = [span for span in all_spans if span[0] != "Logged" and span[1] == "prepare"]
    assert not any(overlap(ours, span) for span in theirs)
    assert overlap(*theirs)
    steps = [span for span in all_spans if span[1] != "prepare"]
    assert len(steps) == 3 * (1 + 1 + 2)
    for i, span in enumerate(steps):
        assert not any(overlap(span, other) for other in steps[:i]), "steps are made one at a time"
    # The first ten steps belong to the start; those of the warm-up and of the samples are beside nobody's start.
    later = sorted(steps, key=lambda span: span[2])[3:]
    assert not any(overlap(span, other) for span in later for other in [ours, *theirs])
    rows = {row.name: row for row in result.contenders}
    assert rows["third"].start_s >= 2.0
    assert rows["second"].start_s < rows["third"].start_s - 0.5, "each has its own time, whoever is heard first"
    assert IN_TURNS not in result.details["second"], "a fake has no autotuner"


def test_one_at_a_time_unless_asked(task: Task, log: Path) -> None:
    started(task, 1)
    prepared = [span for span in spans(log) if span[1] == "prepare"]
    assert [span[0] for span in prepared] == ["Logged", "Second", "Third"]
    assert not any(overlap(a, b) for a, b in itertools.pairwise(prepared))


def test_who_dies_or_hangs_while_others_start_costs_only_itself(task: Task) -> None:
    began = time.monotonic()
    result = race(Fake, {"dies": Dies, "hangs": Hangs, "fake": Fake}, task, schedule=SCHEDULE, starts=3, timeout_s=5.0)
    assert time.monotonic() - began < 20
    rows = {row.name: row for row in result.contenders}
    assert rows["dies"].error == "start: its process died (exit code 11): Segmentation fault, all is lost"
    assert rows["hangs"].error == "start: no answer within 5 s"
    assert rows["fake"].us_per_step is not None


def test_cold_and_warm_starts(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    result = race(Compiles, {"compiles": Compiles, "dies": Dies}, task, schedule=SCHEDULE, starts=2, cold_caches=True)
    assert set(result.cold_starts) == {"tuned", "compiles"}
    rows = {row.name: row for row in result.contenders}
    for name in ("tuned", "compiles"):
        assert result.cold_starts[name] >= 0.5, "so long it takes to compile"
        assert rows[name].start_s > 0
        assert "found=True" in result.details[name], "the second start has what the first one left"
    threads = max(2, (os.cpu_count() or 1) // 2)
    assert f"threads={threads}" in result.details["compiles"], "together they use each core about once"
    assert rows["dies"].error.startswith("start: its process died")


def test_without_processes_nothing_is_at_once(task: Task) -> None:
    for options in ({"starts": 2}, {"cold_caches": True}):
        with pytest.raises(ValueError, match="only processes of their own"):
            race(Fake, {}, task, schedule=SCHEDULE, isolated=False, **options)
    with pytest.raises(ValueError, match="only processes of their own"):
        race(Fake, {}, task, schedule=SCHEDULE, starts=0)


def free(path: Path) -> bool:
    """Whether nobody has the lock."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _keep(path: Path, held: multiprocessing.synchronize.Event) -> None:
    with Turns(path).taken():
        held.set()
        time.sleep(60)


def test_a_turn_is_taken_again_inside_itself_and_freed_at_its_end(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "lock")
    with turns.taken():
        with turns.taken():
            assert not free(tmp_path / "lock")
        assert not free(tmp_path / "lock")
    assert free(tmp_path / "lock")


def test_a_process_that_is_killed_gives_its_turn_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_keep, args=(tmp_path / "lock", held))
    process.start()
    assert held.wait(30)
    assert not free(tmp_path / "lock")
    process.kill()
    process.join()
    with Turns(tmp_path / "lock").taken():
        pass


def test_pytorchs_autotuner_takes_its_turn(tmp_path: Path) -> None:
    from torch._inductor.runtime import benchmarking

    path = tmp_path / "lock"
    seen: list[bool] = []
    timing = benchmarking.benchmarker.benchmark_gpu
    announce = getattr(benchmarking, "set_gpu_benchmark_lock_context", None)
    try:
        assert autotune_in_turns(Turns(path)) == IN_TURNS
        if announce is not None:
            with benchmarking.maybe_gpu_benchmark_lock():
                seen.append(free(path))
            assert seen == [False]
    finally:
        if announce is not None:
            announce(None)
        elif "benchmark_gpu" in vars(benchmarking.benchmarker):
            del benchmarking.benchmarker.benchmark_gpu
    assert benchmarking.benchmarker.benchmark_gpu == timing
    assert free(path)


def test_an_older_pytorch_is_given_its_turn_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    class Benchmarker:
        def benchmark(self, fn: object) -> object:
            return self.benchmark_gpu(fn, rep=3)

        def benchmark_gpu(self, fn: object, rep: int) -> object:
            return fn, rep, free(path)

    older = SimpleNamespace(benchmarker=Benchmarker())
    assert _hold(older, Turns(path)) == IN_TURNS
    assert older.benchmarker.benchmark("a kernel") == ("a kernel", 3, False)
    assert free(path)
    assert _hold(SimpleNamespace(), Turns(path)) == BESIDE


def test_a_contender_of_pytorchs_says_that_it_took_turns(task: Task, tmp_path: Path, monkeypatch) -> None:
    held: list[Turns] = []

    def hold(turns: Turns) -> str:
        held.append(turns)
        return IN_TURNS

    monkeypatch.setattr("trainer.lanes.autotune_in_turns", hold)
    turns = Turns(tmp_path / "lock")
    lane = LocalLane(Eager, task, turns)
    lane.start()
    assert held == [turns]
    assert lane.finish().notes.endswith(IN_TURNS)
    lane.close()
