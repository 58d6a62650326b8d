"""A check passes what is right and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.toy import TOY, Toy, ToyRunner
from tuner.flags import any_of
from tuner.kernel import Argument, Array, Role
from tuner.types import Config, Failure, Status
from tuner.verify import _littered, compare, input_seed, rehearse, verify

PROBLEM = TOY.problem(1000)
CONFIG = Config.of(TILE=64, STAGES=2, MODE="plain")


def test_right_output_passes_with_its_error_and_tolerance() -> None:
    verdict = verify(ToyRunner(), TOY, PROBLEM, CONFIG, None, seed=0)
    assert verdict.ok
    assert verdict.error is not None
    assert verdict.error < 1e-7
    assert verdict.tolerance == 1e-6
    assert verdict.verified_by == "emulation"


def _set(name: str, index: Any, value: Any) -> Callable[[dict[str, Any]], object]:
    def spoil(after: dict[str, Any]) -> None:
        after[name][index] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_set("y", 7, 99.0), r"y: relative error .*worst at \(7\): 99"),
        (_set("y", 3, np.nan), r"y: 1 of 1000 elements are not finite .*first at \(3\)"),
        (_set("y", 5, np.inf), r"y: 1 of 1000 elements are not finite"),
        (_set("y", slice(900, None), np.nan), r"y: 100 of 1000 elements .*first at \(900\)"),
        (_set("x", 0, 5.0), r"x: an input was changed"),
        (_set("arrived", 0, 1), r"arrived: a counter is not zero"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(spoil: Callable[[dict[str, Any]], object], words: str) -> None:
    verdict = verify(ToyRunner(spoil), TOY, PROBLEM, CONFIG, None, seed=0)
    assert verdict.status is Status.WRONG
    assert re.search(words, verdict.message), verdict.message


def test_a_failure_to_run_keeps_its_status() -> None:
    class Faulty(ToyRunner):
        def execute(self, *_: Any, **__: Any) -> Failure:
            return Failure(Status.RUNTIME, "illegal address")

    verdict = verify(Faulty(), TOY, PROBLEM, CONFIG, None, seed=0)
    assert (verdict.status, verdict.message, verdict.error) == (Status.RUNTIME, "illegal address", None)


def test_worst_element_of_a_matrix() -> None:
    reference = np.ones((3, 4))
    found = reference.copy()
    found[2, 1] = 3.0
    error, worst, complaint = compare("Y", found, reference, 0.1, 8.0)
    assert worst == pytest.approx(1.0)
    assert error == pytest.approx(2 / np.sqrt(12))
    assert complaint is not None
    assert "worst at (2, 1): 3, not 1" in complaint


def test_a_nan_in_the_reference_never_passes() -> None:
    assert compare("Y", np.ones(2), np.array([1.0, np.nan]), 1.0, 8.0).complaint is not None


def test_integers_are_compared_exactly() -> None:
    assert compare("n", np.array([1, 2]), np.array([1, 2]), 0.0, 8.0) == (0.0, 0.0, None)
    assert compare("n", np.array([1, 3]), np.array([1, 2]), 0.0, 8.0).complaint is not None


def test_a_shape_that_differs_is_a_bug() -> None:
    with pytest.raises(ValueError, match="reference"):
        compare("Y", np.ones(3), np.ones(4), 1.0, 8.0)


@given(st.floats(1e-6, 1e3), st.floats(0, 1))
def test_the_error_is_relative_to_the_reference(scale: float, off: float) -> None:
    reference = scale * np.arange(1.0, 9.0)
    error = compare("Y", reference * (1 + off), reference, np.inf, 8.0).error
    assert error == pytest.approx(off, abs=1e-12)


@pytest.mark.parametrize(("off", "passes"), [(0.9, False), (0.017, False), (0.015, True)])
def test_one_wrong_element_in_a_million_fails(off: float, passes: bool) -> None:
    """Its limit: eight times the tolerance of 1e-3, times the element itself plus the root mean square (1 + 1)."""
    reference = np.where(np.arange(1_000_000) % 3, 1.0, -1.0)
    found = reference.copy()
    found[333_334] += off
    error, worst, complaint = compare("y", found, reference, 1e-3, 8.0)
    assert error == pytest.approx(off / 1000)
    assert error < 1e-3, "the Frobenius error alone would let it pass"
    assert worst == pytest.approx(off / 2)
    assert (complaint is None) is passes
    assert passes or "an element's error" in str(complaint)
    assert passes or "worst at (333334)" in str(complaint)


def test_a_kernel_says_how_far_an_element_may_be_off() -> None:
    class Strict(Toy):
        worst_element = 0.01

    class Lax(Toy):
        worst_element = 1e9

    spoiled = ToyRunner(_set("y", 17, np.float32(99)))
    assert verify(ToyRunner(), Strict(), PROBLEM, CONFIG, None, seed=0).message.startswith("y: an element's error")
    assert verify(spoiled, Lax(), PROBLEM, CONFIG, None, seed=0).message.startswith("y: relative error")


@given(st.integers(0, 1000), st.sampled_from([np.float16, np.float32]))
def test_a_rounding_is_no_outlier(seed: int, dtype: Any) -> None:
    reference = np.random.default_rng(seed).normal(size=1000)
    unit = float(np.finfo(dtype).eps) / 2
    found = reference.astype(dtype)
    assert compare("y", found, reference, unit, 8.0).worst == pytest.approx(0, abs=unit)


def test_a_reference_of_zeros_is_compared_absolutely() -> None:
    assert compare("y", np.full(3, 1e-4), np.zeros(3), 1e-3, 8.0) == (pytest.approx(3**0.5 * 1e-4), 1e-4, None)
    assert compare("y", np.full(3, 1e-2), np.zeros(3), 1e-3, 8.0).complaint is not None


@pytest.mark.parametrize("extreme", [np.fmax, np.fmin])
def test_stale_outputs_that_hide_from_nan_are_found(extreme: Any) -> None:
    """The maximum (or minimum) of a number and NaN is the number."""

    class Stale(ToyRunner):
        def execute(self, *given: Any, **how: Any) -> Any:
            x, y = given[4][:2]
            before = np.full_like(y.data, np.nan) if y.role is Role.OUT else y.data
            after = super().execute(*given, **how)
            assert not isinstance(after, Failure)
            return {**after, "y": extreme(2 * x.data + np.float32(1), before)}

    verdict = verify(Stale(), TOY, PROBLEM, CONFIG, None, seed=0)
    assert verdict.status is Status.WRONG
    assert re.search(r"^y: not reproducible, a second launch .* differs at \(\d\): ", verdict.message), verdict.message
    assert verdict.error is not None


def test_other_bits_at_a_second_launch_are_wrong_however_near() -> None:
    class Unsteady(ToyRunner):
        def execute(self, *given: Any, **how: Any) -> Any:
            after: Any = super().execute(*given, **how)
            if how.get("order") == 1:
                after["y"][5] = np.nextafter(after["y"][5], np.float32(np.inf))
            return after

    verdict = verify(Unsteady(), TOY, PROBLEM, CONFIG, None, seed=0)
    assert verdict.status is Status.WRONG
    assert "y: not reproducible" in verdict.message
    assert "differs at (5)" in verdict.message


def test_a_second_launch_that_fails_is_told() -> None:
    class Once(ToyRunner):
        def execute(self, *given: Any, **how: Any) -> Any:
            return super().execute(*given, **how) if how.get("order", 0) == 0 else Failure(Status.RUNTIME, "trap")

    verdict = verify(Once(), TOY, PROBLEM, CONFIG, None, seed=0)
    assert (verdict.status, verdict.message) == (Status.RUNTIME, "in a second launch: trap")


def test_the_second_launch_has_the_same_inputs_and_other_outputs() -> None:
    seen: list[list[Argument]] = []

    class Watched(ToyRunner):
        def execute(self, *given: Any, **how: Any) -> Any:
            seen.append(list(given[4]))
            return super().execute(*given, **how)

    assert verify(Watched(), TOY, PROBLEM, CONFIG, None, seed=0).ok
    first, second = seen
    assert first[0] is second[0]
    assert first[2:] == second[2:]
    litter = second[1]
    assert isinstance(litter, Array)
    assert litter.role is Role.INOUT
    assert (litter.data[0::2] > 1e36).all()
    assert (litter.data[1::2] < -1e36).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_litter_is_finite_and_large_in_every_type(dtype: Any) -> None:
    (litter,) = _littered([Array("w", np.zeros((3, 5), dtype), Role.SCRATCH)])
    assert isinstance(litter, Array)
    assert np.isfinite(litter.data).all()
    assert (np.abs(litter.data.astype(np.float64)) > 100).all()
    assert litter.data.shape == (3, 5)


def test_rehearsing_launches_nothing_and_changes_nothing() -> None:
    arguments = TOY.arguments(PROBLEM, CONFIG, np.random.default_rng(0))
    before = [item.data.copy() for item in arguments if isinstance(item, Array)]
    rehearse(TOY, PROBLEM, CONFIG, arguments)
    after = [item.data for item in arguments if isinstance(item, Array)]
    assert all((one == other).all() for one, other in zip(before[::2], after[::2], strict=True))


def test_inputs_are_fresh_for_each_candidate_and_repeatable() -> None:
    other = Config.of(TILE=32, STAGES=2, MODE="plain")
    seeds = {input_seed(0, PROBLEM, CONFIG), input_seed(1, PROBLEM, CONFIG), input_seed(0, PROBLEM, other)}
    assert len(seeds) == 3
    assert input_seed(0, PROBLEM, CONFIG) == input_seed(0, PROBLEM, CONFIG)


@pytest.mark.parametrize("shape", [(1,), (33,), (4, 5), ()])
def test_any_of_is_any(shape: tuple[int, ...]) -> None:
    none = np.zeros(shape, dtype=bool)
    assert not any_of(none)
    one = none.copy()
    one[tuple(size - 1 for size in shape)] = True
    assert any_of(one) == 1


def test_no_check_reduces_by_any_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy would compile one with CUB for every size that comes along, within a candidate's time limit."""

    class Watched(np.ndarray):  # type: ignore[type-arg]
        def any(self, *given: Any, **how: Any) -> Any:
            raise AssertionError("any")

        def all(self, *given: Any, **how: Any) -> Any:
            raise AssertionError("all")

    class Watching(ToyRunner):
        def execute(self, *given: Any, **how: Any) -> Any:
            after: Any = super().execute(*given, **how)
            return {name: value.view(Watched) for name, value in after.items()}

    assert verify(Watching(), TOY, PROBLEM, CONFIG, None, seed=0).ok
