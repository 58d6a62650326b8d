"""When a search has settled."""

from __future__ import annotations

import pytest

from tests.tuner.toy import TOY
from tuner.stopping import Patience
from tuner.types import Config, Kind, Measurement, Status


def row(us: float | None, noise: float = 0.0) -> Measurement:
    samples = tuple(us + noise * (place - 10) / 10 for place in range(21)) if us else ()
    status = Status.OK if us else Status.WRONG
    return Measurement(
        TOY.problem(8), Config.of(), status, Kind.MEASURED, samples_us=samples, median_us=us, spread=None
    )


def trials_until_over(patience: Patience, times: list[float | None], noise: float = 0.0) -> int | None:
    for count, us in enumerate(times, 1):
        patience.saw(row(us, noise))
        if patience.over:
            return count
    return None


@pytest.mark.parametrize(("trials", "window"), [(1, 40), (100, 40), (150, 60), (1001, 401)])
def test_the_window_grows_with_the_trials(trials: int, window: int) -> None:
    assert Patience(trials).window == window


def test_a_search_that_no_longer_improves_has_settled() -> None:
    assert trials_until_over(Patience(100), [5.0, 4.0, *[4.5] * 60]) == 42


def test_an_improvement_starts_the_count_again() -> None:
    assert trials_until_over(Patience(100), [5.0, *[5.0] * 39, 4.0, *[4.0] * 60]) == 81


@pytest.mark.parametrize(("us", "counts"), [(0.995, False), (0.98, True)])
def test_less_than_a_percent_is_no_improvement(us: float, counts: bool) -> None:
    assert trials_until_over(Patience(100), [1.0, *[1.0] * 38, us, *[1.0] * 60]) == (80 if counts else 41)


@pytest.mark.parametrize(("us", "counts"), [(0.97, False), (0.93, True)])
def test_less_than_the_bests_own_interval_is_no_improvement(us: float, counts: bool) -> None:
    # Samples to 10% either side: the interval is 0.95 to 1.05.
    assert trials_until_over(Patience(100), [1.0, *[1.0] * 38, us, *[1.0] * 60], 0.1) == (80 if counts else 41)


def test_failures_before_the_first_success_do_not_count() -> None:
    assert trials_until_over(Patience(100), [*[None] * 100, 1.0, *[None] * 60]) == 141


def test_what_was_known_before_is_to_be_beaten_but_does_not_count() -> None:
    patience = Patience(100)
    assert patience.better(row(1.0))
    assert not patience.better(row(1.5))
    assert trials_until_over(patience, [1.2] * 60) == 40
