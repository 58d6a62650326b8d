"""The path: what is recorded, when, and what the same command does the second time. The GPU is a replayed source."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuner import toy
from tests.tuner.toy import ENVIRONMENT, TOY, WITH_LIBRARY, InstantCompiler, Replayed, Toy, true_us
from tuner import stopping
from tuner.candidates import WINDOW
from tuner.devices import find
from tuner.errors import UserError
from tuner.guesses import best_guesses, expectation
from tuner.judge import FinalsJob, Job, timed
from tuner.measure import Timing
from tuner.progress import Silent
from tuner.reduced import reduced
from tuner.store import Store
from tuner.tune import ProblemResult, Settings, tune
from tuner.types import Binary, CacheState, Config, Failure, Kind, Measurement, Problem, Status

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
    kernel: Toy = TOY,
    **settings: Any,
) -> list[ProblemResult]:
    return list(
        tune(
            problems,
            kernels={"toy": kernel},
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
    """The trials, in the order in which they were recorded."""
    return [row for row in everything(store, kind) if not row.finalist]


def finals(store: Store) -> list[Measurement]:
    return [row for row in everything(store) if row.finalist]


def everything(store: Store, kind: Kind = Kind.MEASURED) -> list[Measurement]:
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
    assert result.best is not None
    assert (result.best.config, result.best.median_us, result.best.finalist) == (best.config, best.median_us, True)
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
    before = len(everything(store))
    worker, compiler = Replayed(), InstantCompiler()
    [second] = search(store, worker, compiler)
    assert (worker.measured, worker.finals, len(everything(store))) == ([], [], before)
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
        winners = [row.config for row in finals(whole)]
    with Store.open(tmp_path / "broken.db") as broken:
        with pytest.raises(KeyboardInterrupt):
            search(broken, Replayed(patience=patience), sampler=sampler)
        assert [row.config for row in rows(broken)] == expected[:patience]
        worker = Replayed()
        search(broken, worker, sampler=sampler)
        assert worker.measured == expected[patience:]
        assert [row.config for row in finals(broken)] == winners
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


def test_compilations_are_asked_for_before_the_gpu_needs_them(store: Store) -> None:
    compiler = InstantCompiler()
    ahead: list[int] = []

    class Watching(Replayed):
        def call(self, request: Any, *, limit_s: float | None = None) -> Any:
            answer = super().call(request, limit_s=limit_s)
            if isinstance(request, Job):
                ahead.append(len(compiler.compiled) - len(self.measured))
            return answer

    search(store, Watching(), compiler, trials=60)
    assert (ahead[0], max(ahead)) == (WINDOW - 1, WINDOW - 1)
    assert ahead[-3:] == [2, 1, 0]


def test_the_models_guesses_come_after_the_default(store: Store) -> None:
    worker = Replayed()
    search(store, worker)
    space = TOY.space(PROBLEM, DEVICE)
    guesses = best_guesses(expectation(TOY, PROBLEM, DEVICE, CacheState.HOT), VALID)
    assert len(guesses) == 5
    first = list(dict.fromkeys([space.default(), *guesses]))
    assert worker.measured[: len(first)] == first


def test_identical_binaries_are_measured_once(store: Store) -> None:
    def code(config: Config) -> str:
        return f"{config.integer('TILE')} {config.integer('STAGES')}"  # MODE changes nothing

    worker = Replayed()
    [result] = search(store, worker, InstantCompiler(code=code), trials=1000, early_stop=False)
    stored = rows(store)
    assert (len(stored), len(worker.measured)) == (len(VALID), len(VALID) // 2)
    first = {row.config.key: row for row in stored if "same_binary_as" not in row.extra}
    twins = [row for row in stored if "same_binary_as" in row.extra]
    assert len(first) == len(twins) == len(VALID) // 2
    for row in twins:
        other = first[row.extra["same_binary_as"]]
        assert (row.samples_us, row.extra["binary"]) == (other.samples_us, other.extra["binary"])
        assert code(row.config) == code(other.config)
        assert row.config != other.config
    assert result.trials == len(VALID)


def test_identical_binaries_are_recognised_by_the_next_search(store: Store) -> None:
    search(store, Replayed(), InstantCompiler(code=lambda _: "the same"), trials=1)
    worker = Replayed()
    search(store, worker, InstantCompiler(code=lambda _: "the same"), trials=40)
    # Another grid or other shared memory (both from TILE) is another launch.
    assert {config.integer("TILE") for config in worker.measured} == {16, 32, 128, 256, 512}
    assert len(worker.measured) == 5


def test_a_failure_is_not_handed_on_to_an_identical_binary(store: Store) -> None:
    worker = Replayed(wrong=lambda _: True)
    search(store, worker, InstantCompiler(code=lambda _: "the same"), trials=10)
    assert len(worker.measured) == 10
    assert finals(store) == []


def test_the_finalists_are_timed_against_each_other(store: Store) -> None:
    worker = Replayed(final_us=lambda config: 1.1 * true_us(config))
    [result] = search(store, worker, trials=1000)
    [contestants] = worker.finals
    assert list(map(true_us, contestants)) == [2.0, 2.5, 3.0, 3.0, 3.0]
    assert [row.median_us for row in finals(store)] == [1.1 * true_us(config) for config in contestants]
    assert result.best is not None
    assert (result.best.median_us, result.best.extra["ci_us"]) == (2.2, [2.2, 2.2])
    assert [row.extra["tied_with"] for row in finals(store)] == [0] * 5
    assert (result.best.status, result.best.registers, result.best.verified_by) == (Status.OK, 32, "emulation")


def test_a_trial_that_seems_faster_than_all_finalists_is_asked_in(store: Store) -> None:
    worker = Replayed(final_us=lambda config: true_us(config) + 1.6)
    [result] = search(store, worker, trials=1000)
    # 2.0 + 1.6 is more than the trials of 3.5 us, which are asked in then, and turn out to need 5.1.
    assert [list(map(true_us, contestants)) for contestants in worker.finals] == [
        [2.0, 2.5, 3.0, 3.0, 3.0],
        [3.5, 3.5, 3.5, 3.5, 2.0],
    ]
    assert result.best is not None
    assert (true_us(result.best.config), result.best.median_us) == (2.0, 3.6)
    again = Replayed()
    [second] = search(store, again, trials=1000)
    assert (again.measured, again.finals, second.best) == ([], [], result.best)


def test_winners_that_cannot_be_told_apart_are_a_tie_and_the_simplest_is_served(store: Store) -> None:
    worker = Replayed(final_us=lambda config: 1.0 if true_us(config) <= 2.5 else 1.5)
    [result] = search(store, worker, trials=1000)
    tied = [row for row in finals(store) if row.extra["tied_with"]]
    assert {true_us(row.config) for row in tied} == {2.0, 2.5}
    assert {(row.extra["tied_with"], row.extra["tied_us"]) for row in tied} == {(1, 1.0)}
    assert sorted(row.extra["tie_rank"] for row in tied) == [0, 1]
    # Shared memory and registers are the same: the text of the configuration decides.
    simplest = min(row.config.key for row in tied)
    assert result.best is not None
    assert result.best.config.key == simplest
    served = store.lookup(TOY, PROBLEM, DEVICE)
    assert (served.config, served.expected_us) == (result.best.config, 1.0)
    best = store.best(PROBLEM, DEVICE, TOY.source_hash)
    assert best is not None
    assert best.measurement == result.best
    assert result.summary()["tied_with"] == 1


def test_finals_that_fail_leave_the_trials_times(store: Store) -> None:
    class Failing(Replayed):
        def call(self, request: Any, *, limit_s: float | None = None) -> Any:
            if isinstance(request, FinalsJob):
                return Failure(Status.RUNTIME, "the process was ended by SIGSEGV")
            return super().call(request, limit_s=limit_s)

    [result] = search(store, Failing())
    assert finals(store) == []
    assert result.best is not None
    assert result.best.median_us == min(row.median_us or 9 for row in rows(store))
    worker = Replayed()
    search(store, worker)
    assert (worker.measured, len(worker.finals)) == ([], 1)


def test_more_trials_hold_the_finals_anew_only_where_they_change_the_finalists(store: Store) -> None:
    [first] = search(store, Replayed(), trials=40, early_stop=False)
    worker = Replayed()
    [second] = search(store, worker, trials=1000, early_stop=False)
    entered = {config for contestants in worker.finals for config in contestants} - {
        row.config for row in finals(store)[:5]
    }
    assert entered <= set(worker.measured)
    assert first.best is not None
    assert second.best is not None
    assert second.best.standing <= first.best.standing


def test_a_tie_is_settled_anew_when_a_new_finalist_comes(store: Store) -> None:
    def slowest_first(config: Config) -> float:
        return -true_us(config)

    order = sorted(VALID, key=slowest_first)
    known = order[:12]
    rest = set(VALID) - set(known)
    worker = Replayed(final_us=lambda _: 1.0)
    for config in known:
        job = Job(TOY, PROBLEM, config, Binary(Path("x"), "toy", "sm_90", 32, 0, 0), CacheState.HOT, 0)
        store.record(worker.call(job), kernel=TOY, device=DEVICE, environment=ENVIRONMENT)
    search(store, worker, trials=12)
    [tied] = worker.finals
    assert {row.extra["tied_with"] for row in finals(store)} == {len(tied) - 1}
    again = Replayed(final_us=lambda config: 3.0 if config in rest else 5.0)
    [result] = search(store, again, trials=1000, early_stop=False)
    # The five new ones are faster in every trial; those that were tied are timed with them, and stand at 1 us no more.
    assert set(tied) < set(again.finals[0])
    assert result.best is not None
    assert (result.best.config in rest, result.best.extra["tied_us"]) == (True, 3.0)


def test_a_search_that_has_settled_ends_and_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "LEAST", 20)

    class Slowing(Replayed):
        """The first is the best."""

        def call(self, request: Any, *, limit_s: float | None = None) -> Any:
            answer = super().call(request, limit_s=limit_s)
            if isinstance(request, Job):
                us = 1.0 if len(self.measured) == 1 else 0.995 if len(self.measured) == 15 else 2.0
                return timed(answer, Timing((us,) * 3, request.cache, 20), None)
            return answer

    worker = Slowing()
    [result] = search(store, worker, trials=len(VALID))
    # The fifteenth is better by half a percent, which is no more than noise. What was asked before the last of the
    # patience was told is judged as well.
    tried = 1 + math.ceil(stopping.SHARE * len(VALID)) + WINDOW - 1
    assert len(VALID) > tried
    assert (result.ended, result.new, len(worker.measured)) == ("settled", tried, tried)
    again = Replayed()
    [second] = search(store, again, trials=len(VALID))
    assert (second.ended, again.measured, again.library) == ("settled", [], 0)
    on = Slowing()
    [third] = search(store, on, trials=len(VALID), early_stop=False)
    assert third.trials == len(VALID)


def test_an_empty_space_is_a_result(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    space = TOY.space(PROBLEM, DEVICE)
    empty = replace(space, constraints=(replace(space.constraints[0], holds=lambda _: False),))
    monkeypatch.setattr(type(TOY), "space", lambda *_: empty)
    [result] = search(store, Replayed())
    assert (result.best, result.ended, result.trials) == (None, "unfit", 0)


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


def test_the_librarys_way_is_measured_once_and_recorded_but_is_no_trial(store: Store) -> None:
    worker = Replayed()
    [result] = search(store, worker, kernel=WITH_LIBRARY)
    [config] = WITH_LIBRARY.also()
    assert worker.measured.count(config) == 1
    assert (result.trials, result.new) == (30, 30)
    assert (result.library_us, result.products_us) == (toy.LIBRARY_US, 6.0)
    assert result.best is not None
    assert result.ratio == pytest.approx(toy.LIBRARY_US / (result.best.median_us or 0))
    again = Replayed()
    [second] = search(store, again, kernel=WITH_LIBRARY)
    assert (again.measured, again.finals) == ([], [])
    assert (second.best, second.library_us, second.new) == (result.best, result.library_us, 0)


def test_where_the_library_is_faster_it_is_the_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "LIBRARY_US", 0.5)
    worker = Replayed()
    [result] = search(store, worker, kernel=WITH_LIBRARY)
    [config] = WITH_LIBRARY.also()
    assert config in worker.finals[0]
    assert result.best is not None
    assert (result.best.config, result.ratio) == (config, 1.0)
    match = store.lookup(WITH_LIBRARY, PROBLEM, DEVICE)
    assert (match.config, match.expected_us) == (config, 0.5)


def test_of_a_tie_our_own_kernel_is_served(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "LIBRARY_US", 2.0)  # as the best configuration
    [result] = search(store, Replayed(), kernel=WITH_LIBRARY, sampler="grid", trials=100)
    assert result.best is not None
    assert not result.best.by_library
    assert result.best.extra["tied_with"] >= 1


def test_a_wrong_library_is_noted_and_never_served(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "LIBRARY_US", 0.5)
    [result] = search(store, Replayed(wrong=lambda config: config.by_library), kernel=WITH_LIBRARY)
    assert result.best is not None
    assert not result.best.by_library
    assert (result.library_us, result.ratio) == (None, None)


def test_a_search_of_another_problem_does_not_start_from_the_librarys_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy, "LIBRARY_US", 0.5)
    search(store, Replayed(), kernel=WITH_LIBRARY)
    worker = Replayed()
    search(store, worker, kernel=WITH_LIBRARY, problems=(TOY.problem(64),))
    [config] = WITH_LIBRARY.also()
    assert worker.measured.count(config) == 1
