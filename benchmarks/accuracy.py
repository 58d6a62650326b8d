"""Test accuracy of 784-H-H-H-10 on full MNIST: our kernels on the GPU against PyTorch in fp32, over several seeds.

Both start from the same weights and see the same batches. PyTorch runs on the CPU, one process per seed, since accuracy
does not depend on where it is computed; our steps run on the GPU. Prints a table, writes JSON.

    python benchmarks/accuracy.py --data DIR --out benchmarks/accuracy-h200.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import statistics
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from trainer.checks import Checker
from trainer.contenders.base import Task
from trainer.contenders.model import Reference
from trainer.data import Dataset, load, scaled
from trainer.engines.graph import GraphEngine
from trainer.mlp import Network, accuracy
from trainer.plan import make_plan
from trainer.settings import TrainSettings
from trainer.training import Pixels, task_of
from tuner.devices import environment, resolve
from tuner.errors import UserError
from tuner.store import Store


def task_for(dataset: Dataset, network: Network, epochs: int, lr: float, seed: int, device: str) -> Task:
    steps = epochs * (len(dataset.train_labels) // network.batch)
    return replace(task_of(TrainSettings(lr=lr, seed=seed), network, Pixels.of(dataset), steps), device=device)


def pytorch(arguments: tuple[Path, Network, int, float, int]) -> float:
    """Test accuracy of PyTorch's fp32 run."""
    import torch

    torch.set_num_threads(1)
    folder, network, epochs, lr, seed = arguments
    dataset = load(folder)
    task = task_for(dataset, network, epochs, lr, seed, "cpu")
    contender = Reference()
    contender.prepare(task)
    contender.run(0, task.steps)
    return accuracy(contender.weights(), scaled(dataset.test_images), dataset.test_labels)


def ours(dataset: Dataset, network: Network, epochs: int, lr: float, seeds: range) -> list[dict[str, Any]]:
    import cupy

    device = resolve("cuda")
    if device is None:
        raise UserError("This benchmark trains on a GPU, and no GPU is used here; see mnist-tune doctor.")
    with Store.open() as store, Checker(device, environment(), "cuda:0") as check:
        plan = make_plan(store, network, device, environment(), check=check)
    images, labels = cupy.asarray(scaled(dataset.test_images)), cupy.asarray(dataset.test_labels)
    found = []
    for seed in seeds:
        task = task_for(dataset, network, epochs, lr, seed, "cuda")
        engine = GraphEngine(plan)
        engine.prepare(task)
        seconds = engine.timed(0, task.steps)
        weights = tuple((cupy.asarray(W), cupy.asarray(b)) for W, b in engine.weights())
        last = float(engine.losses(0, task.steps)[-1000:].mean(dtype=np.float64))
        found.append({"seed": seed, "accuracy": accuracy(weights, images, labels), "seconds": seconds, "loss": last})
        engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    network, seeds = Network(options.width), range(options.seeds)
    dataset = load(options.data)
    jobs = [(options.data, network, options.epochs, options.lr, seed) for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(len(jobs)) as pool:
        theirs = pool.map_async(pytorch, jobs)
        runs = ours(dataset, network, options.epochs, options.lr, seeds)
        accuracies = theirs.get()
    for run, other in zip(runs, accuracies, strict=True):
        run["accuracy_pytorch"] = other
    mean, mean_pytorch = (statistics.mean(run[key] for run in runs) for key in ("accuracy", "accuracy_pytorch"))
    device = resolve("cuda")
    document = {
        "network": network.label,
        "epochs": options.epochs,
        "batch": network.batch,
        "lr": options.lr,
        "device": device.name if device else None,
        "versions": asdict(environment()),
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "mean_accuracy": mean,
        "mean_accuracy_pytorch": mean_pytorch,
        "runs": runs,
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    print("seed   ours  PyTorch fp32")
    for run in runs:
        print(f"{run['seed']:4d} {run['accuracy']:7.2%} {run['accuracy_pytorch']:7.2%}   {run['seconds']:.2f} s")
    print(f"mean {mean:7.2%} {mean_pytorch:7.2%}")


if __name__ == "__main__":
    main()
