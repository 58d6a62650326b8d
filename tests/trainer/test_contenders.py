"""The arithmetic of every PyTorch contender, in the uncompiled form that runs on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trainer.agreement import curves_agree, yardstick
from trainer.contenders import PYTORCH, Eager, Reference, Task, TorchContender, Weights, chosen
from trainer.contenders.library import Library
from trainer.contenders.ones import OnesLibrary
from trainer.data import SAMPLE, load, permutations, scaled
from trainer.mlp import Network, fresh_weights
from tuner.errors import UserError

STEPS = 120


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products this small are slower on many threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def task() -> Task:
    dataset = load(SAMPLE)
    return Task(
        weights=fresh_weights(Network(width=40), seed=1),
        images=scaled(dataset.train_images),
        labels=dataset.train_labels,
        order=permutations(len(dataset.train_images), 32, STEPS, seed=2),
        lr=0.1,
        steps_per_call=10,
        device="cpu",
    )


@pytest.fixture(scope="module")
def curves(task) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return yardstick(task, STEPS)


def gradients(task: Task, step: int = 0) -> tuple[float, list[NDArray[np.float64]]]:
    """Mean loss and its gradients (W, b, W, b, ...) in float64, from the definition."""
    rows = task.order[step]
    y = task.labels[rows]
    activations = [task.images[rows].astype(np.float64)]
    layers = [(W.astype(np.float64), b.astype(np.float64)) for W, b in task.weights]
    for W, b in layers[:-1]:
        activations.append(np.maximum(activations[-1] @ W + b, 0))
    W, b = layers[-1]
    z = activations[-1] @ W + b
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    dY = p / len(y)
    found: list[NDArray[np.float64]] = []
    for i in reversed(range(len(layers))):
        found[:0] = [activations[i].T @ dY, dY.sum(0)]
        dY = (dY @ layers[i][0].T) * (activations[i] > 0)
    return float(loss), found


def flat(weights: Weights) -> list[NDArray[np.float32]]:
    return [part for layer in weights for part in layer]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("contender", [*PYTORCH.values(), Reference])
def test_the_first_gradient_is_the_float64_one(task, contender, layers):
    # With a learning rate of 1 the first step's change of the weights is the gradient.
    one = replace(task, lr=1.0, steps_per_call=1, weights=fresh_weights(Network(width=40, layers=layers), seed=1))
    loss, expected = gradients(one)
    runner = contender()
    runner.prepare(one)
    runner.run(0, 1)
    runner.synchronize()
    assert runner.losses(0, 1)[0] == pytest.approx(loss, rel=1e-3)
    for before, after, gradient in zip(flat(one.weights), flat(runner.weights()), expected, strict=True):
        error = np.linalg.norm((before - after) - gradient) / np.linalg.norm(gradient)
        assert error < 2e-3


@pytest.mark.parametrize("contender", PYTORCH.values())
def test_everybody_learns_the_same(task, curves, contender):
    runner = contender()
    runner.prepare(task)
    assert all(np.array_equal(*pair) for pair in zip(flat(task.weights), flat(runner.weights()), strict=True))
    runner.run(0, STEPS // 2)
    runner.run(STEPS // 2, STEPS // 2)
    losses = runner.losses(0, STEPS)
    verdict = curves_agree(losses, *curves)
    assert verdict.agrees, str(verdict)
    assert losses[-20:].mean() < 0.9 * losses[:20].mean()
    assert runner.notes == "eager on the CPU: nothing compiled or captured"
    assert runner.peak_bytes is None
    runner.close()


@pytest.mark.parametrize("contender", [Library, OnesLibrary])
def test_library_without_a_mixed_addmm_learns_the_same(task, curves, contender, monkeypatch):
    monkeypatch.setattr(contender, "_can_accumulate", lambda _: False)
    runner = contender()
    runner.prepare(task)
    runner.run(0, STEPS)
    verdict = curves_agree(runner.losses(0, STEPS), *curves)
    assert verdict.agrees, str(verdict)


@pytest.mark.parametrize("contender", [each for each in PYTORCH.values() if each is not Eager])
def test_what_is_compiled_is_one_graph_and_never_compiled_again(task, contender, monkeypatch):
    """Traced as on a GPU, but run by PyTorch's own operators (aot_eager): no C++ or Triton compiler takes part."""

    def compiled(self, function, **options):
        return torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    torch.compiler.reset()
    monkeypatch.setattr(TorchContender, "_compiled", compiled)
    few = replace(task, order=task.order[:20])
    runner = contender()
    with torch._dynamo.config.patch(error_on_recompile=True):
        runner.prepare(few)
        runner.run(0, 20)
    verdict = curves_agree(runner.losses(0, 20), *yardstick(few, 20))
    assert verdict.agrees, str(verdict)


@pytest.mark.parametrize("contender", PYTORCH.values())
def test_a_warm_up_that_diverges_leaves_nothing_behind(task, curves, contender, monkeypatch):
    def warm_up_badly(self: TorchContender, body):
        for _, b in self._parameters():
            with torch.no_grad():
                b.fill_(float("nan"))
        body()
        return body

    monkeypatch.setattr(TorchContender, "_captured", warm_up_badly)
    runner = contender()
    runner.prepare(task)
    runner.run(0, 20)
    assert np.isfinite(runner.losses(0, 20)).all()
    assert curves_agree(runner.losses(0, 20), *curves).agrees


def test_odd_sizes(task):
    # 33 and 7: no multiple of any tile; the batch is not a power of two.
    odd = replace(task, weights=fresh_weights(Network(width=33), seed=1), order=task.order[:20, :7], steps_per_call=5)
    curves = yardstick(odd, 20)
    for contender in PYTORCH.values():
        runner = contender()
        runner.prepare(odd)
        runner.run(0, 20)
        verdict = curves_agree(runner.losses(0, 20), *curves)
        assert verdict.agrees, f"{contender.name}: {verdict}"


@pytest.mark.parametrize(
    ("first", "steps", "complaint"),
    [(10, 10, "cannot go on from 10"), (0, 15, "not a multiple of 10"), (0, STEPS + 10, "more than the task's 120")],
)
def test_steps_are_made_in_order_and_in_whole_calls(task, first, steps, complaint):
    runner = Eager()
    runner.prepare(task)
    with pytest.raises(ValueError, match=complaint):
        runner.run(first, steps)


def test_time_passes(task):
    runner = Eager()
    runner.prepare(task)
    assert runner.timed(0, 10) > 0


def test_a_task_survives_the_disk(task, tmp_path):
    whole = replace(task, test_images=task.images[:5], test_labels=task.labels[:5])
    whole.save(tmp_path)
    loaded = Task.load(tmp_path)
    assert (loaded.lr, loaded.steps_per_call, loaded.device) == (0.1, 10, "cpu")
    for mine, theirs in zip(flat(whole.weights), flat(loaded.weights), strict=True):
        assert np.array_equal(mine, theirs)
    for name in ("images", "labels", "order", "test_images", "test_labels"):
        assert np.array_equal(getattr(whole, name), getattr(loaded, name))
    other = tmp_path / "other"
    other.mkdir()
    task.save(other)
    assert Task.load(other).test_images is None


def test_names():
    assert chosen() == list(PYTORCH.values())
    assert chosen(["library", "eager"]) == [Library, Eager]
    with pytest.raises(UserError, match="no contender 'jax'; choose from eager, max_autotune"):
        chosen(["jax"])
    assert all(name == contender.name and contender.description for name, contender in PYTORCH.items())
