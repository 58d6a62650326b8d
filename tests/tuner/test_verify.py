"""A check passes what is right and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.toy import TOY, ToyRunner
from tuner.types import Config, Failure, Status
from tuner.verify import compare, input_seed, verify

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
    error, worst, complaint = compare("Y", found, reference, 0.1)
    assert worst == pytest.approx(1.0)
    assert error == pytest.approx(2 / np.sqrt(12))
    assert complaint is not None
    assert "worst at (2, 1): 3, not 1" in complaint


def test_a_nan_in_the_reference_never_passes() -> None:
    assert compare("Y", np.ones(2), np.array([1.0, np.nan]), 1.0).complaint is not None


def test_integers_are_compared_exactly() -> None:
    assert compare("n", np.array([1, 2]), np.array([1, 2]), 0.0) == (0.0, 0.0, None)
    assert compare("n", np.array([1, 3]), np.array([1, 2]), 0.0).complaint is not None


def test_a_shape_that_differs_is_a_bug() -> None:
    with pytest.raises(ValueError, match="reference"):
        compare("Y", np.ones(3), np.ones(4), 1.0)


@given(st.floats(1e-6, 1e3), st.floats(0, 1))
def test_the_error_is_relative_to_the_reference(scale: float, off: float) -> None:
    reference = scale * np.arange(1.0, 9.0)
    error = compare("Y", reference * (1 + off), reference, np.inf).error
    assert error == pytest.approx(off, abs=1e-12)


def test_inputs_are_fresh_for_each_candidate_and_repeatable() -> None:
    other = Config.of(TILE=32, STAGES=2, MODE="plain")
    seeds = {input_seed(0, PROBLEM, CONFIG), input_seed(1, PROBLEM, CONFIG), input_seed(0, PROBLEM, other)}
    assert len(seeds) == 3
    assert input_seed(0, PROBLEM, CONFIG) == input_seed(0, PROBLEM, CONFIG)
