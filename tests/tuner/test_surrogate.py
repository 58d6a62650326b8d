"""What the Gaussian process proposes: new and valid, towards what is fast, and not all in one place."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from tests.tuner.toy import TOY, true_us
from tuner.devices import find
from tuner.search import Search
from tuner.surrogate import BATCH, Surrogate
from tuner.types import Config, Kind, Measurement, Status

PROBLEM = TOY.problem(4096)
SPACE = TOY.space(PROBLEM, find("h200"))
VALID = list(SPACE)
BEST = min(map(true_us, VALID))


def nothing(_: Config) -> None:
    """No model."""


def always(_: Config) -> bool:
    return True


def told(search: Search, config: Config, us: float | None) -> None:
    status = Status.OK if us is not None else Status.WRONG
    samples = (us,) if us is not None else ()
    search.tell(Measurement(PROBLEM, config, status, Kind.MEASURED, samples_us=samples, median_us=us))


def trials_to_best(seed: int, sampler: str) -> int:
    search = Search(SPACE, sampler=sampler, seed=seed)
    for count in itertools.count(1):
        config = search.ask()
        assert config is not None
        told(search, config, true_us(config))
        if true_us(config) == BEST:
            return count
    raise AssertionError("count never ends")


def test_it_needs_fewer_trials_than_drawing_at_random() -> None:
    ours = [trials_to_best(seed, "gp") for seed in range(8)]
    theirs = [trials_to_best(seed, "random") for seed in range(8)]
    assert sum(ours) < sum(theirs) / 1.5, (ours, theirs)


def test_a_space_is_walked_to_its_end_and_nothing_is_asked_twice() -> None:
    search = Search(SPACE, sampler="gp", seed=3)
    asked = []
    while (config := search.ask()) is not None:
        asked.append(config)
        told(search, config, true_us(config) if len(asked) % 3 else None)
    assert len(asked) == len(set(asked)) == len(VALID)
    assert set(asked) == set(VALID)


def test_the_same_seed_asks_the_same() -> None:
    def asked(seed: int) -> list[Config]:
        search, found = Search(SPACE, sampler="gp", seed=seed), []
        for _ in range(25):
            config = search.ask()
            assert config is not None
            told(search, config, true_us(config))
            found.append(config)
        return found

    assert asked(1) == asked(1) != asked(2)


def test_with_nothing_seen_it_follows_the_model() -> None:
    batch = Surrogate(SPACE, true_us, 0).next([], [], VALID, always)
    assert len(batch) == len(set(batch)) == BATCH
    assert true_us(batch[0]) == BEST


def test_what_the_model_holds_impossible_is_not_proposed() -> None:
    def expected(config: Config) -> float | None:
        return None if config.integer("STAGES") > 2 else true_us(config)

    seen = [(config, true_us(config)) for config in VALID[::7]]
    batch = Surrogate(SPACE, expected, 0).next(seen, [], VALID, always)
    assert batch
    assert all(config.integer("STAGES") <= 2 for config in batch)


def test_without_a_model_it_proposes_all_the_same() -> None:
    seen = [(config, true_us(config)) for config in VALID[::5]]
    tried = {config for config, _ in seen}
    batch = Surrogate(SPACE, nothing, 0).next(seen, [], VALID, lambda config: config not in tried)
    assert len(batch) == BATCH
    assert not tried & set(batch)
    assert statistics.fmean(map(true_us, batch)) < statistics.median(us for _, us in seen)


def test_what_failed_is_avoided() -> None:
    def broken(config: Config) -> bool:
        return config.choice("MODE") == "vector"

    # All that works takes about the same time: only the failures say where to look.
    seen = [(config, None if broken(config) else 5.0 + index % 2) for index, config in enumerate(VALID[::3])]
    assert {broken(config) for config, _ in seen} == {True, False}
    tried = {config for config, _ in seen}
    batch = Surrogate(SPACE, nothing, 0).next(seen, [], VALID, lambda config: config not in tried)
    assert sum(map(broken, batch)) <= BATCH // 2


def test_what_is_under_way_is_not_surrounded() -> None:
    seen = [(config, true_us(config)) for config in VALID[:4]]
    surrogate = Surrogate(SPACE, nothing, 0)
    [first, *_] = surrogate.next(seen, [], VALID[4:], always)
    others = Surrogate(SPACE, nothing, 0).next(seen, [first], VALID[4:], lambda config: config != first)
    assert first not in others


@pytest.mark.parametrize("us", [1e-6, 1.0, 1e9])
def test_equal_times_of_any_size_are_no_trouble(us: float) -> None:
    batch = Surrogate(SPACE, nothing, 0).next([(config, us) for config in VALID[:6]], [], VALID[6:], always)
    assert len(batch) == BATCH


def test_nothing_left_is_an_empty_batch() -> None:
    assert Surrogate(SPACE, nothing, 0).next([(VALID[0], 1.0)], [], VALID, lambda _: False) == []
    assert math.isfinite(BEST)


def test_an_ask_predicts_nothing_twice() -> None:
    """Predicting takes longer than all else that an ask does."""
    asked: list[Config] = []

    def expected(config: Config) -> float:
        asked.append(config)
        return true_us(config)

    search = Search(SPACE, sampler="gp", seed=0, expected=expected)
    for _ in range(40):
        config = search.ask()
        assert config is not None
        told(search, config, true_us(config))
    assert len(asked) == len(set(asked)) > 0
