"""A training step as a program of launches, and the emulated engine that runs it, against float64 by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.trainer.plans import T4, plan_of
from trainer.contenders.base import Task, Weights
from trainer.data import SAMPLE, load, permutations, scaled
from trainer.engines.emulated import EmulatedEngine
from trainer.engines.program import Slice, make_buffers, make_calls, read_weights
from trainer.mlp import Network, fresh_weights
from trainer.plan import Choice, Plan, with_steps
from tuner.store import Store

NETWORK = Network(24, layers=2, batch=20)
"""No size is a multiple of a tile's."""
STEPS = 3
LR = 0.25


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    with Store.open(tmp_path_factory.mktemp("plan") / "tuning.db") as store:
        yield with_steps(plan_of(store, NETWORK), 1)


@pytest.fixture(scope="module")
def task() -> Task:
    dataset = load(SAMPLE)
    return Task(
        weights=fresh_weights(NETWORK, seed=4),
        images=scaled(dataset.train_images),
        labels=dataset.train_labels,
        order=permutations(len(dataset.train_labels), NETWORK.batch, STEPS, seed=7),
        lr=LR,
        steps_per_call=1,
        device="cpu",
    )


def with_master(plan: Plan, form: str) -> Plan:
    """`plan` with the weights kept as `form`, in configurations that are valid."""
    backward = []
    for choice in plan.backward:
        space = choice.kernel.space(choice.problem, T4)
        config = next(item for item in space if item["MASTER"] == form and item["ACCUMULATOR"] == "float")
        backward.append(replace(choice, config=config))
    return replace(plan, backward=tuple(backward))


def by_library(plan: Plan) -> Plan:
    """`plan` with every layer done the library's way."""

    def changed(choice: Choice) -> Choice:
        [config] = choice.kernel.also()
        return replace(choice, config=config)

    return replace(plan, forward=tuple(map(changed, plan.forward)), backward=tuple(map(changed, plan.backward)))


def by_hand(task: Task) -> tuple[list[float], Weights]:
    """Losses and weights of plain SGD on the mean cross-entropy, all in float64."""
    weights = [(W.astype(np.float64), b.astype(np.float64)) for W, b in task.weights]
    losses = []
    for rows in task.order:
        x, labels = task.images[rows].astype(np.float64), task.labels[rows]
        inputs: list[NDArray[np.float64]] = []
        for depth, (W, b) in enumerate(weights):
            inputs.append(x)
            x = x @ W + b
            x = np.maximum(x, 0) if depth < len(weights) - 1 else x
        shares = np.exp(x - x.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        at = np.arange(len(rows)), labels
        losses.append(float(-np.log(shares[at]).mean()))
        gradient = shares.copy()
        gradient[at] -= 1
        gradient /= len(rows)
        for depth in reversed(range(len(weights))):
            W, b = weights[depth]
            weights[depth] = W - task.lr * inputs[depth].T @ gradient, b - task.lr * gradient.sum(0)
            gradient = gradient @ W.T * (inputs[depth] > 0)
    return losses, tuple(weights)


def run(plan: Plan, task: Task, *, threads: int = 2) -> tuple[NDArray[np.float32], Weights]:
    engine = EmulatedEngine(plan, threads=threads)
    engine.prepare(task)
    engine.run(0, task.steps)
    engine.synchronize()
    found = engine.losses(0, task.steps), engine.weights()
    engine.close()
    return found


@pytest.mark.parametrize("form", ["fp32", "hilo", "library"])
def test_losses_and_weights_are_those_of_float64(plan: Plan, task: Task, form: str) -> None:
    losses, weights = run(by_library(plan) if form == "library" else with_master(plan, form), task)
    expected, final = by_hand(task)
    # Logits of order 1 in fp16 are good to 2**-11; the loss averages that over the batch.
    assert losses == pytest.approx(expected, abs=1e-3)
    assert losses[0] != losses[1]
    for (W, b), (exact_W, exact_b), (fresh_W, fresh_b) in zip(weights, final, task.weights, strict=True):
        # Held against what the steps changed, not against the weights: gradients are fp16 here and there.
        assert np.linalg.norm(W - exact_W) < 3e-3 * np.linalg.norm(exact_W - fresh_W)
        assert np.linalg.norm(b - exact_b) < 3e-3 * np.linalg.norm(exact_b - fresh_b)


def test_the_same_bits_twice_whatever_the_threads(plan: Plan, task: Task) -> None:
    first, weights = run(plan, task)
    for threads in (1, 2):
        again, others = run(plan, task, threads=threads)
        assert first.tobytes() == again.tobytes()
        for pair, other in zip(weights, others, strict=True):
            assert [array.tobytes() for array in pair] == [array.tobytes() for array in other]


def test_preparing_makes_no_step(plan: Plan, task: Task) -> None:
    engine = EmulatedEngine(plan)
    engine.prepare(task)
    for (W, b), (fresh_W, fresh_b) in zip(engine.weights(), task.weights, strict=True):
        # Kept as two fp16 numbers: 22 bits of the weight.
        assert np.abs(W - fresh_W).max() <= 2.0**-22
        assert np.array_equal(b, fresh_b)
    assert not engine.losses(0, STEPS).any()
    assert engine.timed(0, 1) > 0
    assert engine.losses(0, STEPS).astype(bool).tolist() == [True, False, False]
    engine.close()


def test_steps_after_the_order_start_it_over(plan: Plan, task: Task) -> None:
    engine = EmulatedEngine(plan)
    engine.prepare(task)
    engine.run(0, STEPS)
    before = engine.losses(0, STEPS)
    engine.run(STEPS, 1)
    after = engine.losses(0, STEPS)
    assert after[0] < before[0], "the first batch again, after three steps of learning"
    assert np.array_equal(after[1:], before[1:])
    engine.close()


def test_emulation_refuses_a_graph_of_many_steps(plan: Plan) -> None:
    with pytest.raises(ValueError, match="one step at a time, the plan has 50 in a graph"):
        EmulatedEngine(with_steps(plan, 50))


def test_the_calls_of_two_steps_are_in_order_with_their_buffers(plan: Plan, task: Task) -> None:
    calls = make_calls(with_steps(plan, 2), task)
    names = ["linear_forward"] * 3 + ["softmax_cross_entropy"] + ["linear_backward"] * 3
    assert [call.choice.problem.kernel for call in calls] == ["gather_rows", *names, *names]
    gather, *rest = calls
    written = [item.buffer if isinstance(item, Slice) else int(item) for item in gather.arguments]
    assert written == ["images", "labels", "order", "position", STEPS, "X", "y", "arrived"]
    one = NETWORK.batch * 784
    for step in range(2):
        forward, loss, backward = rest[:3], rest[3], rest[4:7]
        rest = rest[7:]
        inputs = [Slice("X", step * one), Slice("out0"), Slice("out1")]
        assert [call.arguments[0] for call in forward] == inputs
        assert [call.arguments[1:4] for call in forward] == [
            (Slice(f"W{layer}"), Slice(f"b{layer}"), Slice(f"out{layer}")) for layer in range(3)
        ]
        assert loss.arguments[:3] == (Slice("out2"), Slice("y", step * NETWORK.batch), Slice("gradient2"))
        # The gather moved the position by both steps, so the first logs at -2 from there.
        assert loss.arguments[3:6] == (Slice("loss"), Slice("position"), step - 2)
        assert [call.arguments[:2] for call in backward] == [
            (inputs[layer], Slice(f"gradient{layer}")) for layer in (2, 1, 0)
        ]
        assert [call.arguments[5] for call in backward] == [Slice("gradient1"), Slice("gradient0"), Slice("unused")]
        assert all(call.arguments[6] == np.float32(LR / NETWORK.batch) for call in backward)
    assert rest == []


def test_every_argument_is_a_buffer_that_is_there_and_large_enough(plan: Plan, task: Task) -> None:
    for steps in (1, 2):
        several = with_steps(plan, steps)
        buffers = make_buffers(several, task)
        for call in make_calls(several, task):
            for item in call.arguments:
                if isinstance(item, Slice):
                    assert 0 <= item.offset < buffers[item.buffer].size
        assert buffers["X"].shape == (steps, NETWORK.batch, 784)
        assert buffers["loss"].shape == (STEPS,)


def test_weights_are_read_back_as_they_were_given(plan: Plan, task: Task) -> None:
    exact = with_master(plan, "fp32")
    for (W, b), (fresh_W, fresh_b) in zip(read_weights(exact, make_buffers(exact, task)), task.weights, strict=True):
        assert np.array_equal(W, fresh_W)
        assert np.array_equal(b, fresh_b)


def test_only_layers_have_workspaces(plan: Plan, task: Task) -> None:
    with pytest.raises(TypeError, match="softmax_cross_entropy is not a layer's kernel"):
        make_buffers(replace(plan, forward=(plan.loss,)), task)
