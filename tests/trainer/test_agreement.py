"""The criterion: rounding passes, a wrong step does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from trainer.agreement import FLOOR, Curve, curves_agree, windows, yardstick
from trainer.contenders import PYTORCH, Eager, Task
from trainer.data import SAMPLE, load, permutations, scaled
from trainer.mlp import Network, fresh_weights

STEPS = 400


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products this small are slower on many threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=[0.003, 0.1], ids=["lr0.003", "lr0.1"])
def task(request) -> Task:
    dataset = load(SAMPLE)
    return Task(
        weights=fresh_weights(Network(width=48), seed=5),
        images=scaled(dataset.train_images),
        labels=dataset.train_labels,
        order=permutations(len(dataset.train_images), 32, STEPS, seed=6),
        lr=request.param,
        device="cpu",
    )


@pytest.fixture(scope="module")
def curves(task) -> tuple[Curve, Curve]:
    return yardstick(task, STEPS)


class WithoutBias(Eager):
    """A fault: the biases are never updated."""

    def _build(self) -> None:
        super()._build()
        for layer in self.model:
            if hasattr(layer, "bias"):
                layer.bias.requires_grad_(False)


class WithoutMask(Eager):
    """A fault: the gradient passes the last ReLU where it must not."""

    def _forward(self):
        class Leaky(torch.autograd.Function):
            @staticmethod
            def forward(_, x):
                return x.clamp(min=0)

            @staticmethod
            def backward(_, gradient):
                return gradient

        def forward(x):
            *below, _, last = self.model
            for layer in below:
                x = layer(x)
            return last(Leaky.apply(x))

        return forward


def run(contender: type[Eager], task: Task) -> Curve:
    runner = contender()
    runner.prepare(task)
    runner.run(0, task.steps)
    return runner.losses(0, task.steps)


def test_another_rounding_agrees(task, curves):
    for name in ("written_out", "library"):
        verdict = curves_agree(run(PYTORCH[name], task), *curves)
        assert verdict.agrees, f"{name}: {verdict}"
        assert "within the allowed" in str(verdict)


def test_a_wrong_learning_rate_does_not(task, curves):
    verdict = curves_agree(run(Eager, replace(task, lr=1.5 * task.lr)), *curves)
    assert not verdict.agrees
    assert "beyond the allowed" in str(verdict)


@pytest.mark.parametrize("fault", [WithoutBias, WithoutMask])
def test_a_wrong_update_does_not(task, curves, fault):
    assert not curves_agree(run(fault, task), *curves).agrees


def test_other_batches_do_not(task, curves):
    assert not curves_agree(run(Eager, replace(task, order=np.roll(task.order, 1, axis=0))), *curves).agrees


def test_a_loss_that_is_no_number_does_not(curves):
    broken = curves[1].copy()
    broken[7] = np.nan
    verdict = curves_agree(broken, *curves)
    assert (verdict.agrees, verdict.first, verdict.distance) == (False, 0, float("inf"))


def test_the_bound_is_five_times_the_twins_drift_and_never_below_the_floor():
    reference = np.ones(100, np.float32)
    twin = reference.copy()
    twin[50:] += np.float32(1e-3)
    ours = reference.copy()
    ours[50:] += np.float32(4.9e-3)
    assert curves_agree(ours, reference, twin).agrees
    ours[50:] += np.float32(0.3e-3)
    verdict = curves_agree(ours, reference, twin)
    assert (verdict.agrees, verdict.first, verdict.last) == (False, 50, 99)
    assert verdict.distance == pytest.approx(5.2e-3, rel=1e-3)
    assert verdict.allowed == pytest.approx(5e-3, rel=1e-3)
    assert curves_agree(reference + np.float32(0.9 * FLOOR), reference, reference).agrees
    assert not curves_agree(reference + np.float32(1.1 * FLOOR), reference, reference).agrees


def test_only_the_common_steps_are_compared():
    reference = np.ones(100, np.float32)
    short = np.ones(30, np.float32)
    assert curves_agree(short, reference, reference).last <= 29
    with pytest.raises(ValueError, match="no loss to compare"):
        curves_agree(np.ones(0, np.float32), reference, reference)


def test_windows_double():
    assert list(windows(330)) == [(0, 20), (20, 50), (50, 100), (100, 200), (200, 330)]
    assert list(windows(7)) == [(0, 7)]


def test_where_pytorch_itself_diverges_nothing_agrees() -> None:
    diverged = np.full(60, 2.0, np.float32)
    diverged[30:] = np.nan
    verdict = curves_agree(diverged, diverged, diverged)
    assert (verdict.agrees, verdict.first, verdict.last) == (False, 20, 49)
