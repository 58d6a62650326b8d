"""The table against cuBLAS, and each way in which the criterion can fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kernels
from benchmarks import speedups
from benchmarks.speedups import bare, fused_problems, judged, measured_device, standing
from kernels.problems import gather_problem, loss_problem
from tests.tuner.toy import ENVIRONMENT
from tuner.devices import find
from tuner.errors import UserError
from tuner.store import Store
from tuner.types import CacheState, Config, Environment, Kind, Measurement, Problem, Status

DEVICE = find("h200")
PROBLEMS = fused_problems([64], 2, 32)
SQUARE = kernels.linear_forward.problem(32, 64, 64)


def by_cublas(problem: Problem) -> Config:
    [config] = kernels.ALL[problem.kernel].also()
    return config


def row(problem: Problem, us: float, config: Config | None = None, **fields: Any) -> Measurement:
    """Three samples, within 1% of `us`."""
    config = config or kernels.ALL[problem.kernel].space(problem, DEVICE).default()
    made = Measurement(
        problem,
        config,
        Status.OK,
        Kind.MEASURED,
        samples_us=(0.99 * us, us, 1.01 * us),
        median_us=us,
        spread=0.01,
        cache=CacheState.HOT,
    )
    return replace(made, **fields)


def record(store: Store, measurement: Measurement, environment: Environment = ENVIRONMENT) -> None:
    kernel = kernels.ALL[measurement.problem.kernel]
    store.record(measurement, kernel=kernel, device=DEVICE, environment=environment)


def fill(
    store: Store,
    ours: Mapping[Problem, float] | None = None,
    library: Mapping[Problem, float] | None = None,
    products: Mapping[Problem, float] | None = None,
) -> None:
    """Ours 2 us, the library's way 4 us, its products 3 us, unless told."""
    for problem in PROBLEMS:
        record(store, row(problem, (ours or {}).get(problem, 2.0)))
        record(store, row(problem, (library or {}).get(problem, 4.0), by_cublas(problem)))
        samples = [(products or {}).get(problem, 3.0)]
        store.record_baseline(problem, DEVICE, ENVIRONMENT, "cuBLAS", samples, CacheState.HOT)


def verdict(store: Store, **limits: Any) -> dict[str, Any]:
    baselines = store.baselines(DEVICE)
    standings = [standing(store, DEVICE, problem, baselines) for problem in PROBLEMS]
    square = bare(64, 32, lambda problem: standing(store, DEVICE, problem, baselines))
    asked: dict[str, Any] = {"mean": 1.5, "bare_ratio": 0.9, "apart": timedelta(hours=1), **limits}
    return judged(standings, {64: square}, **asked)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def test_the_problems_are_those_with_products() -> None:
    assert len(PROBLEMS) == 6
    assert {problem.kernel for problem in PROBLEMS} == {"linear_forward", "linear_backward"}
    assert SQUARE in PROBLEMS
    assert not {gather_problem(32), loss_problem(32)} & set(PROBLEMS)


def test_the_criterion_holds_where_all_is_faster(store: Store) -> None:
    fill(store)
    found = verdict(store)
    assert found["holds"] is True
    assert found["geometric_mean"] == pytest.approx(2.0)
    assert found["bare"] == {"64": 1.5}
    assert [found[name] for name in ("served_slower", "not_measured", "bare_too_slow", "not_one_session")] == [[]] * 4


def test_a_geometric_mean_that_is_too_small_fails(store: Store) -> None:
    fill(store, ours=dict.fromkeys(PROBLEMS[:5], 3.0))
    found = verdict(store)
    assert found["geometric_mean"] == pytest.approx((4 / 3) ** (5 / 6) * 2 ** (1 / 6))
    assert found["holds"] is False
    assert verdict(store, mean=1.4)["holds"] is True


def test_one_problem_that_is_served_slower_fails(store: Store) -> None:
    fill(store)
    # It stands at the time of the fastest of its tie, and takes more.
    record(store, row(SQUARE, 4.2, extra={"finalist": True, "tied_with": 1, "tied_us": 3.9, "tie_rank": 0}))
    found = verdict(store, bare_ratio=0.0, mean=1.0)
    assert (found["served_slower"], found["holds"]) == ([SQUARE.label], False)


def test_what_cannot_be_told_apart_is_not_slower(store: Store) -> None:
    fill(store)
    # From 4.01 to 4.09; the library's way from 3.96 to 4.04.
    record(store, row(SQUARE, 4.05, extra={"finalist": True, "tied_with": 1, "tied_us": 3.9, "tie_rank": 0}))
    assert verdict(store, bare_ratio=0.0)["served_slower"] == []


def test_a_problem_may_be_served_by_the_library(store: Store) -> None:
    fill(store, ours={SQUARE: 5.0})
    found = verdict(store, bare_ratio=0.6)
    assert (found["served_by_library"], found["served_slower"]) == ([SQUARE.label], [])
    assert found["geometric_mean"] == pytest.approx(2 ** (5 / 6))
    assert found["holds"] is True


def test_a_row_of_another_library_form_is_not_its_time(store: Store) -> None:
    fill(store)
    old = Config.of({**by_cublas(SQUARE), "SOURCE": "0" * 8})
    record(store, row(SQUARE, 9.0, old))
    assert standing(store, DEVICE, SQUARE, store.baselines(DEVICE)).speedup == 2.0


def test_a_bare_product_that_is_too_slow_fails(store: Store) -> None:
    fill(store, products={SQUARE: 1.7})
    found = verdict(store)
    assert (found["bare_too_slow"], found["holds"]) == ([64], False)
    assert verdict(store, bare_ratio=0.85)["holds"] is True


def test_the_bare_product_is_that_without_activation_where_it_was_measured(store: Store) -> None:
    fill(store, products={SQUARE: 1.7})
    plain = kernels.linear_forward.problem(32, 64, 64, activation="none")
    record(store, row(plain, 1.6))
    store.record_baseline(plain, DEVICE, ENVIRONMENT, "cuBLAS", [1.7], CacheState.HOT)
    found = verdict(store)
    assert found["bare_problems"] == {"64": plain.label}
    assert found["holds"] is True


def test_the_bare_product_is_our_own_kernel_even_where_cublas_is_faster(store: Store) -> None:
    fill(store, ours={SQUARE: 6.0}, products={SQUARE: 3.0})
    assert verdict(store)["bare"] == {"64": 0.5}


def test_a_problem_without_the_librarys_way_is_not_measured(store: Store) -> None:
    for problem in PROBLEMS:
        record(store, row(problem, 2.0))
        store.record_baseline(problem, DEVICE, ENVIRONMENT, "cuBLAS", [3.0], CacheState.HOT)
    found = verdict(store)
    assert found["not_measured"] == [problem.label for problem in PROBLEMS]
    assert (found["geometric_mean"], found["holds"]) == (None, False)


def test_times_in_another_state_of_the_cache_are_not_compared(store: Store) -> None:
    fill(store)
    record(store, row(SQUARE, 1.0, cache=CacheState.COLD))  # the latest row of what is served
    assert verdict(store)["not_measured"] == [SQUARE.label]


def test_a_failed_library_form_has_no_time(store: Store) -> None:
    fill(store)
    record(store, row(SQUARE, 1.0, by_cublas(SQUARE), status=Status.WRONG, median_us=None, samples_us=(), spread=None))
    assert verdict(store)["not_measured"] == [SQUARE.label]


def test_times_of_two_sessions_are_not_compared(store: Store) -> None:
    fill(store)
    record(store, row(SQUARE, 2.0), replace(ENVIRONMENT, driver="another"))
    found = verdict(store)
    assert (found["not_one_session"], found["holds"]) == ([SQUARE.label], False)
    assert len(verdict(store, apart=timedelta(0))["not_one_session"]) == len(PROBLEMS)


def test_the_command_prints_a_table_and_writes_the_document(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store)
    out = tmp_path / "speedups.json"
    given = ["speedups", "--db", str(store.path), "--widths", "64", "--layers", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", given)
    assert speedups.main() == 0
    printed = capsys.readouterr().out
    assert "The criterion holds." in printed
    document = json.loads(out.read_text())
    assert document["holds"] is True
    assert [each["problem"] for each in document["problems"]] == [problem.label for problem in PROBLEMS]
    [square] = [each for each in document["problems"] if each["problem"] == SQUARE.label]
    assert (square["served_us"], square["library_us"], square["products_us"]) == (2.0, 4.0, 3.0)
    assert (square["speedup"], square["products_ratio"], square["served_by"]) == (2.0, 1.5, "ours")
    monkeypatch.setattr("sys.argv", [*given, "--mean", "3"])
    assert speedups.main() == 1
    assert "The criterion does not hold." in capsys.readouterr().out


def test_an_empty_store_is_said(store: Store) -> None:
    with pytest.raises(UserError, match="of those measured in the store: none"):
        measured_device(store, None)


def test_a_device_is_meant_by_a_part_of_its_name(store: Store) -> None:
    fill(store)
    assert measured_device(store, "h200") == measured_device(store, None) == DEVICE
    with pytest.raises(UserError, match="0 devices fit"):
        measured_device(store, "T4")


def test_problems_that_were_not_measured_are_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    monkeypatch.setattr("sys.argv", ["speedups", "--db", str(store.path), "--widths", "256", "--batch", "64"])
    with pytest.raises(UserError, match="No such problem was measured on NVIDIA H200"):
        speedups.main()
