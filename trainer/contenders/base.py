"""What takes part in a race: the task, the same for all, and the protocol that a contender fulfils."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Weights = tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
"""For each layer W (in, out) and b (out,): y = x W + b, ReLU between the layers."""


@dataclass(frozen=True, slots=True)
class Task:
    """What every contender trains: the same network from the same weights on the same batches.

    The loss is the mean cross-entropy over a batch, the optimiser plain SGD: w -= lr * dloss/dw.
    """

    weights: Weights
    images: NDArray[np.float16]
    """(count, pixels), scaled to 0 .. 1."""
    labels: NDArray[np.uint8]
    order: NDArray[np.int32]
    """(steps, batch): which images make up each step's batch."""
    lr: float
    steps_per_call: int = 20
    """Steps that a contender may chain without the host (in one CUDA graph); divides every count of steps."""
    device: str = "cuda"
    """`cuda` or `cpu`."""
    test_images: NDArray[np.float16] | None = None
    test_labels: NDArray[np.uint8] | None = None

    @property
    def steps(self) -> int:
        return int(self.order.shape[0])

    @property
    def batch(self) -> int:
        return int(self.order.shape[1])

    def save(self, folder: Path) -> None:
        """Write the task into `folder`, from where `load` maps it: a process is started faster than with a pickle."""
        arrays: dict[str, NDArray[Any]] = {"images": self.images, "labels": self.labels, "order": self.order}
        if self.test_images is not None and self.test_labels is not None:
            arrays |= {"test_images": self.test_images, "test_labels": self.test_labels}
        for i, (W, b) in enumerate(self.weights):
            arrays |= {f"W{i}": W, f"b{i}": b}
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        scalars = {
            "layers": len(self.weights),
            "lr": self.lr,
            "steps_per_call": self.steps_per_call,
            "device": self.device,
        }
        (folder / "task.json").write_text(json.dumps(scalars))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The task that `save` wrote; the arrays are private copies-on-write of the files."""

        def array(name: str) -> Any:
            path = folder / f"{name}.npy"
            return np.load(path, mmap_mode="c") if path.exists() else None

        scalars = json.loads((folder / "task.json").read_text())
        layers = scalars.pop("layers")
        return cls(
            weights=tuple((array(f"W{i}"), array(f"b{i}")) for i in range(layers)),
            images=array("images"),
            labels=array("labels"),
            order=array("order"),
            test_images=array("test_images"),
            test_labels=array("test_labels"),
            **scalars,
        )


class Contender(Protocol):
    """One way to train the task. Steps are run in order, each once; `run` need not wait for the device."""

    name: ClassVar[str]
    description: ClassVar[str]
    """One line: what it is, for the table of the race."""

    def prepare(self, task: Task) -> None:
        """Compile, capture, warm up. Afterwards the weights are the task's and no step has been made."""
        ...

    def run(self, first_step: int, steps: int) -> None:
        """Make `steps` steps of the task's order, a multiple of `steps_per_call`, from `first_step` on."""
        ...

    def synchronize(self) -> None:
        """Wait until all steps are made."""
        ...

    def timed(self, first_step: int, steps: int) -> float:
        """`run`, timed on the device (events around it): seconds."""
        ...

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        """The loss of each of these steps (mean over the batch, before its update)."""
        ...

    def weights(self) -> Weights:
        """The present weights, in full precision."""
        ...

    @property
    def peak_bytes(self) -> int | None:
        """Most device memory that was allocated at a time; None where nobody counts (on a CPU)."""
        ...

    @property
    def notes(self) -> str:
        """What a reader of the result should know: which path was taken, whether CUDA graphs were replayed."""
        ...

    def close(self) -> None:
        """Give the device's memory back."""
        ...
