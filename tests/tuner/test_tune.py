"""The path: what is recorded, when, and what the same command does the second time. The GPU is a replayed source."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.toy import ENVIRONMENT, TOY, InstantCompiler, Replayed, true_us
from tuner.devices import find
from tuner.errors import UserError
from tuner.progress import Silent
from tuner.reduced import reduced
from tuner.store import Store
from tuner.tune import ProblemResult, Settings, tune
from tuner.types import CacheState, Config, Failure, Kind, Measurement, Problem, Status

DEVICE = find("h200")
PROBLEM = TOY.problem(4096)
VALID = list(TOY.space(PROBLEM, DEVICE))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def search(
    store: Store,
    worker: Replayed,
    compiler: InstantCompiler | None = None,
    *,
    problems: tuple[Problem, ...] = (PROBLEM,),
    kind: Kind = Kind.MEASURED,
    **settings: Any,
) -> list[ProblemResult]:
    return list(
        tune(
            problems,
            kernels={"toy": TOY},
            store=store,
            device=DEVICE,
            environment=ENVIRONMENT,
            settings=Settings(**{"trials": 30, **settings}),
            progress=Silent(),
            worker=worker,
            kind=kind,
            pool=compiler or InstantCompiler(),
        )
    )


def rows(store: Store, kind: Kind = Kind.MEASURED) -> list[Measurement]:
    return [observation.measurement for observation in store.observations(kernel="toy", kind=kind)]


def test_every_outcome_is_a_row(store: Store) -> None:
    worker = Replayed(wrong=lambda config: config.integer("STAGES") == 3)
    compiler = InstantCompiler(broken=lambda config: config.integer("TILE") == 16)
    [result] = search(store, worker, compiler, sampler="random", trials=60)
    stored = rows(store)
    assert len(stored) == len({row.config for row in stored}) == result.trials == result.new == 60
    assert result.failures == {
        "compile": sum(row.config.integer("TILE") == 16 for row in stored),
        "wrong": sum(row.config.integer("STAGES") == 3 and row.config.integer("TILE") != 16 for row in stored),
    }
    assert all(row.config.integer("TILE") != 16 for row in stored if row.config in worker.measured)
    assert {row.message for row in stored if row.status is Status.COMPILE} == {"error: no such thing"}
    best = min((row for row in stored if row.ok), key=lambda row: row.median_us or 0)
    assert result.best == best
    assert best.samples_us == (best.median_us,) * 3


def test_the_default_is_tried_first_and_the_library_is_timed_once(store: Store) -> None:
    worker = Replayed()
    [result] = search(store, worker)
    assert worker.measured[0] == TOY.space(PROBLEM, DEVICE).default()
    assert worker.library == 1
    assert [row.median_us for row in store.baselines(DEVICE)] == [6.0]
    assert result.best is not None
    assert result.best.median_us is not None
    assert result.ratio == pytest.approx(6.0 / result.best.median_us)


def test_the_same_command_again_measures_nothing(store: Store) -> None:
    [first] = search(store, Replayed())
    worker, compiler = Replayed(), InstantCompiler()
    [second] = search(store, worker, compiler)
    assert worker.measured == []
    assert compiler.compiled == []
    assert worker.library == 0
    assert (second.best, second.trials, second.new, second.ratio) == (first.best, first.trials, 0, first.ratio)


def test_more_trials_add_to_those_that_are_stored(store: Store) -> None:
    search(store, Replayed(), trials=10)
    worker = Replayed()
    [result] = search(store, worker, trials=25)
    assert len(worker.measured) == result.new == 15
    assert len(rows(store)) == 25


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid", "cmaes"])
@pytest.mark.parametrize("patience", [0, 13])
def test_a_search_that_was_interrupted_goes_on_as_if_it_had_not_been(
    sampler: str, patience: int, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "whole.db") as whole:
        search(whole, Replayed(), sampler=sampler)
        expected = [row.config for row in rows(whole)]
    with Store.open(tmp_path / "broken.db") as broken:
        with pytest.raises(KeyboardInterrupt):
            search(broken, Replayed(patience=patience), sampler=sampler)
        assert [row.config for row in rows(broken)] == expected[:patience]
        worker = Replayed()
        search(broken, worker, sampler=sampler)
        assert worker.measured == expected[patience:]
        assert [row.config for row in rows(broken)] == expected


def test_another_seed_learns_from_what_is_stored(store: Store) -> None:
    search(store, Replayed(), trials=20, seed=0)
    worker = Replayed()
    [result] = search(store, worker, trials=40, seed=1)
    assert len(worker.measured) == 20
    assert len({row.config for row in rows(store)}) == 40
    assert result.best is not None
    assert result.best.median_us == min(true_us(row.config) for row in rows(store))


def test_a_finite_space_ends_when_it_is_exhausted(store: Store) -> None:
    [result] = search(store, Replayed(), trials=1000)
    assert result.ended == "exhausted"
    assert result.trials == len(VALID)


def test_the_time_budget_ends_a_search(store: Store) -> None:
    [result] = search(store, Replayed(), timeout_s=1e-9)
    assert (result.ended, result.new) == ("time", 0)


def test_the_neighbours_best_comes_second(store: Store) -> None:
    [first] = search(store, Replayed())
    assert first.best is not None
    worker = Replayed()
    search(store, worker, problems=(TOY.problem(8192),))
    assert worker.measured[:2] == [TOY.space(PROBLEM, DEVICE).default(), first.best.config]


def test_a_candidate_that_hangs_costs_itself_only(store: Store) -> None:
    class Hanging(Replayed):
        def call(self, request: Any, *, limit_s: float | None = None) -> Any:
            answer = super().call(request, limit_s=limit_s)
            if isinstance(answer, Measurement) and len(self.measured) == 5:
                return Failure(Status.TIMEOUT, "no answer within 30 s")
            return answer

    worker = Hanging()
    [result] = search(store, worker)
    assert result.failures == {"timeout": 1}
    assert len(rows(store)) == 30
    late = next(row for row in rows(store) if row.status is Status.TIMEOUT)
    assert (late.config, late.registers) == (worker.measured[4], 32)


def test_an_empty_space_is_a_result(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    space = TOY.space(PROBLEM, DEVICE)
    empty = replace(space, constraints=(replace(space.constraints[0], holds=lambda _: False),))
    monkeypatch.setattr(type(TOY), "space", lambda *_: empty)
    [result] = search(store, Replayed())
    assert (result.best, result.ended, result.trials) == (None, "exhausted", 0)


def test_a_compiler_that_was_killed_is_explained(store: Store) -> None:
    class Killed(InstantCompiler):
        def submit(self, *arguments: Any) -> Future[Any]:
            if len(self.compiled) < 6:
                return super().submit(*arguments)
            dead: Future[Any] = Future()
            dead.set_exception(BrokenProcessPool("a child process terminated abruptly"))
            return dead

    with pytest.raises(UserError, match="A compiler process was killed"):
        search(store, Replayed(), Killed())
    assert len(rows(store)) == 6


@pytest.mark.parametrize(("step_bytes", "cache"), [(1 << 20, CacheState.HOT), (1 << 30, CacheState.COLD)])
def test_the_cache_state_is_that_of_the_network(store: Store, step_bytes: int, cache: CacheState) -> None:
    large = TOY.problem(1 << 20)
    worker = Replayed()
    search(store, worker, problems=(large,), trials=1, step_bytes={large: step_bytes})
    assert worker.caches == {cache}


def test_summary_is_plain_data(store: Store) -> None:
    [result] = search(store, Replayed())
    summary = result.summary()
    assert summary["dims"] == {"n": 4096}
    assert summary["us"] == result.best.median_us if result.best else False
    assert summary["trials"] == 30


# Without a GPU


def test_the_best_ranked_are_verified_and_only_they_are_stored(store: Store) -> None:
    worker = Replayed()
    [result] = search(store, worker, kind=Kind.PREDICTED, verify=3)
    stored = rows(store, Kind.PREDICTED)
    assert [config for _, config in worker.checked] == [row.config for row in stored]
    assert len(stored) == 3
    assert all(row.ok and row.verified_by == "emulation" and row.error == 1e-8 for row in stored)
    assert [row.extra["rank"] for row in stored] == [1, 2, 3]
    assert stored[0].extra["model"]["us"] == stored[0].median_us
    assert result.best == stored[0]
    assert [row.median_us for row in stored] == sorted(row.median_us or 0 for row in stored)
    assert (result.trials, rows(store)) == (30, [])


def test_a_wrong_prediction_is_stored_as_wrong_and_the_next_is_verified(store: Store) -> None:
    verdicts: list[Config] = []

    def wrong(config: Config) -> bool:
        verdicts.append(config)
        return len(verdicts) == 1

    [result] = search(store, Replayed(wrong=wrong), kind=Kind.PREDICTED, verify=2)
    stored = rows(store, Kind.PREDICTED)
    assert [row.status for row in stored] == [Status.WRONG, Status.OK, Status.OK]
    assert stored[0].median_us is None
    assert result.best == stored[1]


def test_predicting_again_verifies_nothing_twice(store: Store) -> None:
    broken = lambda config: config.integer("TILE") == 16  # noqa: E731
    [first] = search(store, Replayed(), InstantCompiler(broken), kind=Kind.PREDICTED)
    worker, compiler = Replayed(), InstantCompiler(broken)
    [second] = search(store, worker, compiler, kind=Kind.PREDICTED)
    assert (worker.checked, compiler.compiled) == ([], [])
    assert (second.best, second.trials, second.new) == (first.best, first.trials, 0)
    before = len(rows(store, Kind.PREDICTED))
    worker = Replayed()
    [third] = search(store, worker, InstantCompiler(broken), kind=Kind.PREDICTED, trials=40)
    verified_before = {row.config for row in rows(store, Kind.PREDICTED)[:before]}
    assert not verified_before & {config for _, config in worker.checked}
    assert third.trials == 40


def test_a_problem_that_is_too_large_is_verified_on_a_smaller_one_and_says_so(store: Store) -> None:
    large = TOY.problem(400_000_016)
    worker = Replayed()
    [result] = search(store, worker, problems=(large,), kind=Kind.PREDICTED, verify=1, trials=5)
    [(where, _)] = worker.checked
    assert where["n"] % 256 == large["n"] % 256
    assert where["n"] < 10_000
    assert result.best is not None
    assert result.best.problem == large
    assert result.best.message.startswith(f"verified on {where.shape}, of the same tails")
    assert result.best.extra["verified_on"] == where.shape


def test_reduced_keeps_small_problems_and_options() -> None:
    assert reduced(TOY, PROBLEM, VALID[0], DEVICE) is PROBLEM
    small = reduced(TOY, TOY.problem(400_000_000), VALID[0], DEVICE)
    assert small is not None
    assert small.options == PROBLEM.options
