"""Which configurations a network's step gets, what becomes of one that fails, and how the plan is shown."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

import kernels
from kernels.problems import STEPS_PER_GRAPH, gather_problem, loss_problem
from tests.trainer.plans import SMALL, T4, add, plan_of
from trainer.mlp import Network
from trainer.plan import Choice, with_steps
from trainer.plan_table import render_plan
from tuner.devices import find
from tuner.errors import UserError
from tuner.store import Rung, Store
from tuner.types import Config, Failure, Kind, Problem, Status


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


LOSS = loss_problem(SMALL.batch)


def configs(problem: Problem, count: int) -> list[Config]:
    """The first valid configurations of `problem` that are not its default."""
    space = kernels.ALL[problem.kernel].space(problem, T4)
    return list(islice((config for config in space if config != space.default()), count))


def test_an_empty_store_gives_the_defaults_in_the_order_of_a_step(store: Store) -> None:
    plan = plan_of(store)
    assert [(choice.problem.kernel, choice.problem.shape) for choice in plan.choices] == [
        ("gather_rows", f"8x784x{STEPS_PER_GRAPH}"),
        ("linear_forward", "8x784x16"),
        ("linear_forward", "8x16x16"),
        ("linear_forward", "8x16x10"),
        ("softmax_cross_entropy", "8x10"),
        ("linear_backward", "8x16x10"),
        ("linear_backward", "8x16x16"),
        ("linear_backward", "8x784x16"),
    ]
    assert [choice.problem.option("activation") for choice in plan.forward] == ["relu", "relu", "none"]
    assert [choice.problem.option("dx") for choice in plan.backward] == ["none", "relu", "relu"]
    assert all(choice.config == choice.kernel.space(choice.problem, T4).default() for choice in plan.choices)
    assert {choice.rung for choice in plan.choices} == {Rung.DEFAULT}
    assert plan.expected_us is None


def test_layers_of_one_size_are_looked_up_and_checked_once(store: Store) -> None:
    checked: list[Choice] = []
    plan = plan_of(store, Network(16, layers=5, batch=8), check=checked.append)
    assert len(plan.choices) == 14
    assert len(checked) == len({choice.problem for choice in plan.choices}) == 8


def test_the_expected_time_shares_the_gather_among_the_steps_of_a_graph(store: Store) -> None:
    for number, choice in enumerate(plan_of(store).choices):
        add(store, choice.kernel, choice.problem, choice.config, 100.0 if number == 0 else float(number))
    plan = plan_of(store)
    assert {choice.rung for choice in plan.choices} == {Rung.EXACT}
    assert plan.expected_us == pytest.approx(100.0 / STEPS_PER_GRAPH + sum(range(1, 8)))


def test_a_time_of_another_problem_or_device_is_not_expected_here(store: Store) -> None:
    [config] = configs(LOSS, 1)
    add(store, kernels.softmax_cross_entropy, loss_problem(SMALL.batch * 2), config, 3.0)
    choice = plan_of(store).loss
    assert (choice.config, choice.rung, choice.expected_us) == (config, Rung.NEAREST, None)
    elsewhere = plan_of(store, device=find("2080 Ti")).loss
    assert (elsewhere.config, elsewhere.rung, elsewhere.expected_us) == (config, Rung.ARCHITECTURE, None)
    add(store, kernels.softmax_cross_entropy, LOSS, config, 2.0, kind=Kind.PREDICTED, device=find("2080 Ti"))
    assert plan_of(store, device=find("2080 Ti")).loss.expected_us is None  # the measured one elsewhere goes first


def test_a_row_that_fails_is_quarantined_and_the_next_is_taken(store: Store) -> None:
    best, second = configs(LOSS, 2)
    bad = add(store, kernels.softmax_cross_entropy, LOSS, best, 1.0)
    add(store, kernels.softmax_cross_entropy, LOSS, second, 2.0)

    def check(choice: Choice) -> Failure | None:
        return Failure(Status.WRONG, "loss: relative error 1") if choice.config == best else None

    choice = plan_of(store, check=check).loss
    assert (choice.config, choice.rung, choice.expected_us) == (second, Rung.EXACT, 2.0)
    [quarantined] = [row for row in store.observations() if not row.measurement.ok]
    assert (quarantined.measurement.status, quarantined.measurement.message) == (Status.WRONG, "loss: relative error 1")
    assert quarantined.measurement.extra == {"quarantined": bad}
    assert plan_of(store).loss.config == second, "the next start does not even try it"


def test_what_fails_here_stays_true_where_it_was_measured(store: Store) -> None:
    [config] = configs(LOSS, 1)
    a100 = find("a100")
    add(store, kernels.softmax_cross_entropy, LOSS, config, 1.0, device=a100)
    other = find("NVIDIA A100-SXM4-80GB") if a100.name.endswith("40GB") else find("NVIDIA A100-SXM4-40GB")

    def check(choice: Choice) -> Failure | None:
        return Failure(Status.RUNTIME, "trap") if choice.config == config else None

    assert plan_of(store, check=check, device=other).loss.rung is Rung.DEFAULT
    assert plan_of(store, device=a100).loss.config == config
    assert plan_of(store, device=other).loss.config != config


def test_a_read_only_store_goes_on_to_the_next_row_too(store: Store) -> None:
    best, second = configs(LOSS, 2)
    add(store, kernels.softmax_cross_entropy, LOSS, best, 1.0)
    add(store, kernels.softmax_cross_entropy, LOSS, second, 2.0)
    store.close()

    def check(choice: Choice) -> Failure | None:
        return Failure(Status.WRONG, "") if choice.config == best else None

    with Store.open(f"sqlite:///{store.path}?mode=ro") as reader:
        assert plan_of(reader, check=check).loss.config == second


def test_a_default_that_fails_is_one_sentence(store: Store) -> None:
    [config] = configs(LOSS, 1)
    add(store, kernels.softmax_cross_entropy, LOSS, config, 1.0)

    def check(choice: Choice) -> Failure | None:
        return Failure(Status.COMPILE, "no such header") if choice.problem == LOSS else None

    with pytest.raises(UserError) as caught:
        plan_of(store, check=check)
    assert str(caught.value) == (
        "Not even the default configuration of softmax_cross_entropy 8x10 works on Tesla T4 "
        "(compile: no such header); run mnist-tune doctor."
    )
    assert len(store.observations()) == 2, "the row that failed before the default is quarantined"


def test_another_number_of_steps_keeps_the_gathers_configuration_but_not_its_time(store: Store) -> None:
    gather = gather_problem(SMALL.batch)
    [config] = configs(gather, 1)
    add(store, kernels.gather_rows, gather, config, 50.0)
    plan = plan_of(store)
    assert with_steps(plan, STEPS_PER_GRAPH) is plan
    short = with_steps(plan, 3)
    assert short.steps_per_graph == 3
    assert short.gather.problem == gather_problem(SMALL.batch, 3)
    assert (short.gather.config, short.gather.expected_us) == (config, None)
    assert short.forward == plan.forward


def shown(store: Store, width: int = 80, network: Network = SMALL) -> list[str]:
    paper = io.StringIO()
    Console(file=paper, width=width).print(render_plan(plan_of(store, network)))
    return [line.rstrip() for line in paper.getvalue().splitlines()]


def test_the_plan_fits_80_columns_with_one_line_per_kernel(store: Store) -> None:
    plan = plan_of(store)
    for choice in plan.choices:
        add(store, choice.kernel, choice.problem, choice.config, 2.5, kind=Kind.PREDICTED)
    lines = shown(store)
    assert max(len(line) for line in lines) <= 80
    assert lines[0].split() == ["kernel", "shape", "found", "expected", "us"]
    rows = [line for line in lines[1:-1] if not line.startswith(" ")]
    assert [row.split() for row in rows] == [
        [choice.problem.kernel, choice.problem.shape, "predicted", "2.50"] for choice in plan.choices
    ]
    assert len({len(row) for row in rows}) == 1, "the columns are straight"
    # Whole words only: what is under a kernel's line is its configuration, word by word.
    beneath = " ".join(line for line in lines if line.startswith("    ")).split()
    assert beneath == [word for choice in plan.choices for word in choice.config.label.split()]
    assert lines[-1] == f"Predicted, not measured: {7 * 2.5 + 2.5 / STEPS_PER_GRAPH:.2f} us per step of 784-16-16-10."


def test_the_same_configuration_is_not_repeated_line_after_line(store: Store) -> None:
    lines = shown(store, network=Network(16, layers=4, batch=8))
    assert sum(line.startswith("linear_forward") for line in lines) == 5
    assert sum(line.strip().startswith("ACCUMULATOR=") for line in lines) == 6


def test_the_caption_says_where_the_time_comes_from(store: Store) -> None:
    plan = plan_of(store)
    assert shown(store)[-1].startswith("    "), "no time, no caption"
    for choice in plan.choices:
        add(store, choice.kernel, choice.problem, choice.config, 1.0)
    assert shown(store)[-1] == "Expected: 7.02 us per step of 784-16-16-10."
    [config] = configs(LOSS, 1)
    for row in store.observations(problem=LOSS):
        store.quarantine(row.uuid, Status.WRONG, "", row.environment)
    add(store, kernels.softmax_cross_entropy, LOSS, config, 1.0, kind=Kind.PREDICTED)
    assert shown(store)[-1] == "Expected: 7.02 us per step of 784-16-16-10, predicted in part."
