"""Which form of the step a network gets, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kernels
from kernels.problems import mlp_problems, resident_problem, streaming_problem
from tests.trainer.plans import T4, add, passes
from tests.trainer.report_rows import LAPTOP
from trainer.engines.choose import choose
from trainer.mlp import Network
from trainer.plan import Choice, Form, Plan, WholeStepPlan
from tuner.devices import find
from tuner.errors import UserError
from tuner.store import Store
from tuner.types import Config, Failure, Kind, Status

NETWORK = Network(32)
GRAPH_US = 1.0
"""Of each kernel."""


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("sqlite://") as store:
        for problem in mlp_problems(32, 3, 32):
            if problem.kernel == "mlp_resident":
                continue
            kernel = kernels.ALL[problem.kernel]
            add(store, kernel, problem, kernel.space(problem, T4).default(), GRAPH_US)
        yield store


def resident_takes(store: Store, us_per_step: float, kind: Kind = Kind.MEASURED) -> None:
    problem = resident_problem(32, 3, 32)
    config = Config.of(CLUSTER=0, WARPS=8, SPLIT_K=1, X_BUFFERS=0)
    add(store, kernels.mlp_resident, problem, config, us_per_step * problem["steps"], kind=kind)


def chosen(store: Store, form: Form = Form.AUTO, network: Network = NETWORK) -> tuple[Plan | WholeStepPlan, str]:
    return choose(store, network, T4, LAPTOP, check=passes, form=form)


def test_the_faster_one_is_taken(store: Store) -> None:
    # Four layers forward and backward, the loss, and a fiftieth of the gather.
    graph_us = 9 * GRAPH_US + GRAPH_US / 50
    resident_takes(store, 5.0)
    plan, why = chosen(store)
    assert isinstance(plan, WholeStepPlan)
    assert why == f"persistent: 5.00 us expected (graph {graph_us:.2f} us, streaming does not fit this device)"


def test_a_slower_resident_form_is_not(store: Store) -> None:
    resident_takes(store, 50.0)
    plan, why = chosen(store)
    assert isinstance(plan, Plan)
    assert why == "graph: 9.02 us expected (persistent 50.00 us, streaming does not fit this device)"


def test_what_was_only_predicted_is_not_taken(store: Store) -> None:
    resident_takes(store, 0.1, Kind.PREDICTED)
    plan, why = chosen(store)
    assert isinstance(plan, Plan)
    assert "persistent not measured for this network on this device" in why


def test_what_does_not_fit_is_said(store: Store) -> None:
    plan, why = chosen(store, network=Network(4096))
    assert isinstance(plan, Plan)
    assert "persistent does not fit this device" in why
    with pytest.raises(UserError, match="train with --engine graph"):
        chosen(store, Form.PERSISTENT, Network(4096))


def test_what_is_asked_for_is_taken(store: Store) -> None:
    resident_takes(store, 0.1)
    assert chosen(store, Form.GRAPH)[1] == "graph, as asked"
    assert chosen(store, Form.PERSISTENT)[1] == "persistent, as asked"


def test_a_resident_row_that_does_not_work_here_leaves_the_graph(store: Store) -> None:
    resident_takes(store, 0.1)
    measured = Config.of(CLUSTER=0, WARPS=8, SPLIT_K=1, X_BUFFERS=0)

    def check(choice: Choice) -> Failure | None:
        broken = choice.problem.kernel == "mlp_resident" and choice.config == measured
        return Failure(Status.WRONG, "not here") if broken else None

    plan, why = choose(store, NETWORK, T4, LAPTOP, check=check, form=Form.AUTO)
    assert isinstance(plan, Plan)
    assert "persistent does not work any more as it was measured" in why


def test_the_fastest_of_three_is_taken() -> None:
    h200 = find("H200")
    network = Network(256)
    with Store.open("sqlite://") as store:
        for make, us in ((resident_problem, 8.0), (streaming_problem, 7.0)):
            problem = make(256, 3, 32)
            kernel = kernels.ALL[problem.kernel]
            config = kernel.space(problem, h200).default()
            add(store, kernel, problem, config, us * problem["steps"], device=h200)
        plan, why = choose(store, network, h200, LAPTOP, check=passes, form=Form.AUTO)
        asked, _ = choose(store, network, h200, LAPTOP, check=passes, form=Form.PERSISTENT)
    assert isinstance(plan, WholeStepPlan)
    assert isinstance(asked, WholeStepPlan)
    assert (plan.form, asked.form) == (Form.STREAMING, Form.PERSISTENT)
    assert why == "streaming: 7.00 us expected (persistent 8.00 us, graph not measured as a whole)"
