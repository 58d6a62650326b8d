"""A training step as plain data: named buffers, and the launches that read and write them, in order.

Both engines execute the same program, so what the emulation checks on a CPU is what the GPU runs.

    gather -> forward 0 .. L -> loss -> backward L .. 0       (backward includes the SGD update of its layer)

Gradients carry the loss scale `batch`: the gradient of the summed loss, not of the mean, so that small ones stay inside
fp16. The update divides it out again (`rate = lr / batch`), which is exact arithmetic for a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.linear_backward import LinearBackward, join_master, split_master
from kernels.linear_forward import LinearForward
from trainer.contenders.base import Task, Weights
from trainer.plan import Choice, Plan
from tuner.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Slice:
    """An argument: the buffer of this name, from element `offset` on."""

    buffer: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One launch: a kernel with its configuration, and its arguments in the order of its parameters."""

    choice: Choice
    arguments: tuple[Slice | np.generic, ...]


def make_buffers(plan: Plan, task: Task) -> dict[str, NDArray[Any]]:
    """Every buffer of the step with its content at the start."""
    batch, sizes, steps, half = plan.network.batch, plan.network.sizes, plan.steps_per_graph, np.float16
    buffers: dict[str, NDArray[Any]] = {
        "images": task.images,
        "labels": task.labels,
        "order": task.order,
        "position": np.zeros(1, np.int32),
        "X": np.zeros((steps, batch, sizes[0]), half),
        "y": np.zeros((steps, batch), np.int32),
        "loss": np.zeros(task.steps, np.float32),
        "unused": np.zeros(1, half),
        **_workspaces(plan),
    }
    for layer, (W, b) in enumerate(task.weights):
        form = plan.backward[layer].config.choice("MASTER")
        buffers[f"W{layer}"], buffers[f"master{layer}"] = split_master(W, form)
        buffers[f"b{layer}"] = b.astype(np.float32)
        buffers[f"out{layer}"] = np.zeros((batch, sizes[layer + 1]), half)
        buffers[f"gradient{layer}"] = np.zeros((batch, sizes[layer + 1]), half)
    return buffers


def make_calls(plan: Plan, task: Task) -> tuple[Call, ...]:
    """The launches of one graph of `plan.steps_per_graph` steps."""
    batch, sizes, steps, last = plan.network.batch, plan.network.sizes, plan.steps_per_graph, plan.network.layers
    total = np.int32(task.steps)

    def inputs(layer: int, step: int) -> Slice:
        return Slice(f"out{layer - 1}") if layer else Slice("X", step * batch * sizes[0])

    scratch = (Slice("partial"), Slice("arrived"))
    gathered = ("images", "labels", "order", "position", total, "X", "y", "arrived")
    calls = [Call(plan.gather, tuple(Slice(item) if isinstance(item, str) else item for item in gathered))]
    rate, scale = np.float32(task.lr / batch), np.float32(batch)
    for step in range(steps):
        for layer, choice in enumerate(plan.forward):
            weights = (Slice(f"W{layer}"), Slice(f"b{layer}"))
            # The kernel before the first layer's is the update of its weights.
            settled = np.int32(layer > 0)
            calls.append(Call(choice, (inputs(layer, step), *weights, Slice(f"out{layer}"), settled, *scratch)))
        # The gather has moved the position past this graph's steps already.
        log = (Slice("loss"), Slice("position"), np.int32(step - steps), total, scale)
        labels = Slice("y", step * batch)
        calls.append(Call(plan.loss, (Slice(f"out{last}"), labels, Slice(f"gradient{last}"), *log)))
        for layer in reversed(range(last + 1)):
            below = Slice(f"gradient{layer - 1}" if layer else "unused")
            updated = (Slice(f"W{layer}"), Slice(f"master{layer}"), Slice(f"b{layer}"))
            operands = (inputs(layer, step), Slice(f"gradient{layer}"), *updated, below)
            calls.append(Call(plan.backward[layer], (*operands, rate, np.int32(1), *scratch)))
    return tuple(calls)


def _workspaces(plan: Plan) -> dict[str, NDArray[Any]]:
    """One workspace for all, since the launches follow each other, and counters that each launch leaves at zero."""
    wanted = [_workspace(choice.kernel, choice) for choice in (*plan.forward, *plan.backward)]
    return {
        "partial": np.zeros(max(floats for floats, _ in wanted), np.float32),
        "arrived": np.zeros(max(counters for _, counters in wanted), np.uint32),
    }


def _workspace(kernel: Kernel, choice: Choice) -> tuple[int, int]:
    kernel = kernel.form(choice.config)
    if not isinstance(kernel, LinearForward | LinearBackward):
        raise TypeError(f"{kernel.name} is not a layer's kernel")
    return kernel.workspace(choice.problem, choice.config)


def read_weights(plan: Plan, buffers: dict[str, Any]) -> Weights:
    """The weights in fp32 out of the engine's buffers, brought to the host: both parts of each joined."""
    return tuple(
        (
            join_master(buffers[f"W{layer}"], buffers[f"master{layer}"], choice.config.choice("MASTER")).astype(
                np.float32
            ),
            buffers[f"b{layer}"],
        )
        for layer, choice in enumerate(plan.backward)
    )
