"""Which form of the step a network gets, a graph of kernels or a kernel of whole steps, and the engine for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import kernels
from trainer.contenders.base import Contender
from trainer.engines.emulated import EmulatedEngine
from trainer.engines.graph import GraphEngine
from trainer.engines.whole_step import EmulatedWholeStepEngine, WholeStepEngine
from trainer.mlp import Network
from trainer.plan import (
    Check,
    Form,
    Plan,
    WholeStepPlan,
    fits,
    make_plan,
    make_whole_step_plan,
    whole_step_problem,
    with_steps,
)
from tuner.errors import UserError
from tuner.store import Rung, Store
from tuner.types import Device, Environment

WHOLE_STEPS = (Form.PERSISTENT, Form.STREAMING)


def choose(
    store: Store, network: Network, device: Device, environment: Environment, *, check: Check, form: Form
) -> tuple[Plan | WholeStepPlan, str]:
    """The plan of the form that `form` asks for, and why it is that one.

    Raises:
        UserError: a form of whole steps was asked for and does not fit, or no configuration of a kernel works.
    """
    if form in WHOLE_STEPS:
        asked = make_whole_step_plan(store, network, device, environment, check=check, form=form)
        if asked is None:
            raise UserError(
                f"The {form.value} form of {network.label} does not fit {device.name} at batch {network.batch}; "
                "train with --engine graph."
            )
        return asked, f"{form.value}, as asked"
    graph = make_plan(store, network, device, environment, check=check)
    if form is Form.GRAPH:
        return graph, "graph, as asked"
    plans: list[tuple[float, str, Plan | WholeStepPlan]] = []
    others: list[str] = []
    if graph.expected_us is not None:
        plans.append((graph.expected_us, Form.GRAPH.value, graph))
    else:
        others.append("graph not measured as a whole")
    for each in WHOLE_STEPS:
        problem = whole_step_problem(network, each)
        if not fits(problem, device):
            others.append(f"{each.value} does not fit this device")
            continue
        if store.lookup(kernels.ALL[problem.kernel], problem, device).rung is not Rung.EXACT:
            others.append(f"{each.value} not measured for this network on this device")
            continue
        plan = make_whole_step_plan(store, network, device, environment, check=check, form=each)
        if plan is None or plan.expected_us is None:
            others.append(f"{each.value} does not work any more as it was measured")
            continue
        plans.append((plan.expected_us, each.value, plan))
    if not plans:
        return graph, f"graph ({', '.join(others)})"
    # A tie goes to the simpler form, which comes first.
    us, name, best = min(plans, key=lambda item: item[0])
    slower = [f"{other} {their_us:.2f} us" for their_us, other, _ in plans if other != name]
    return best, f"{name}: {us:.2f} us expected ({', '.join([*slower, *others])})"


def engine_of(plan: Plan | WholeStepPlan, index: int) -> Callable[[], Contender]:
    """Makes the engine on the GPU `index`; picklable, so that another process can."""
    if isinstance(plan, WholeStepPlan):
        return partial(WholeStepEngine, plan, index)
    return partial(GraphEngine, plan, index)


def emulated_engine_of(plan: Plan | WholeStepPlan) -> Contender:
    """The engine that runs the same kernels on the CPU."""
    if isinstance(plan, WholeStepPlan):
        return EmulatedWholeStepEngine(plan)
    return EmulatedEngine(with_steps(plan, 1))
