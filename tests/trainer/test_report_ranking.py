"""Rank correlation against known values, and the model's account in every form of the report."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import kernels
from tests.trainer.report_rows import GPU_HOST, H200, KERNELS, TOY
from tests.trainer.report_rows import measured as toy_row
from trainer.report import run_report
from trainer.report.ranking import LEAST_ROWS, rankings, spearman
from tuner.backends.model import Prediction, predict
from tuner.kernel import Kernel
from tuner.store import Observation, Store
from tuner.types import Binary, CacheState, Config, Kind, Measurement, Status

FORWARD = kernels.linear_forward
PROBLEM = FORWARD.problem(32, 256, 256)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4, 5], [5, 6, 7, 8, 7], 0.8207826816681233),  # the example of scipy.stats.spearmanr
        ([1, 2, 3], [10, 20, 1000], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        # 1 - 6 * sum(d^2) / (n (n^2 - 1)) = 1 - 6 * 194 / 990, the IQ example of Wikipedia
        (
            [106, 100, 86, 101, 99, 103, 97, 113, 112, 110],
            [7, 27, 2, 50, 28, 29, 20, 12, 6, 17],
            1 - 6 * 194 / 990,
        ),
        ([1, 1, 2, 2], [1, 2, 1, 2], 0.0),
        ([1, 1, 2], [1, 2, 3], 0.8660254037844387),  # ranks 0.5, 0.5, 2 against 0, 1, 2
        ([1, 1, 1], [1, 2, 3], None),
        ([1], [1], None),
        ([], [], None),
    ],
)
def test_known_values(first: list[float], second: list[float], expected: float | None) -> None:
    found = spearman(first, second)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_sides_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values cannot be paired with 1"):
        spearman([1, 2], [1])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=40))
def test_only_the_order_counts(pairs: list[tuple[int, int]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = spearman(first, second)
    assert found == spearman([a**3 + 7 for a in first], second)
    other_way = spearman(second, first)
    if found is None:
        assert other_way is None
    else:
        assert -1 - 1e-12 <= found <= 1 + 1e-12
        assert other_way == pytest.approx(found)


def predicted_us(config: Config) -> float:
    binary = Binary(Path(), FORWARD.name, H200.arch, 64, 0, 0)
    launch, work = FORWARD.launch(PROBLEM, config), FORWARD.work(PROBLEM, config)
    seen = predict(H200, launch, binary, work, CacheState.HOT)
    assert isinstance(seen, Prediction)
    return seen.us


def row(config: Config, us: float | None, **fields: Any) -> Measurement:
    made: dict[str, Any] = {
        "problem": PROBLEM,
        "config": config,
        "status": Status.OK if us else Status.WRONG,
        "kind": Kind.MEASURED,
        "samples_us": (us,) * 3 if us else (),
        "median_us": us,
        "cache": CacheState.HOT,
        "registers": 64,
        "shared_bytes": FORWARD.launch(PROBLEM, config).shared_bytes,
        "spill_bytes": 0,
        "verified_by": "cuda",
    }
    return Measurement(**(made | fields))


def configs(count: int) -> list[Config]:
    """Of different predicted times."""
    found: dict[float, Config] = {}
    for config in FORWARD.space(PROBLEM, H200):
        found.setdefault(predicted_us(config), config)
        if len(found) == count:
            break
    return list(found.values())


CONFIGS = configs(12)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def keep(store: Store, rows: list[Measurement], kernel: Kernel = FORWARD) -> list[Observation]:
    for each in rows:
        store.record(each, kernel=kernel, device=H200, environment=GPU_HOST)
    return store.observations(device=H200)


def test_a_model_that_is_right_has_a_correlation_of_one(store: Store) -> None:
    [found] = rankings(keep(store, [row(config, 2 * predicted_us(config)) for config in CONFIGS]), kernels.ALL)
    assert (found.kernel, found.rows, found.pooled, found.mean, found.least) == (
        "linear_forward",
        12,
        *[pytest.approx(1.0)] * 3,
    )
    [problem] = found.problems
    assert (problem.shape, problem.options, problem.rows) == ("32x256x256", "activation=relu", 12)
    assert problem.top_over_best == 1.0
    assert problem.predicted_over_measured == pytest.approx(0.5)


def test_a_model_that_has_it_backwards_has_minus_one(store: Store) -> None:
    [found] = rankings(keep(store, [row(config, 1 / predicted_us(config)) for config in CONFIGS]), kernels.ALL)
    assert found.pooled == pytest.approx(-1.0)
    # The two fastest are its two worst guesses.
    times = sorted(1 / predicted_us(config) for config in CONFIGS)
    assert found.problems[0].top_over_best == pytest.approx(times[2] / times[0])


def test_what_does_not_count(store: Store) -> None:
    good = [row(config, predicted_us(config)) for config in CONFIGS[: LEAST_ROWS - 1]]
    others = [
        row(CONFIGS[9], None),
        row(CONFIGS[10], 5.0, kind=Kind.PREDICTED),
        row(CONFIGS[11], 5.0, registers=None),
        row(CONFIGS[0], 7.0),  # a second row of the same configuration
    ]
    seen = keep(store, [*good, *others])
    assert rankings(seen, kernels.ALL) == ()
    stale = [replace(observation, source_hash="older") for observation in seen]
    assert rankings([*stale, *seen], kernels.ALL) == ()
    assert rankings(seen, {}) == ()


def test_a_configurations_latest_row_counts(store: Store) -> None:
    first = [row(config, 1 / predicted_us(config)) for config in CONFIGS]
    [found] = rankings(keep(store, [*first, *(row(config, predicted_us(config)) for config in CONFIGS)]), kernels.ALL)
    assert found.rows == 12
    assert found.pooled == pytest.approx(1.0)


def run(store: Store, width: int = 100, **options: Any) -> str:
    out = io.StringIO()
    arguments = {"html": None, "as_json": False, "markdown": False, "model": True, **options}
    assert run_report(str(store.path), console=Console(file=out, width=width), **arguments) == 0
    return out.getvalue()


def test_every_form_has_it(store: Store, tmp_path: Path) -> None:
    keep(store, [row(config, 2 * predicted_us(config)) for config in CONFIGS])
    shown = run(store)
    assert "NVIDIA H200" in shown
    assert "mean 1.00, least 1.00" in shown
    assert "0.500×" in shown
    assert "Problems" not in shown
    assert max(map(len, run(store, 80).splitlines())) <= 80
    assert "| **linear_forward** | 12 | 1.00 | mean 1.00, least 1.00 |  |  |" in run(store, markdown=True)
    [device] = json.loads(run(store, as_json=True))["devices"]
    assert set(device) == {"device", "rankings"}
    assert device["rankings"][0]["problems"][0]["spearman"] == pytest.approx(1.0)
    run(store, html=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "The model against the measurements" in page
    assert "mean 1.00, least 1.00" in page


def test_too_little_to_judge_is_said(store: Store, tmp_path: Path) -> None:
    keep(store, [toy_row(8, 4.0)], TOY)
    assert KERNELS["toy"] is TOY
    for text in (run(store), run(store, markdown=True)):
        assert "the model cannot be judged" in text
    run(store, html=tmp_path / "page.html")
    assert "The model against" not in (tmp_path / "page.html").read_text()
