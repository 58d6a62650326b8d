"""What is asked: valid, never twice, in an order that the seed decides; and what the samplers make of the answers."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from tests.tuner.toy import TOY, true_us
from tuner import valid as module
from tuner.devices import find
from tuner.samplers import BATCH, SAMPLERS, STARTUP_TRIALS, ValidTpe
from tuner.search import Search, neighbours
from tuner.space import Constraint, Param, Space
from tuner.types import Config, Kind, Measurement, Status

DEVICE = find("t4")
PROBLEM = TOY.problem(1000)
SPACE = TOY.space(PROBLEM, DEVICE)
VALID = list(SPACE)
WIDE = Space(tuple(Param(name, tuple(range(12)), 0) for name in "ABCDE"))
"""248832 configurations: too many to be listed."""


def seen(config: Config, status: Status = Status.OK, *, seed: int = 0, n: int = 1000) -> Measurement:
    us = true_us(config) if status is Status.OK else None
    return Measurement(TOY.problem(n), config, status, Kind.MEASURED, median_us=us, seed=seed)


def run(search: Search, count: int) -> list[Config]:
    asked = []
    for _ in range(count):
        config = search.ask()
        if config is None:
            break
        asked.append(config)
        search.tell(seen(config))
    return asked


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_finite_space_is_asked_through_once_and_ends(sampler: str) -> None:
    asked = run(Search(SPACE, sampler=sampler, seed=3), len(VALID) + 5)
    assert len(asked) == len(VALID)
    assert set(asked) == set(VALID)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_seed_decides_the_order(sampler: str) -> None:
    first = run(Search(SPACE, sampler=sampler, seed=1), 25)
    assert first == run(Search(SPACE, sampler=sampler, seed=1), 25)
    assert first != run(Search(SPACE, sampler=sampler, seed=2), 25)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_several_under_way_at_a_time_are_different(sampler: str) -> None:
    search = Search(SPACE, sampler=sampler, seed=0)
    run(search, STARTUP_TRIALS + 2)
    batch = [search.ask() for _ in range(8)]
    assert len(set(batch)) == 8
    for config in batch:
        assert config is not None
        search.tell(seen(config))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_is_known_is_not_asked(sampler: str) -> None:
    known = [seen(config, Status.OK if index % 2 else Status.WRONG) for index, config in enumerate(VALID[:30])]
    search = Search(SPACE, sampler=sampler, seed=0, known=known)
    assert search.known == set(VALID[:30])
    asked = run(search, len(VALID))
    assert set(asked) == set(VALID[30:])


def test_the_first_are_asked_first_once_and_only_where_valid() -> None:
    default = SPACE.default()
    other = Config.of(TILE=128, STAGES=4, MODE="vector")
    broken = Config.of(TILE=512, STAGES=8, MODE="plain")
    foreign = Config.of(BLOCK=1)
    search = Search(SPACE, seed=0, first=[default, broken, other, foreign, default])
    asked = run(search, 3)
    assert asked[:2] == [default, other]
    assert asked[2] in SPACE


def test_a_space_that_is_too_large_to_list_is_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED", 100)
    for sampler in ("tpe", "random", "cmaes"):
        search = Search(WIDE, sampler=sampler, seed=0)
        asked = []
        for _ in range(40):
            config = search.ask()
            assert config is not None
            asked.append(config)
            us = 1.0 + sum(config.integer(name) for name in "ABCDE")
            search.tell(Measurement(PROBLEM, config, Status.OK, Kind.MEASURED, median_us=us))
        assert len(set(asked)) == 40


def test_tight_constraints_in_a_large_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 of 20736 combinations are valid, and drawing at random would take 1700 draws for one."""
    monkeypatch.setattr(module, "LISTED", 5)
    monkeypatch.setattr(module, "_DRAWS", 50)
    tight = Space(WIDE.params[:4], (Constraint("all alike", lambda c: len({c[name] for name in c}) == 1),))
    for sampler in ("tpe", "random", "grid"):
        search = Search(tight, sampler=sampler, seed=0)
        asked = []
        while (config := search.ask()) is not None:
            asked.append(config)
            search.tell(Measurement(PROBLEM, config, Status.OK, Kind.MEASURED, median_us=1.0 + config.integer("A")))
        assert len(asked) == len(set(asked)) == 12


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_failure_is_told_without_a_time(status: Status) -> None:
    search = Search(SPACE, seed=0)
    config = search.ask()
    assert config is not None
    search.tell(seen(config, status))
    assert search.best is None
    trial = search._study.trials[-1]
    assert trial.values is None
    assert trial.user_attrs["status"] == status.value


def test_the_best_is_kept() -> None:
    search = Search(SPACE, seed=0, known=[seen(VALID[0])])
    asked = run(search, 30)
    assert search.best is not None
    assert search.best.median_us == min(true_us(config) for config in [VALID[0], *asked])


def test_tpe_needs_fewer_trials_than_chance_to_come_close_to_the_optimum() -> None:
    """Over five seeds, on the toy's 76 valid configurations."""

    def trials_needed(sampler: str, seed: int) -> int:
        asked = run(Search(SPACE, sampler=sampler, seed=seed), len(VALID))
        good = min(true_us(config) for config in VALID) * 1.3
        return next(index for index, config in enumerate(asked, 1) if true_us(config) <= good)

    needed = {name: statistics.mean(trials_needed(name, seed) for seed in range(5)) for name in ("tpe", "random")}
    assert needed["tpe"] < needed["random"]


def test_tpe_suggests_what_is_valid_and_new_from_few_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna still calls what `ValidTpe` overrides: a suggestion that does not fit is told as failed."""
    fits = []
    original = ValidTpe._compute_acquisition_func

    def counted(sampler: ValidTpe, *arguments: Any) -> Any:
        fits.append(1)
        return original(sampler, *arguments)

    monkeypatch.setattr(ValidTpe, "_compute_acquisition_func", counted)
    for seed in range(3):
        fits.clear()
        search = Search(SPACE, seed=seed)
        run(search, 40)
        states = [trial.state for trial in search._study.trials]
        assert states.count(TrialState.FAIL) <= 3
        suggested = 40 - STARTUP_TRIALS
        assert suggested / BATCH <= len(fits) < suggested / 2


def test_a_suggestion_is_the_best_that_fits() -> None:
    class Density:
        def __init__(self, sign: float) -> None:
            self._sign = sign

        def log_pdf(self, samples: dict[str, Any]) -> Any:
            return self._sign * samples["a"]

    sampler = ValidTpe(lambda point: point["a"] % 2 == 0, seed=0)
    samples = {"a": np.array([5.0, 2.0, 9.0, 8.0, 2.0, 4.0, 6.0, 0.0])}
    found = sampler._compute_acquisition_func(samples, Density(1.0), Density(-1.0))
    assert found.tolist() == [-np.inf, 4.0, -np.inf, 16.0, -np.inf, 8.0, 12.0, 0.0]
    assert sampler.next_best == [{"a": 6}, {"a": 4}, {"a": 2}]
    none_fits = {"a": np.array([5.0, 9.0])}
    assert sampler._compute_acquisition_func(none_fits, Density(1.0), Density(-1.0)).tolist() == [10.0, 18.0]
    assert sampler.next_best == []


def test_tpe_draws_at_random_until_it_has_been_told_something() -> None:
    search, blind = Search(SPACE, seed=4), Search(SPACE, sampler="random", seed=4)
    assert [search.ask() for _ in range(25)] == [blind.ask() for _ in range(25)]


def test_an_unknown_sampler_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no sampler"):
        Search(SPACE, sampler="guess")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(VALID) - 1), unique=True, max_size=40), st.integers(0, 2**32 - 1))
def test_all_that_is_asked_is_valid_and_new(known: list[int], seed: int) -> None:
    search = Search(SPACE, sampler="random", seed=seed, known=[seen(VALID[index]) for index in known])
    asked = run(search, 20)
    assert all(config in SPACE for config in asked)
    assert not set(asked) & {VALID[index] for index in known}


def test_neighbours_are_the_best_of_the_nearest_problems() -> None:
    rows = [
        seen(VALID[0], n=2000),
        seen(Config.of(TILE=128, STAGES=4, MODE="vector"), n=2000),
        seen(VALID[1], n=64000),
        seen(VALID[2], Status.WRONG, n=1000),
    ]
    assert neighbours(PROBLEM.dims, rows) == [Config.of(TILE=128, STAGES=4, MODE="vector"), VALID[1]]
    assert neighbours(PROBLEM.dims, rows, most=1) == [Config.of(TILE=128, STAGES=4, MODE="vector")]
