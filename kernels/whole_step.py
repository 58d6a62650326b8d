"""What the kernels share that make whole SGD steps of an MLP in one launch: problem, inputs, reference and tolerance.

They differ in how they keep the weights (`layers_of`), and in how blocks work together.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tuner.kernel import Argument, Array, Kernel, Role, Scalar
from tuner.types import Config, Problem, Value

Layer = tuple[Any, Any]
"""W (in, out) and b (out)."""

_IMAGES = 512
"""Rows to pick batches from while tuning."""
_PATH = 1.2
"""Learning rate times steps while tuning: changes every matrix by a fair part of itself, and stays far from chaos."""


class WholeStep(Kernel):
    """images (any, in) fp16, labels uint8, order (total, batch) int32, and the weights of all layers, in place.

    `layers` counts hidden layers of `width`; `steps` SGD steps are made in one launch.
    """

    dims = ("batch", "in_features", "width", "layers", "classes", "steps")
    options: ClassVar = {}
    worst_element = 64.0
    """A value that rounding puts on the other side of a ReLU changes one column, and by whole gradients: emulated runs
    of 64 steps saw up to 12 tolerances."""

    parts: ClassVar[tuple[str, ...]]
    """Of a step, as the kernel's PROFILE build counts their cycles in `loss`."""
    packed_names: ClassVar[tuple[str, ...]]
    """The arrays that hold the weights, in the order of the parameters."""
    scratch: ClassVar[frozenset[str]] = frozenset()
    """Of the workspace: what no launch reads before it has written it."""

    @abstractmethod
    def packed(self, problem: Problem, config: Config, layers: Sequence[Layer]) -> dict[str, Any]:
        """`layers` as the kernel keeps them, by `packed_names`."""

    @abstractmethod
    def layers_of(self, problem: Problem, values: Mapping[str, Any]) -> list[Layer]:
        """The inverse of `packed`, whatever the configuration was."""

    @abstractmethod
    def workspace(self, problem: Problem, config: Config) -> dict[str, int]:
        """How many elements of 4 bytes each workspace has, in the order of the parameters. All zero before step 0."""

    def parameters(self, problem: Problem, config: Config) -> tuple[str, ...]:
        """Names of the kernel's parameters, in order."""
        before = ("images", "labels", "order", "position", "total", "steps")
        return (*before, *self.packed_names, "rate", "loss", "slots", *self.workspace(problem, config), "failed")

    def sizes(self, problem: Problem) -> list[int]:
        """Features along the network."""
        return [problem["in_features"], *[problem["width"]] * problem["layers"], problem["classes"]]

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {
            "BATCH": problem["batch"],
            "IN_FEATURES": problem["in_features"],
            "WIDTH": problem["width"],
            "LAYERS": problem["layers"],
            "CLASSES": problem["classes"],
            **config,
        }

    def fresh_layers(self, problem: Problem, rng: Any) -> list[Layer]:
        """Random layers in fp32, uniform within 1 / sqrt(in) as PyTorch's are."""

        def uniform(shape: tuple[int, ...], fan_in: int) -> Any:
            return ((2 * rng.random(shape, dtype=np.float32) - 1) / np.float32(fan_in**0.5)).astype(np.float32)

        return [(uniform((n, m), n), uniform((m,), n)) for n, m in itertools.pairwise(self.sizes(problem))]

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        batch, steps = problem["batch"], problem["steps"]
        # Normal, not pixels: units differ, and few activations lie where rounding decides about the ReLU.
        images = rng.standard_normal((_IMAGES, problem["in_features"]), dtype=np.float32).astype(np.float16)
        labels = rng.integers(0, problem["classes"], size=_IMAGES).astype(np.uint8)
        order = rng.integers(0, _IMAGES, size=(steps + 1, batch)).astype(np.int32)
        packed = self.packed(problem, config, self.fresh_layers(problem, rng))

        def zeros(count: int, dtype: Any) -> Any:
            return np.zeros_like(order, shape=(count,), dtype=dtype)

        every: dict[str, Argument] = {
            "images": Array("images", images, Role.IN),
            "labels": Array("labels", labels, Role.IN),
            "order": Array("order", order, Role.IN),
            # Near the end, so that the order starts over within the launch.
            "position": Array("position", np.full_like(order, 2, shape=(1,)), Role.INOUT),
            "total": Scalar("total", np.int32(steps + 1)),
            "steps": Scalar("steps", np.int32(steps)),
            "rate": Scalar("rate", np.float32(_PATH / steps / batch)),
            "loss": Array("loss", zeros(steps + 1, np.float32), Role.INOUT),
            "slots": Scalar("slots", np.int32(steps + 1)),
            "failed": Array("failed", zeros(1, np.int32), Role.COUNTER),
        }
        every |= {name: Array(name, data, Role.INOUT) for name, data in packed.items()}
        for name, count in self.workspace(problem, config).items():
            # What blocks tell each other is read before it is written, while one waits: the numbers in it are for that.
            scratch = name in self.scratch
            data = zeros(count, np.float32 if scratch else np.uint32)
            every[name] = Array(name, data, Role.SCRATCH if scratch else Role.INOUT)
        return tuple(every[name] for name in self.parameters(problem, config))

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """SGD in float64, rounded to fp16 where the kernel hands on fp16.

        At a ReLU's corner such a rounding decides whether a gradient passes; without it a correct kernel would differ
        by whole gradients now and then, and the limits could catch nothing finer than that.
        """
        steps, classes = problem["steps"], problem["classes"]
        layers = [(W.astype(np.float64), b.astype(np.float64)) for W, b in self.layers_of(problem, inputs)]
        done, total, rate = int(inputs["position"][0]), int(inputs["total"]), float(inputs["rate"])
        loss = inputs["loss"].astype(np.float64)
        for t in range(steps):
            rows = inputs["order"][(done + t) % total]
            activations = [inputs["images"][rows].astype(np.float64)]
            for depth, (W, b) in enumerate(layers):
                x = activations[-1] @ _rounded(W) + b
                activations.append(_rounded(np.maximum(x, 0.0)) if depth < len(layers) - 1 else x)
            z = activations[-1] - activations[-1].max(axis=1, keepdims=True)
            log_sum = np.log(np.exp(z).sum(axis=1, keepdims=True))
            onehot = (inputs["labels"][rows][:, None] == np.arange(classes, like=z)[None, :]).astype(np.float64)
            loss[(done + t) % int(inputs["slots"])] = ((log_sum - z) * onehot).sum() / problem["batch"]
            gradient = _rounded(np.exp(z - log_sum) - onehot)
            for depth in reversed(range(len(layers))):
                W, b = layers[depth]
                below = activations[depth]
                update = below.T @ gradient, gradient.sum(axis=0)
                gradient = _rounded((gradient @ _rounded(W).T) * (below > 0))
                layers[depth] = W - rate * update[0], b - rate * update[1]
        found = {"loss": loss, "position": inputs["position"].astype(np.float64) + steps}
        return found | _named(layers)

    def outputs(self, problem: Problem, config: Config, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**values, **_named(self.layers_of(problem, values))}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        # What is left are sums in fp32, and the few values that they put on the other side of a tie of fp16 or of a
        # ReLU. Seen over 64 steps: up to 3e-4 of W0, 5e-4 of the biases, 1e-4 of the other matrices, while those steps
        # move W0 and the biases by 2e-3 of themselves at least, the others by 8e-4. Fewer steps are larger ones: each
        # such value then weighs more, and there are fewer to average.
        few = max(1.0, 64 / problem["steps"]) ** 0.5
        coarse, fine, last = few * 2.0**-10, few * 2.0**-12, problem["layers"]
        weights = {f"W{depth}": fine if depth else coarse for depth in range(last + 1)}
        return {"loss": 2.0**-13, "position": 0.0} | weights | {f"b{depth}": coarse for depth in range(last + 1)}


def _named(layers: Sequence[Layer]) -> dict[str, Any]:
    return {f"{name}{depth}": part for depth, pair in enumerate(layers) for name, part in zip("Wb", pair, strict=True)}


def _rounded(values: Any) -> Any:
    """To fp16 and back."""
    return values.astype(np.float16).astype(np.float64)
