"""Which form of the step a network gets: the graph of kernels, or the resident kernel; and the engine that runs it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial

import kernels
from kernels.problems import resident_problem
from trainer.contenders.base import Contender
from trainer.engines.emulated import EmulatedEngine
from trainer.engines.graph import GraphEngine
from trainer.engines.resident import EmulatedResidentEngine, ResidentEngine
from trainer.mlp import Network
from trainer.plan import Check, Plan, ResidentPlan, make_plan, make_resident_plan, with_steps
from tuner.errors import UserError
from tuner.store import Rung, Store
from tuner.types import Device, Environment


class Form(StrEnum):
    """What `--engine` takes."""

    AUTO = "auto"
    """Whichever was measured to be faster for this very network on this device."""
    GRAPH = "graph"
    PERSISTENT = "persistent"


def choose(
    store: Store, network: Network, device: Device, environment: Environment, *, check: Check, form: Form
) -> tuple[Plan | ResidentPlan, str]:
    """The plan of the form that `form` asks for, and why it is that one.

    Raises:
        UserError: the resident form was asked for and does not fit, or no configuration of a kernel works.
    """
    if form is Form.PERSISTENT:
        resident = make_resident_plan(store, network, device, environment, check=check)
        if resident is None:
            raise UserError(
                f"The persistent form of {network.label} does not fit {device.name} at batch {network.batch}; "
                "train with --engine graph."
            )
        return resident, "persistent, as asked"
    graph = make_plan(store, network, device, environment, check=check)
    if form is Form.GRAPH:
        return graph, "graph, as asked"
    problem = resident_problem(network.width, network.layers, network.batch)
    if next(iter(kernels.mlp_resident.space(problem, device)), None) is None:
        return graph, "graph: the persistent form does not fit this device"
    if store.lookup(kernels.mlp_resident, problem, device).rung is not Rung.EXACT:
        return graph, "graph: the persistent form was not measured for this network on this device"
    resident = make_resident_plan(store, network, device, environment, check=check)
    if resident is None or resident.expected_us is None:
        return graph, "graph: what was measured of the persistent form does not work any more"
    if graph.expected_us is not None and graph.expected_us <= resident.expected_us:
        return graph, f"graph: measured {graph.expected_us:.2f} us, the persistent form {resident.expected_us:.2f} us"
    measured = "not measured as a whole" if graph.expected_us is None else f"{graph.expected_us:.2f} us"
    return resident, f"persistent: measured {resident.expected_us:.2f} us, the graph {measured}"


def engine_of(plan: Plan | ResidentPlan, index: int) -> Callable[[], Contender]:
    """Makes the engine on the GPU `index`; picklable, so that another process can."""
    if isinstance(plan, ResidentPlan):
        return partial(ResidentEngine, plan, index)
    return partial(GraphEngine, plan, index)


def emulated_engine_of(plan: Plan | ResidentPlan) -> Contender:
    """The engine that runs the same kernels on the CPU."""
    if isinstance(plan, ResidentPlan):
        return EmulatedResidentEngine(plan)
    return EmulatedEngine(with_steps(plan, 1))
