"""Asking, compiling, judging and recording at the same time: nobody waits who need not, and no timing shows in the
result."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.toy import ENVIRONMENT, TOY, WITH_LIBRARY, InstantCompiler, Replayed, true_us
from tests.tuner.workplaces import Sleeper
from tuner.candidates import WINDOW, Bell
from tuner.devices import find
from tuner.judge import Job
from tuner.kernel import Kernel
from tuner.progress import Silent
from tuner.search import Search
from tuner.store import Store
from tuner.task import Poster
from tuner.tune import ProblemResult, Settings, tune
from tuner.types import Binary, Config, Failure, Measurement, Problem
from tuner.worker import Worker

DEVICE = find("h200")
PROBLEM = TOY.problem(4096)
TRIALS = 50


def search(
    path: Path, worker: Poster, compiler: InstantCompiler, **settings: Any
) -> tuple[ProblemResult, list[Measurement]]:
    """The result, and all rows in the order of recording."""
    with Store.open(path) as store:
        [result] = tune(
            (PROBLEM,),
            kernels={"toy": TOY},
            store=store,
            device=DEVICE,
            environment=ENVIRONMENT,
            settings=Settings(**{"trials": TRIALS, "early_stop": False, **settings}),
            progress=Silent(),
            worker=worker,
            pool=compiler,
        )
        return result, [observation.measurement for observation in store.observations(kernel="toy")]


class Erratic(InstantCompiler):
    """Takes 0.2 s now and then, in eight threads."""

    workers = 8

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._threads = ThreadPoolExecutor(self.workers)

    def submit(self, *arguments: Any) -> Future[Binary | Failure]:
        done, seconds = super().submit(*arguments), self._random.choice((0.0, 0.0, 0.0, 0.2))

        def compile() -> Binary | Failure:
            time.sleep(seconds)
            return done.result()

        return self._threads.submit(compile)

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def facts(rows: list[Measurement], *, finalists: bool) -> set[tuple[str, tuple[float, ...]]]:
    return {(row.config.key, row.samples_us) for row in rows if row.finalist is finalists}


@pytest.mark.parametrize("sampler", ["gp", "tpe", "cmaes"])
def test_what_is_asked_does_not_depend_on_what_is_compiled_first(sampler: str, tmp_path: Path) -> None:
    calm = InstantCompiler()
    expected, rows = search(tmp_path / "calm.db", Replayed(), calm, sampler=sampler)
    for seed in range(2):
        erratic, worker = Erratic(seed), Replayed()
        result, found = search(tmp_path / f"{seed}.db", worker, erratic, sampler=sampler)
        assert erratic.compiled[:TRIALS] == calm.compiled[:TRIALS]
        assert worker.measured != erratic.compiled[:TRIALS]  # they were judged in another order
        assert facts(found, finalists=False) == facts(rows, finalists=False)
        assert facts(found, finalists=True) == facts(rows, finalists=True)
        assert result.best == expected.best


@pytest.mark.parametrize("patience", [0, 7, 20, 40])
def test_a_search_that_was_killed_ends_with_the_same_winners(patience: int, tmp_path: Path) -> None:
    expected, rows = search(tmp_path / "whole.db", Replayed(), InstantCompiler())
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "broken.db", Replayed(patience=patience), Erratic(patience))
    worker, compiler = Replayed(), Erratic(patience + 1)
    result, found = search(tmp_path / "broken.db", worker, compiler)
    assert len(worker.measured) == TRIALS - patience
    assert facts(found, finalists=False) == facts(rows, finalists=False)
    assert facts(found, finalists=True) == facts(rows, finalists=True)
    assert result.best == expected.best


def test_a_slow_compilation_holds_nobody_up(tmp_path: Path) -> None:
    class Slow(InstantCompiler):
        """The first is done when all others of the window have been measured."""

        first: Future[Binary | Failure] | None = None

        def submit(self, *arguments: Any) -> Future[Binary | Failure]:
            done = super().submit(*arguments)
            if self.first is not None:
                return done
            self.first, self.result = Future(), done.result()
            return self.first

    class Releasing(Replayed):
        def call(self, request: Any, *, limit_s: float | None = None) -> Any:
            answer = super().call(request, limit_s=limit_s)
            if isinstance(request, Job) and len(self.measured) == WINDOW - 1:
                assert compiler.first is not None
                threading.Timer(0.05, compiler.first.set_result, [compiler.result]).start()
            return answer

    compiler, worker = Slow(), Releasing()
    result, rows = search(tmp_path / "t.db", worker, compiler)
    assert worker.measured.index(compiler.compiled[0]) == WINDOW - 1
    assert [row.config for row in rows if not row.finalist] == worker.measured
    assert result.new == TRIALS
    # Nothing was asked meanwhile: the search would have known less than it does when all goes fast.
    calm = InstantCompiler()
    search(tmp_path / "calm.db", Replayed(), calm)
    assert compiler.compiled[:TRIALS] == calm.compiled[:TRIALS]


def test_each_ask_knows_what_was_asked_a_window_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story: list[str] = []
    ask, tell = Search.ask, Search.tell

    def asking(search: Search) -> Config | None:
        story.append("ask")
        return ask(search)

    def telling(search: Search, row: Measurement) -> None:
        story.append("tell")
        tell(search, row)

    monkeypatch.setattr(Search, "ask", asking)
    monkeypatch.setattr(Search, "tell", telling)
    search(tmp_path / "t.db", Replayed(), Erratic(3))
    steady = TRIALS - WINDOW
    assert story == ["ask"] * WINDOW + ["tell", "ask"] * steady + ["tell"] * WINDOW


@pytest.fixture
def sleeper() -> Iterator[Worker]:
    with Worker(Sleeper, limit_s=20) as worker:
        yield worker


def test_the_gpu_works_while_the_parent_asks(sleeper: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Search.ask

    def slowly(search: Search) -> Config | None:
        time.sleep(0.6 * Sleeper.JOB_S)
        return ask(search)

    monkeypatch.setattr(Search, "ask", slowly)
    result, _ = search(tmp_path / "t.db", sleeper, InstantCompiler())
    gpu, parent = result.spent["gpu"], result.spent["parent"]
    assert gpu["busy"] >= TRIALS * Sleeper.JOB_S
    # One after the other would be at most 1 / 1.6 = 63%.
    assert gpu["busy"] > 0.75 * gpu["period"]
    assert gpu["share"] > 0.8
    assert gpu["time"] == pytest.approx(TRIALS * Sleeper.JOB_S, rel=0.01)
    assert parent["ask"] >= TRIALS * 0.6 * Sleeper.JOB_S
    assert parent["record"] > 0
    assert all(parent[phase] > 0 for phase in ("begin", "warm_up", "finals"))


def test_what_the_gpu_has_when_the_time_is_over_is_recorded(sleeper: Worker, tmp_path: Path) -> None:
    result, rows = search(tmp_path / "t.db", sleeper, InstantCompiler(), timeout_s=8 * Sleeper.JOB_S)
    assert result.ended == "time"
    assert 0 < result.new < TRIALS
    assert len([row for row in rows if not row.finalist]) == result.new
    assert sleeper.call(("anything",)) is None  # no answer is left over


def test_a_bell() -> None:
    bell = Bell()
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    bell.hush()
    bell.ring()
    bell.close()
    bell.ring()  # nobody hears it, and that is no error


def test_a_candidate_is_up_against_the_fastest_of_its_own_run(tmp_path: Path) -> None:
    class Watching(Replayed):
        def __init__(self) -> None:
            super().__init__()
            self.rivals: list[float | None] = []

        def call(self, request: Any, *, limit_s: float | None = None) -> Any:
            if isinstance(request, Job):
                self.rivals.append(request.rival_us)
            return super().call(request, limit_s=limit_s)

    worker = Watching()
    search(tmp_path / "t.db", worker, InstantCompiler(), trials=20)
    # Two are handed out before anything is known.
    assert worker.rivals[:2] == [None, None]
    before = [[true_us(config) for config in worker.measured[:count]] for count in range(1, 19)]
    assert worker.rivals[2:] == [min(times) for times in before]
    again = Watching()
    search(tmp_path / "t.db", again, InstantCompiler(), trials=40)
    assert again.rivals[0] is None, "times of another run may have been taken at another clock"


def test_the_gpu_is_made_ready_while_the_first_candidates_compile(tmp_path: Path) -> None:
    story: list[str] = []

    class Compiling(InstantCompiler):
        def submit(self, kernel: Kernel, problem: Problem, config: Config, arch: str) -> Future[Binary | Failure]:
            story.append("library" if config.by_library else "candidate")
            return super().submit(kernel, problem, config, arch)

    class Watching(Replayed):
        def post(self, request: Any, *, limit_s: float | None = None) -> None:
            story.append(type(request).__name__)
            super().post(request, limit_s=limit_s)

    with Store.open(tmp_path / "t.db") as store:
        list(
            tune(
                (PROBLEM,),
                kernels={"toy": WITH_LIBRARY},
                store=store,
                device=DEVICE,
                environment=ENVIRONMENT,
                settings=Settings(trials=5),
                progress=Silent(),
                worker=Watching(),
                pool=Compiling(),
            )
        )
    assert story[:8] == ["library", "WarmUp", *["candidate"] * 5, "Job"]
    assert story.count("WarmUp") == 1
