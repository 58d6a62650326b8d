"""Which kernel runs with which configuration in a network's training step: looked up at start-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import kernels
from kernels.problems import (
    STEPS_PER_GRAPH,
    backward_problems,
    forward_problems,
    gather_problem,
    loss_problem,
    resident_problem,
    streaming_problem,
)
from kernels.whole_step import WholeStep
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


class Form(StrEnum):
    """Of a training step: a graph of kernels, or many steps in one launch. What `--engine` takes."""

    AUTO = "auto"
    """Whichever was measured to be the fastest for this very network on this device."""
    GRAPH = "graph"
    PERSISTENT = "persistent"
    """The weights stay on the SMs (`mlp_resident`)."""
    STREAMING = "streaming"
    """The weights stream from memory (`mlp_streaming`)."""


@dataclass(frozen=True, slots=True)
class WholeStepPlan:
    """The whole step as one kernel, many steps to a launch. `choice` was observed for `problem["steps"]` steps."""

    network: Network
    device: Device
    choice: Choice

    @property
    def kernel(self) -> WholeStep:
        return whole_step(self.choice.problem)

    @property
    def form(self) -> Form:
        return Form.PERSISTENT if self.kernel is kernels.mlp_resident else Form.STREAMING

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


def whole_step(problem: Problem) -> WholeStep:
    """The kernel of `problem`, which makes whole steps."""
    kernel = kernels.ALL[problem.kernel]
    if not isinstance(kernel, WholeStep):
        raise TypeError(f"{kernel.name} makes no whole steps")
    return kernel


def whole_step_problem(network: Network, form: Form) -> Problem:
    """The problem that is `network`'s whole step, in the form PERSISTENT or STREAMING."""
    make = resident_problem if form is Form.PERSISTENT else streaming_problem
    return make(network.width, network.layers, network.batch)


def fits(problem: Problem, device: Device) -> bool:
    """Whether the kernel has a configuration for `problem` on `device`."""
    return next(iter(kernels.ALL[problem.kernel].space(problem, device)), None) is not None


def make_whole_step_plan(
    store: Store, network: Network, device: Device, environment: Environment, *, check: Check, form: Form
) -> WholeStepPlan | None:
    """`network`'s step in the form PERSISTENT or STREAMING; None where that does not fit `device`.

    Raises:
        UserError: it fits, but not even the kernel's default passes `check`.
    """
    problem = whole_step_problem(network, form)
    if not fits(problem, device):
        return None
    return WholeStepPlan(network, device, _first_that_passes(store, problem, device, environment, check))


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
