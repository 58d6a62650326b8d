"""Which form of the step a network gets, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kernels
from kernels.problems import mlp_problems, resident_problem
from tests.trainer.plans import T4, add, passes
from tests.trainer.report_rows import LAPTOP
from trainer.engines.choose import Form, choose
from trainer.mlp import Network
from trainer.plan import Choice, Plan, ResidentPlan
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


def chosen(store: Store, form: Form = Form.AUTO, network: Network = NETWORK) -> tuple[Plan | ResidentPlan, str]:
    return choose(store, network, T4, LAPTOP, check=passes, form=form)


def test_the_faster_one_is_taken(store: Store) -> None:
    # Four layers forward and backward, the loss, and a fiftieth of the gather.
    graph_us = 9 * GRAPH_US + GRAPH_US / 50
    resident_takes(store, 5.0)
    plan, why = chosen(store)
    assert isinstance(plan, ResidentPlan)
    assert why == f"persistent: measured 5.00 us, the graph {graph_us:.2f} us"


def test_a_slower_resident_form_is_not(store: Store) -> None:
    resident_takes(store, 50.0)
    plan, why = chosen(store)
    assert isinstance(plan, Plan)
    assert why == "graph: measured 9.02 us, the persistent form 50.00 us"


def test_what_was_only_predicted_is_not_taken(store: Store) -> None:
    resident_takes(store, 0.1, Kind.PREDICTED)
    plan, why = chosen(store)
    assert isinstance(plan, Plan)
    assert "was not measured" in why


def test_what_does_not_fit_is_said(store: Store) -> None:
    plan, why = chosen(store, network=Network(4096))
    assert isinstance(plan, Plan)
    assert "does not fit this device" in why
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
    assert "does not work any more" in why
