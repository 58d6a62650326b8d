"""Where benchmarks of whole trainings run, and with what: the device, the data, and our step as `train` chooses it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import head
from trainer.checks import Checker
from trainer.contenders.base import Task
from trainer.data import Dataset, load
from trainer.documents import describe, sources_hash
from trainer.engines.choose import choose, emulated_engine_of, engine_of
from trainer.lanes import Factory
from trainer.mlp import Network
from trainer.plan import Choice, Form
from trainer.settings import TrainSettings
from trainer.train import EMULATED_FOR
from trainer.training import Pixels, task_of
from tuner.devices import device_index, environment, find, resolve
from tuner.errors import UserError
from tuner.store import Store
from tuner.types import Device, Environment


@dataclass(frozen=True, slots=True)
class Ours:
    """Our step for a network: who makes its engine, and the plan as plain JSON."""

    factory: Factory
    plan: dict[str, Any]
    why: str
    """Why it is of that form."""


@dataclass(frozen=True, slots=True)
class Place:
    """`index` is the number of the GPU; None: the CPU, which emulates `device`."""

    device: Device
    environment: Environment
    index: int | None
    dataset: Dataset
    pixels: Pixels
    folder: Path | None
    store: str | None

    @classmethod
    def of(cls, options: argparse.Namespace, *, gpu_only: bool) -> Place:
        """The place that the options of `add_options` name.

        Raises:
            UserError: the data or the GPU is not there, or there is none and `gpu_only` asks for one.
        """
        device = resolve(options.device)
        if device is None and gpu_only:
            raise UserError("This benchmark times trainings on a GPU, and no GPU is used here; see mnist-tune doctor.")
        index = None if device is None else device_index(options.device) or 0
        dataset = load(options.data)
        return cls(
            device or find(EMULATED_FOR),
            environment(),
            index,
            dataset,
            Pixels.of(dataset),
            options.data,
            options.db,
        )

    def head(self, script: str) -> dict[str, Any]:
        """How a document of `script` begins."""
        return {
            **head(script, self.device, self.environment),
            "emulated": self.index is None,
            "data": self.dataset.source,
            "data_hash": self.dataset.fingerprint,
            "sources": sources_hash(),
        }

    def ours(self, network: Network, form: Form = Form.AUTO, *, checked: bool = True) -> Ours:
        """Our step for `network`, looked up and checked as `train` does it; not `checked`: only what the store serves.

        Raises:
            UserError: no configuration works, or the form that is asked for does not fit.
        """
        gpu = None if self.index is None else f"cuda:{self.index}"
        with Store.open(self.store) as store, Checker(self.device, self.environment, gpu) as check:
            judge = check if checked else _unchecked
            plan, why = choose(store, network, self.device, self.environment, check=judge, form=form)
        if self.index is None:
            return Ours(partial(emulated_engine_of, plan), describe(plan), why)
        return Ours(engine_of(plan, self.index), describe(plan), why)

    def task(self, network: Network, steps: int, lr: float, seed: int) -> Task:
        """`steps` steps of `network` at `lr`, for ours and for PyTorch's."""
        task = task_of(TrainSettings(lr=lr, seed=seed), network, self.pixels, steps)
        return task if self.index is not None else replace(task, device="cpu", steps_per_call=1)


def _unchecked(choice: Choice) -> None:
    """Nothing is compiled or run, so nothing is found wrong."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all these benchmarks have."""
    parser.add_argument("--data", type=Path, help="folder with the four files of MNIST (default: as train)")
    parser.add_argument("--device", help="cuda, cuda:N, or cpu (default: the first GPU)")
    parser.add_argument("--db", help="the store (default: as train)")
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write; the same command goes on with it")
    parser.add_argument("--slice", type=float, help="begin nothing new after so many seconds (default: do everything)")


def whole_numbers(text: str) -> list[int]:
    """`1,2,3` as numbers from 1 (an argparse type)."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text} has a number below 1")
    return found


def rates(text: str) -> list[float]:
    """`0.1,0.3` as learning rates (an argparse type)."""
    found = [float(part) for part in text.split(",")]
    if not all(0 < rate < 1000 for rate in found):
        raise argparse.ArgumentTypeError(f"{text} has a rate that is none")
    return found
