"""Which kernel runs with which configuration in a network's training step: looked up at start-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import kernels
from kernels.mlp_resident import MlpResident
from kernels.problems import (
    STEPS_PER_GRAPH,
    backward_problems,
    forward_problems,
    gather_problem,
    loss_problem,
    resident_problem,
)
from trainer.mlp import Network
from tuner.errors import UserError
from tuner.kernel import Kernel
from tuner.store import Rung, Store
from tuner.types import Config, Device, Environment, Failure, Problem


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel of the step with its configuration, and how the store came to it."""

    problem: Problem
    config: Config
    rung: Rung
    expected_us: float | None
    """What was measured or predicted for this very problem on this device; None where nothing was."""

    @property
    def kernel(self) -> Kernel:
        return kernels.ALL[self.problem.kernel]


@dataclass(frozen=True, slots=True)
class Plan:
    """All kernels of a training step. `forward` and `backward` are in the order of the layers, from the input."""

    network: Network
    device: Device
    steps_per_graph: int
    gather: Choice
    forward: tuple[Choice, ...]
    loss: Choice
    backward: tuple[Choice, ...]

    @property
    def choices(self) -> tuple[Choice, ...]:
        """In the order of a step."""
        return (self.gather, *self.forward, self.loss, *reversed(self.backward))

    @property
    def expected_us(self) -> float | None:
        """Microseconds per step if every kernel takes what was observed of it; None where one was never observed."""
        steps = [choice.expected_us for choice in self.choices]
        gather, *rest = steps
        if gather is None or any(us is None for us in rest):
            return None
        return sum(us for us in rest if us is not None) + gather / self.steps_per_graph


@dataclass(frozen=True, slots=True)
class ResidentPlan:
    """The whole step as one kernel whose weights stay resident. `choice` was observed for `problem["steps"]` steps."""

    network: Network
    device: Device
    choice: Choice

    @property
    def kernel(self) -> MlpResident:
        return kernels.mlp_resident

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (self.choice,)

    @property
    def expected_us(self) -> float | None:
        """Microseconds per step; None where this network was never measured."""
        us = self.choice.expected_us
        return None if us is None else us / self.choice.problem["steps"]


Check = Callable[[Choice], Failure | None]
"""Compiles and verifies a choice; what went wrong, or None."""


def make_plan(
    store: Store,
    network: Network,
    device: Device,
    environment: Environment,
    *,
    check: Check,
    steps_per_graph: int = STEPS_PER_GRAPH,
) -> Plan:
    """Look up every kernel of `network`'s step. What does not pass `check` is quarantined, and the next is taken.

    Raises:
        UserError: not even the kernel's default passes.
    """
    taken: dict[Problem, Choice] = {}

    def choose(problem: Problem) -> Choice:
        if problem not in taken:
            taken[problem] = _first_that_passes(store, problem, device, environment, check)
        return taken[problem]

    forward = forward_problems(network.width, network.layers, network.batch)
    backward = backward_problems(network.width, network.layers, network.batch)
    return Plan(
        network=network,
        device=device,
        steps_per_graph=steps_per_graph,
        gather=choose(gather_problem(network.batch, steps_per_graph)),
        forward=tuple(choose(problem) for problem in forward),
        loss=choose(loss_problem(network.batch)),
        backward=tuple(choose(problem) for problem in backward),
    )


def make_resident_plan(
    store: Store, network: Network, device: Device, environment: Environment, *, check: Check
) -> ResidentPlan | None:
    """The resident form of `network`'s step; None where the weights do not fit `device`.

    Raises:
        UserError: it fits, but not even the kernel's default passes `check`.
    """
    problem = resident_problem(network.width, network.layers, network.batch)
    if next(iter(kernels.mlp_resident.space(problem, device)), None) is None:
        return None
    return ResidentPlan(network, device, _first_that_passes(store, problem, device, environment, check))


def _first_that_passes(
    store: Store, problem: Problem, device: Device, environment: Environment, check: Check
) -> Choice:
    kernel = kernels.ALL[problem.kernel]
    while True:
        match = store.lookup(kernel, problem, device)
        choice = Choice(problem, match.config, match.rung, match.expected_us)
        failure = check(choice)
        if failure is None:
            return choice
        if match.observation is None:
            raise UserError(
                f"Not even the default configuration of {problem.label} works on {device.name} "
                f"({failure.status}: {failure.message}); run mnist-tune doctor."
            )
        # Booked for this problem and device: the row itself may be another's, and stays true there.
        store.quarantine(match.observation.uuid, failure.status, failure.message, environment, match=match)


def with_steps(plan: Plan, steps: int) -> Plan:
    """`plan` for graphs of `steps` steps: the gather keeps its configuration, which serves any number of steps."""
    if steps == plan.steps_per_graph:
        return plan
    gather = replace(plan.gather, problem=gather_problem(plan.network.batch, steps), expected_us=None)
    return replace(plan, steps_per_graph=steps, gather=gather)
