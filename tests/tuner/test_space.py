"""Walking a space and drawing from it agree on what is valid."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.toy import TOY
from tuner import valid
from tuner.devices import find
from tuner.space import Constraint, Param, Space
from tuner.types import Config
from tuner.valid import Valid

TOY_SPACE = TOY.space(TOY.problem(4096), find("h200"))
SPACE = Space(
    (Param("A", (1, 2, 3, 4), 1), Param("B", (1, 2, 3), 1), Param("C", ("x", "y"), "x")),
    (
        Constraint("A at least B", lambda c: c.integer("A") >= c.integer("B"), ("A", "B")),
        Constraint("no 4 with y", lambda c: (c.integer("A"), c.choice("C")) != (4, "y")),
    ),
)


def test_walking_gives_exactly_the_valid_combinations_in_order() -> None:
    every = [Config.of(A=a, B=b, C=c) for a, b, c in itertools.product((1, 2, 3, 4), (1, 2, 3), ("x", "y"))]
    assert list(SPACE) == [config for config in every if config in SPACE]
    assert len(list(SPACE)) == 15


def test_a_rule_of_a_few_parameters_is_asked_once_for_each_combination_of_them() -> None:
    asked: list[Config] = []

    def holds(config: Config) -> bool:
        asked.append(config)
        return True

    space = Space(SPACE.params, (Constraint("any", holds, ("A", "C")),))
    assert len(list(space)) == 24
    assert len(asked) == len(set(asked)) == 8


def test_every_valid_combination_is_drawn_equally_often_and_no_other() -> None:
    draws = list(itertools.islice(SPACE.draws(random.Random(1)), 24_000))
    seen = Counter(config for config in draws if config is not None)
    assert set(seen) == set(SPACE)
    # A thousand each are expected; six standard deviations are 190.
    assert all(abs(count - 1000) < 190 for count in seen.values()), seen


def test_a_space_far_beyond_what_is_listed_is_not_walked() -> None:
    walked: list[Config] = []

    def holds(config: Config) -> bool:
        walked.append(config)
        return config.integer("P0") % 2 == 0

    wide = Space(tuple(Param(f"P{i}", tuple(range(10)), 0) for i in range(8)), (Constraint("even", holds),))
    some = Valid(wide, seed=0).sample(50)
    assert len(set(some)) == 50
    assert all(config in wide for config in some)
    assert len(walked) < 2 * valid.LISTED / 2


def test_more_of_a_sample_begins_with_less_of_it() -> None:
    wide = Space(tuple(Param(f"P{i}", tuple(range(10)), 0) for i in range(8)))
    source = Valid(wide, seed=3)
    few = source.sample(20)
    assert source.sample(40)[:20] == few == Valid(wide, seed=3).sample(20)


def test_a_pool_of_a_listed_space_has_some_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valid, "FRESH", 5)
    source = Valid(TOY_SPACE, seed=0)
    one, other = source.pool(10), source.pool(10)
    assert one[:10] == other[:10] == source.sample(10)
    assert len(one) == 15
    assert one[10:] != other[10:]


@given(st.integers(1, 60), st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)))
def test_a_default_that_is_not_valid_is_moved_as_little_as_can_be(least: int, wanted: tuple[int, int, int]) -> None:
    values = (1, 2, 3, 4)
    params = tuple(Param(name, values, values[place]) for name, place in zip("ABC", wanted, strict=True))

    def holds(config: Config) -> bool:
        return config.integer("A") * config.integer("B") * config.integer("C") >= least

    space = Space(params, (Constraint("large enough", holds),))
    asked = {param.name: param.default for param in params}
    nearest = min(space, key=lambda config: sum(config[name] != asked[name] for name in asked))
    assert space.default() == nearest, "of those that differ as little, the first"


def test_a_space_without_a_valid_configuration_has_no_default() -> None:
    with pytest.raises(ValueError, match="empty"):
        Space(SPACE.params, (Constraint("never", lambda _: False),)).default()
