"""Who is a finalist, what a tie is, and who is served of one. Exact values; the path is in test_tune.py."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.toy import TOY
from tuner.finals import CROWD, MOST, finalists, ranked
from tuner.measure import median_interval
from tuner.types import Config, Kind, Measurement, Status

PROBLEM = TOY.problem(1000)


def row(name: int, *samples: float, shared: int = 0, registers: int = 32) -> Measurement:
    return Measurement(
        PROBLEM,
        Config.of(TILE=name),
        Status.OK if samples else Status.WRONG,
        Kind.MEASURED,
        samples_us=samples,
        median_us=sorted(samples)[len(samples) // 2] if samples else None,
        shared_bytes=shared,
        registers=registers,
    )


def around(us: float, width: float = 0.1) -> list[float]:
    """21 samples, evenly from `us - width` to `us + width`: the interval is half as wide."""
    return [us + width * (place - 10) / 10 for place in range(21)]


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [
        (1, 1, 1),
        (5, 1, 5),  # 1/32 on each side is more than 2.5%: no smaller interval has the confidence
        (6, 1, 6),  # 1/64
        (9, 2, 8),  # 10/512 = 1.95%
        (10, 2, 9),  # 11/1024 = 1.07%
        (21, 6, 16),  # P(B(21, 1/2) <= 5) = 1.33%, <= 6 is 3.92%
        (100, 40, 61),  # the textbook's
    ],
)
def test_the_interval_of_the_median_is_between_order_statistics(count: int, first: int, last: int) -> None:
    assert median_interval([float(value) for value in range(1, count + 1)]) == (first, last)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    low, high = median_interval(samples)
    assert low <= sorted(samples)[len(samples) // 2] <= high or len(samples) % 2 == 0
    assert min(samples) <= low <= high <= max(samples)


def test_no_samples_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_the_fastest_few_are_finalists() -> None:
    rows = [row(tile, *around(tile)) for tile in range(20, 0, -1)]
    assert [found.config["TILE"] for found in finalists([*rows, row(99)])] == list(range(1, MOST + 1))


def test_all_that_overlap_the_fastest_are_finalists_up_to_a_crowd() -> None:
    # Each interval is 0.05 to either side of the median.
    rows = [row(tile, *around(1 + tile / 100)) for tile in range(40)]
    assert [found.config["TILE"] for found in finalists(rows)] == list(range(11))  # 1.00 + 0.05 = 1.10 - 0.05
    close = [row(tile, *around(1 + tile / 1000)) for tile in range(40)]
    assert len(finalists(close)) == CROWD


def test_nobody_right_is_nobody() -> None:
    assert finalists([row(1), row(2)]) == []


def test_no_tie() -> None:
    first, second = ranked([row(1, *around(1.0)), row(2, *around(1.2))])
    assert first.extra == {"finalist": True, "ci_us": [0.95, 1.05], "tied_with": 0}
    assert second.extra["tied_with"] == 0
    assert first.standing < second.standing


@pytest.mark.parametrize(
    ("simplest", "other"),
    [
        ({"shared": 100, "registers": 99}, {"shared": 101, "registers": 9}),
        ({"shared": 100, "registers": 9}, {"shared": 100, "registers": 10}),
    ],
)
def test_of_a_tie_the_simplest_is_first_though_it_is_slower(simplest: dict[str, int], other: dict[str, int]) -> None:
    rows = [row(1, *around(1.0), **other), row(2, *around(1.05), **simplest), row(3, *around(1.2))]
    for order in itertools.permutations(rows):
        found = {seen.config["TILE"]: seen for seen in ranked(order)}
        assert [found[tile].extra["tied_with"] for tile in (1, 2, 3)] == [1, 1, 0]
        assert (found[2].extra["tied_us"], found[2].extra["tie_rank"]) == (1.0, 0)
        assert (found[1].extra["tied_us"], found[1].extra["tie_rank"]) == (1.0, 1)
        assert found[2].median_us == pytest.approx(1.05)
        assert found[2].standing < found[1].standing < found[3].standing


def test_a_finalist_that_fails_is_none_the_less_one() -> None:
    found = ranked([row(1), row(2, *around(1.0))])
    assert found[0].extra == {"finalist": True}
    assert found[1].extra["tied_with"] == 0
