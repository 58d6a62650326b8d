"""Does our step learn what PyTorch's learns? Gradients, loss curve, test accuracy, and the same bits twice.

    python -m benchmarks.sameness --widths 128,1024 --seeds 10 --data DIR --out sameness.json

For each width, with the engine that `train` would choose:

- gradients: those of step 0, as (W0 - W1) / lr after one step, against float64: at most 2e-3 apart (Frobenius,
  relative), for each matrix and each bias. Each is taken from a step of its own, at the rate at which the step moves it
  by its own norm: so neither fp32 nor a master of two halves rounds the difference away. A ReLU whose input is nearer
  to zero than fp16 resolves is a coin toss, and the gradient behind it hangs on it: float64 is given the tosses of a
  forward pass with fp16 weights and activations. How far both we and PyTorch's autocast are from float64 with its own
  is reported beside (`own_relu`, `own_relu_pytorch`).
- bitwise: two runs from the same start have the same losses and weights, to the bit.
- curve: the losses are within the envelope of PyTorch against itself (`trainer.agreement`).
- accuracy: the mean test accuracy of several seeds is within two standard errors of PyTorch's in fp32, which starts
  from the same weights and sees the same batches, in several processes at once.

Ends with 1 where one fails, with 3 where checks are left (`--slice`). Without a GPU our side is emulated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.common import script
from benchmarks.entries import LEFT, Entries, Slice
from benchmarks.place import Ours, Place, add_options, whole_numbers
from kernels.problems import STEPS_PER_GRAPH
from trainer.agreement import COMPARED, curves_agree, yardstick
from trainer.contenders.base import Contender, Task, Weights
from trainer.contenders.model import Eager, Reference
from trainer.data import load
from trainer.lanes import Factory
from trainer.mlp import Network, accuracy
from trainer.settings import TrainSettings
from trainer.training import Pixels, task_of
from tuner.errors import UserError

GRADIENT_LIMIT = 2e-3
STANDARD_ERRORS = 2.0

Gradients = list[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""dW (in, out) and db (out,) of each layer, of the mean loss of a batch."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a run: the rate of the curve and of the accuracy, their lengths, and how many seeds."""

    lr: float
    steps: int
    epochs: int
    seeds: int


def relu_decisions(task: Task, *, rounded: bool) -> list[NDArray[np.bool_]]:
    """Which hidden units are on at step 0, by layer: in float64, or with weights and activations `rounded` to fp16."""

    def seen(values: NDArray[Any]) -> NDArray[np.float64]:
        return values.astype(np.float16 if rounded else np.float64).astype(np.float64)

    x = task.images[task.order[0]].astype(np.float64)
    found = []
    for W, b in task.weights[:-1]:
        y = x @ seen(W) + b
        found.append(y > 0)
        x = seen(np.maximum(y, 0.0))
    return found


def float64_gradients(task: Task, on: list[NDArray[np.bool_]]) -> Gradients:
    """The gradients of step 0 of `task` where the hidden units `on` are on, in float64 throughout."""
    rows = task.order[0]
    activations = [task.images[rows].astype(np.float64)]
    parameters = [(W.astype(np.float64), b.astype(np.float64)) for W, b in task.weights]
    for depth, (W, b) in enumerate(parameters):
        y = activations[-1] @ W + b
        activations.append(y if depth == len(parameters) - 1 else y * on[depth])
    logits = activations[-1] - activations[-1].max(axis=1, keepdims=True)
    dY = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    dY[np.arange(len(rows)), task.labels[rows]] -= 1.0
    dY /= len(rows)
    found: Gradients = []
    for depth in reversed(range(len(parameters))):
        found.insert(0, (activations[depth].T @ dY, dY.sum(axis=0)))
        if depth:
            dY = (dY @ parameters[depth][0].T) * on[depth - 1]
    return found


def gradient_errors(factory: Factory, task: Task, *references: Gradients) -> list[dict[str, float]]:
    """For each of `references`, the relative Frobenius error of each gradient of step 0 (`W0`, `b0`, ...)."""
    errors: list[dict[str, float]] = [{} for _ in references]
    for layer, start in enumerate(task.weights):
        for part, name in enumerate(("W", "b")):
            lr = float(np.linalg.norm(start[part]) / np.linalg.norm(references[0][layer][part]))
            before, after = _one_step(factory, replace(task, lr=lr))
            gradient = (before[layer][part].astype(np.float64) - after[layer][part]) / lr
            for found, reference in zip(errors, references, strict=True):
                right = reference[layer][part]
                found[f"{name}{layer}"] = float(np.linalg.norm(gradient - right) / np.linalg.norm(right))
    return errors


def _one_step(factory: Factory, task: Task) -> tuple[Weights, Weights]:
    """The weights before and after the first step: `task` is one step long, whatever a call makes."""
    engine = factory()
    engine.prepare(task)
    try:
        before = engine.weights()
        engine.run(0, 1)
        return before, engine.weights()
    finally:
        engine.close()


def _trained(factory: Callable[[], Contender], task: Task) -> tuple[NDArray[np.float32], Weights]:
    """All losses, and the weights at the end."""
    engine = factory()
    engine.prepare(task)
    try:
        engine.run(0, task.steps)
        engine.synchronize()
        return engine.losses(0, task.steps), engine.weights()
    finally:
        engine.close()


def check_gradients(place: Place, network: Network, ours: Ours, _: Settings) -> dict[str, Any]:
    task = replace(place.task(network, 1, 1.0, 0), steps_per_call=1)
    rounded, exact = (relu_decisions(task, rounded=each) for each in (True, False))
    references = float64_gradients(task, rounded), float64_gradients(task, exact)
    errors, own = gradient_errors(ours.factory, task, *references)
    [own_pytorch] = gradient_errors(Eager, task, references[1])
    worst = max(errors, key=lambda name: errors[name])
    passed = all(error <= GRADIENT_LIMIT for error in errors.values())  # a NaN is none
    return {
        "passed": passed,
        "said": f"{worst} is {errors[worst]:.1e} from float64, allowed {GRADIENT_LIMIT:.0e}",
        "errors": errors,
        "limit": GRADIENT_LIMIT,
        "relu_apart": sum(int((a != b).sum()) for a, b in zip(rounded, exact, strict=True)),
        "own_relu": own,
        "own_relu_pytorch": own_pytorch,
    }


def check_bitwise(place: Place, network: Network, ours: Ours, settings: Settings) -> dict[str, Any]:
    task = place.task(network, settings.steps, settings.lr, 0)
    (losses, weights), (again, weights_again) = (_trained(ours.factory, task) for _ in range(2))
    differing = int((losses.view(np.uint32) != again.view(np.uint32)).sum())
    pairs = zip(
        (part for pair in weights for part in pair), (part for pair in weights_again for part in pair), strict=True
    )
    apart = sum(int((a.view(np.uint32) != b.view(np.uint32)).sum()) for a, b in pairs)
    said = f"{differing} of {task.steps} losses and {apart} weights differ between two runs"
    return {"passed": differing == apart == 0, "said": said, "steps": task.steps}


def check_curve(place: Place, network: Network, ours: Ours, settings: Settings) -> dict[str, Any]:
    task = place.task(network, settings.steps, settings.lr, 0)
    losses, _ = _trained(ours.factory, task)
    verdict = curves_agree(losses, *yardstick(task, task.steps))
    return {
        "passed": bool(verdict.agrees),
        "said": str(verdict),
        "distance": verdict.distance if np.isfinite(verdict.distance) else None,
        "allowed": verdict.allowed,
    }


def check_accuracy(place: Place, network: Network, ours: Ours, settings: Settings) -> dict[str, Any]:
    steps = settings.epochs * (len(place.pixels.labels) // network.batch)
    jobs = [
        (place.folder, network, steps, settings.lr, seed, "cpu" if place.index is None else "cuda")
        for seed in range(settings.seeds)
    ]
    mine = []
    for seed in range(settings.seeds):
        _, weights = _trained(ours.factory, place.task(network, steps, settings.lr, seed))
        mine.append(accuracy(weights, place.pixels.test_images, place.pixels.test_labels))
    workers = min(settings.seeds, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        theirs = list(pool.map(reference_accuracy, jobs))
    return compare_accuracies(mine, theirs)


def reference_accuracy(job: tuple[Path | None, Network, int, float, int, str]) -> float:
    """Test accuracy of PyTorch's fp32 run; in a process of its own, which loads the data itself."""
    import torch

    torch.set_num_threads(1)
    folder, network, steps, lr, seed, device = job
    pixels = Pixels.of(load(folder))
    task = task_of(TrainSettings(lr=lr, seed=seed), network, pixels, steps)
    _, weights = _trained(Reference, replace(task, device=device, steps_per_call=1))
    return accuracy(weights, pixels.test_images, pixels.test_labels)


def compare_accuracies(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Are the means within `STANDARD_ERRORS` standard errors of their difference?"""
    difference = statistics.mean(ours) - statistics.mean(theirs)
    error = float(np.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / len(ours)))
    said = (
        f"{statistics.mean(ours):.2%}, PyTorch in fp32 {statistics.mean(theirs):.2%}: {difference:+.2%}, "
        f"allowed {STANDARD_ERRORS * error:.2%} (mean of {len(ours)} seeds)"
    )
    return {
        "passed": bool(abs(difference) <= STANDARD_ERRORS * error),
        "said": said,
        "difference": difference,
        "standard_error": error,
        "accuracies": list(ours),
        "accuracies_pytorch": list(theirs),
    }


CHECKS = {"gradients": check_gradients, "bitwise": check_bitwise, "curve": check_curve, "accuracy": check_accuracy}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sameness", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=whole_numbers, default=[128, 1024], help="(default: 128,1024)")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=10, help="of the accuracy (default: 10)")
    parser.add_argument("--epochs", type=int, default=10, help="of the accuracy (default: 10)")
    parser.add_argument("--lr", type=float, default=0.1, help="of curve and accuracy (default: 0.1)")
    parser.add_argument("--steps", type=int, default=COMPARED, help="of curve and bitwise (default: %(default)s)")
    add_options(parser)
    options = parser.parse_args()
    if options.seeds < 2:
        raise UserError(f"--seeds {options.seeds} has no standard error; give a number from 2.")
    if options.steps < 1 or options.steps % STEPS_PER_GRAPH:
        raise UserError(f"--steps {options.steps} is no multiple of {STEPS_PER_GRAPH}, the steps of a CUDA graph.")
    networks = [Network(width, options.layers, options.batch) for width in options.widths]
    settings = Settings(options.lr, options.steps, options.epochs, options.seeds)
    place = Place.of(options, gpu_only=False)
    entries, piece, console = Entries(options.out, place.head("sameness")), Slice(options.slice), Console()
    failed = left = 0
    for network in networks:
        ours, checked = place.ours(network, checked=False), False
        console.print(f"{network.label}, batch {network.batch}. Engine: {ours.why}.", highlight=False, soft_wrap=True)
        for name, check in CHECKS.items():
            key = {
                "width": network.width,
                "layers": network.layers,
                "batch": network.batch,
                "check": name,
                "lr": settings.lr,
                "steps": settings.steps,
                "epochs": settings.epochs,
                "seeds": settings.seeds,
                "plan": ours.plan,
            }
            entry = entries.find(key)
            if entry is None and piece.over:
                left += 1
                continue
            if entry is None and not checked:
                ours, checked = place.ours(network), True
                key["plan"] = ours.plan
            if entry is None:
                entry = entries.add(key, check(place, network, ours, settings))
            failed += not entry["passed"]
            verdict = "same" if entry["passed"] else "NOT THE SAME"
            console.print(f"  {name:10s} {verdict}: {entry['said']}", highlight=False, soft_wrap=True)
    if left:
        console.print(f"{left} checks are left; run the same command again.", highlight=False)
    return 1 if failed else LEFT if left else 0


if __name__ == "__main__":
    script("benchmarks.sameness", main)
