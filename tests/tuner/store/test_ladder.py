"""Laws of the ladder, for any store."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tuner.store.conftest import DEVICES, Bench, Product, config, failed, measured
from tuner.space import Param, Space
from tuner.store import Rung, Store
from tuner.store.ladder import Candidate, Climb, Head, candidates, climb, comparable, default, distance
from tuner.types import Config, Device, Kind, Problem, Status

KERNEL = Product(Path(__file__))

law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine may take its time; only what is asserted counts."""

sizes = st.sampled_from([1, 10, 16, 32, 33, 64, 128, 300, 784, 1024])
problems = st.builds(
    lambda dims, activation: KERNEL.problem(*dims, activation=activation),
    st.tuples(sizes, sizes, st.sampled_from([16, 48, 64, 256, 1024])),
    st.sampled_from(["relu", "none"]),
)
few_problems = st.sampled_from(
    [KERNEL.problem(32, 784, n, activation=a) for n in (16, 64, 256) for a in ("relu", "none")]
)
devices = st.sampled_from(DEVICES)
configs = st.builds(config, st.sampled_from([16, 64, 256, 8]), st.sampled_from([1, 4]))


@st.composite
def heads(draw: st.DrawFn, problem: st.SearchStrategy[Problem]) -> list[Head]:
    """What a store may hold for one source: at most one head of each kind per configuration, problem and device."""
    places = draw(st.lists(st.tuples(problem, devices, configs), max_size=8, unique=True))
    found = []
    for number, (at, device, setting) in enumerate(places):
        kinds = draw(st.sampled_from([(Kind.MEASURED,), (Kind.PREDICTED,), (Kind.MEASURED, Kind.PREDICTED)]))
        latest = draw(st.sampled_from(kinds))
        for kind in kinds:
            status = draw(st.sampled_from([Status.OK, Status.OK, Status.WRONG]))
            found.append(
                Head(
                    uuid=f"{number} {kind}",
                    problem=at,
                    config=setting,
                    status=status,
                    message="",
                    kind=kind,
                    median_us=draw(st.sampled_from([1.0, 2.0, 3.0])) if status is Status.OK else None,
                    device_key=device.key,
                    device_name=device.name,
                    arch=device.arch,
                    sm_count=device.sm_count,
                    is_latest=kind is latest,
                )
            )
    return found


def run(rows: list[Head], problem: Problem, device: Device) -> tuple[Climb, Space, list[Candidate]]:
    pool = candidates(rows)
    space = KERNEL.space(problem, device)
    return climb(pool, problem, device, space), space, pool


def servable(pool: list[Candidate], space: Space, result: Climb, problem: Problem, kind: Kind) -> list[Head]:
    """Heads of `kind` that could be served for `problem`, from any device."""
    return [
        head
        for candidate in pool
        if (head := candidate.usable(kind)) and comparable(head.problem, problem)
        if head.config in space and head.config not in result.forbidden
    ]


@law
@given(heads(few_problems), few_problems, devices)
def test_a_prediction_never_beats_a_measurement(rows: list[Head], problem: Problem, device: Device) -> None:
    result, space, pool = run(rows, problem, device)
    measured_here = [head for head in servable(pool, space, result, problem, Kind.MEASURED) if head.arch == device.arch]
    if measured_here:
        assert result.head is not None
        assert result.head.kind is Kind.MEASURED
        assert result.head.arch == device.arch


@law
@given(heads(few_problems), few_problems, devices)
def test_the_first_rung_that_can_hold_does(rows: list[Head], problem: Problem, device: Device) -> None:
    result, space, pool = run(rows, problem, device)
    good = servable(pool, space, result, problem, Kind.MEASURED)
    here = [head for head in good if head.device_key == device.key]
    exact = [head for head in here if head.problem == problem]
    if exact:
        expected = Rung.EXACT
        assert result.head is not None
        assert result.head.median_us == min(head.median_us for head in exact if head.median_us)
    elif here:
        expected = Rung.NEAREST
        assert result.head is not None
        assert distance(result.head.problem, problem) == min(distance(head.problem, problem) for head in here)
    elif any(head.arch == device.arch for head in good):
        expected = Rung.ARCHITECTURE
    elif servable(pool, space, result, problem, Kind.PREDICTED):
        expected = Rung.PREDICTED
    else:
        expected = Rung.DEFAULT
    assert result.rung is expected
    assert (result.head is None) == (expected is Rung.DEFAULT)


@law
@given(heads(few_problems), few_problems, devices)
def test_what_is_served_is_valid_and_not_known_to_fail(rows: list[Head], problem: Problem, device: Device) -> None:
    result, space, _ = run(rows, problem, device)
    served = result.head.config if result.head else default(space, result.forbidden)
    assert served in space
    if result.head or len(result.forbidden) < 2:
        assert served not in result.forbidden


@law
@given(heads(few_problems), few_problems, devices, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(rows: list[Head], problem: Problem, device: Device, random) -> None:
    result, _, _ = run(rows, problem, device)
    random.shuffle(rows)
    again, _, _ = run(rows, problem, device)
    assert (again.rung, again.head, again.forbidden) == (result.rung, result.head, result.forbidden)


@law
@given(heads(few_problems), few_problems, devices)
def test_a_row_of_other_options_changes_nothing(rows: list[Head], problem: Problem, device: Device) -> None:
    result, _, _ = run(rows, problem, device)
    alone, _, _ = run([head for head in rows if head.problem.options == problem.options], problem, device)
    assert (alone.rung, alone.head) == (result.rung, result.head)


@law
@given(st.data())
def test_distance_is_a_metric(data: st.DataObject) -> None:
    options = data.draw(st.sampled_from(["relu", "none"]))
    a, b, c = (KERNEL.problem(*data.draw(st.tuples(sizes, sizes, sizes)), activation=options) for _ in range(3))
    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


@law
@given(st.tuples(sizes, sizes, sizes), st.integers(0, 2), st.integers(1, 6))
def test_scaling_one_dimension_by_two_to_the_n_is_n_away(dims: tuple[int, int, int], which: int, steps: int) -> None:
    scaled = tuple(size << steps if index == which else size for index, size in enumerate(dims))
    assert distance(KERNEL.problem(*dims), KERNEL.problem(*scaled)) == pytest.approx(steps)


@law
@given(problems, problems)
def test_problems_of_other_options_have_no_distance(a: Problem, b: Problem) -> None:
    if a.options != b.options:
        with pytest.raises(ValueError, match="cannot be compared"):
            distance(a, b)
    else:
        assert math.isfinite(distance(a, b))


def test_swapped_dimensions_are_far_apart() -> None:
    here = KERNEL.problem(32, 1024, 64)
    assert distance(here, KERNEL.problem(32, 64, 1024)) == pytest.approx(4 * math.sqrt(2))
    assert distance(here, KERNEL.problem(32, 1024, 64)) == 0
    assert distance(here, KERNEL.problem(32, 512, 64)) == 1


def test_the_order_in_which_sizes_are_named_does_not_matter() -> None:
    one, other = Problem.of("k", {"a": 2, "b": 8}), Problem.of("k", {"b": 8, "a": 2})
    assert distance(one, other) == 0


@law
@given(st.sets(st.integers(0, 7), max_size=8))
def test_the_default_moves_as_little_as_it_must(failing: set[int]) -> None:
    space = Space((Param("A", (0, 1), 1), Param("B", (0, 1), 0), Param("C", (0, 1), 1)))
    every = list(space)
    forbidden = [every[index] for index in failing]
    chosen = default(space, forbidden)
    if len(failing) == len(every):
        assert chosen == space.default()
        return

    def moved(setting: Config) -> int:
        return sum(setting[name] != space.default()[name] for name in setting)

    assert chosen not in forbidden
    assert moved(chosen) == min(moved(setting) for setting in every if setting not in forbidden)


Action = tuple[str, int, Device, Config, float]
actions = st.lists(
    st.tuples(
        st.sampled_from(["ok", "ok", "predicted", "failed", "edit"]),
        st.sampled_from([16, 64, 256]),
        devices,
        configs,
        st.sampled_from([1.0, 2.0, 3.0]),
    ),
    max_size=10,
)


@settings(law, max_examples=40)
@given(actions, devices)
def test_a_store_never_serves_another_source_and_always_says_why(
    empty: Path,
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[str, int, Device, Config, float]],
    device: Device,
) -> None:
    folder = tmp_path_factory.mktemp("kernel")
    shutil.copyfile(empty, folder / "tuning.db")
    source = folder / "product.cu"
    source.write_text("0")
    with Store.open(folder / "tuning.db") as store:
        bench = Bench(store, Product(source))
        for number, (action, outputs, at, setting, time_us) in enumerate(history):
            problem = bench.problem(outputs=outputs)
            if action == "edit":
                source.write_text(str(number))
            elif action == "failed":
                bench.record(failed(problem, setting), at)
            else:
                kind = Kind.PREDICTED if action == "predicted" else Kind.MEASURED
                bench.record(replace(measured(problem, setting, time_us), kind=kind), at)
        problem = bench.problem(outputs=64)
        match = bench.lookup(problem, device)
        if match.observation:
            assert match.observation.source_hash == bench.kernel.source_hash
        assert match.config in bench.kernel.space(problem, device)
        # One reason at least for each rung above the one that held, and none for those below.
        above = list(Rung)[: list(Rung).index(match.rung)]
        assert list(dict.fromkeys(rung for rung, _ in match.reasons)) == above
        exact = bench.store.best(problem, device, bench.kernel.source_hash)
        if exact and exact.measurement.config in bench.kernel.space(problem, device):
            assert match.observation == exact
