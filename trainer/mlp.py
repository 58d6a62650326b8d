"""The network: a multilayer perceptron 784-H-...-H-10 with ReLU between the layers, and its fresh weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.problems import LARGEST_BATCH, MOST_LAYERS, WIDEST, layer_sizes
from trainer.contenders.base import Weights
from tuner.errors import UserError


@dataclass(frozen=True, slots=True)
class Network:
    """784 inputs, `layers` hidden layers of `width`, 10 classes; trained `batch` images at a time."""

    width: int
    layers: int = 3
    batch: int = 32

    def __post_init__(self) -> None:
        limits = (
            ("width", self.width, WIDEST),
            ("number of hidden layers", self.layers, MOST_LAYERS),
            ("batch", self.batch, LARGEST_BATCH),
        )
        for name, count, most in limits:
            if not 1 <= count <= most:
                raise UserError(f"The {name} is {count}; give a whole number from 1 to {most}.")

    @property
    def sizes(self) -> list[int]:
        """Features along the network, from the pixels to the classes."""
        return layer_sizes(self.width, self.layers)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum(inputs * outputs + outputs for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False))

    @property
    def label(self) -> str:
        """`784-128-128-128-10`."""
        return "-".join(str(size) for size in self.sizes)


def fresh_weights(network: Network, seed: int) -> Weights:
    """Weights and biases drawn uniformly from +-1/sqrt(inputs), as `torch.nn.Linear` draws them; W is (in, out)."""
    rng = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        bound = inputs**-0.5
        W = rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        return W, rng.uniform(-bound, bound, outputs).astype(np.float32)

    return tuple(layer(*pair) for pair in zip(network.sizes, network.sizes[1:], strict=False))


def accuracy(
    weights: Weights, images: NDArray[np.float16], labels: NDArray[np.uint8], *, at_once: int = 10_000
) -> float:
    """Share of `images` (count, pixels) that the network puts in the class of their label; in fp32.

    Runs where the arrays live: NumPy's, or CuPy's.
    """
    right = 0
    for first in range(0, len(images), at_once):
        x: Any = images[first : first + at_once].astype(np.float32)
        for depth, (W, b) in enumerate(weights):
            x = x @ W + b
            if depth < len(weights) - 1:
                x = np.maximum(x, 0.0)
        right += int((x.argmax(axis=1) == labels[first : first + at_once]).sum())
    return right / len(images)
