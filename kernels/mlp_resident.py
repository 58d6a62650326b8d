"""`mlp_resident`: many SGD steps of a whole MLP in one cooperative launch. See mlp_resident.cu."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kernels.tiling import WARP, ceil_div
from tuner.kernel import Argument, Array, Kernel, Role, Scalar, Work
from tuner.space import Constraint, Param, Space
from tuner.types import Config, Device, Launch, Problem, Value

_IMAGES = 512
"""Rows to pick batches from while tuning."""
LARGEST_CLUSTER = 16
"""Blocks that an H100 or H200 can put into a cluster; 8 on every GPU with clusters."""
_PATH = 1.2
"""Learning rate times steps while tuning: changes every matrix by a fair part of itself, and stays far from chaos."""


PARTS = (
    "sum+send h0",
    "window h0",
    "wait h0",
    "product h1",
    "wait h1..",
    "product h2..",
    "wait top h",
    "logits..dz",
    "pass dz down",
    "window dz",
    "wait dz",
    "product dz0",
    "first layer",
    "barrier",
)
"""Of a step, as the kernel's PROFILE build counts them."""


class MlpResident(Kernel):
    """images (any, in) fp16, labels uint8, order (total, batch) int32, and the weights of all layers, fp32, in place.

    `layers` counts hidden layers of `width`; `steps` SGD steps are made in one launch.
    """

    name = "mlp_resident"
    source = Path(__file__).with_name("mlp_resident.cu")
    dims = ("batch", "in_features", "width", "layers", "classes", "steps")
    options: ClassVar = {}
    worst_element = 64.0
    """A value that rounding puts on the other side of a ReLU changes one column, and by whole gradients: emulated runs
    of 64 steps saw up to 12 tolerances."""

    def sizes(self, problem: Problem) -> list[int]:
        """Features along the network."""
        return [problem["in_features"], *[problem["width"]] * problem["layers"], problem["classes"]]

    def space(self, problem: Problem, device: Device) -> Space:
        blocks, row_tiles = ceil_div(problem["width"], 16), ceil_div(problem["batch"], 16)
        return Space(
            (
                Param("CLUSTER", (0, 1), 0, "exchange through L2, or through the shared memory of a cluster (sm_90)"),
                Param("WARPS", (4, 8, 16), 8, "warps of a block: they share the first layer's depth, and the masters"),
                Param("SPLIT_K", (1, 2, 4), 1, "warps that share the depth of a hidden product"),
                Param("X_BUFFERS", (0, 2), 0, "batches in shared memory; 0: a lane fetches the pixels that it needs"),
            ),
            (
                Constraint(
                    f"the block's shared memory must fit the {device.shared_per_block} bytes that a block can have",
                    lambda c: self._shared_bytes(problem, c) <= device.shared_per_block,
                ),
                Constraint(
                    f"CLUSTER=1 needs sm_90 and at most {LARGEST_CLUSTER} blocks",
                    lambda c: c.integer("CLUSTER") == 0 or (device.capability >= 90 and blocks <= LARGEST_CLUSTER),
                    ("CLUSTER",),
                ),
                Constraint(
                    "every block must be on the GPU at once, one to an SM",
                    lambda _: blocks <= device.sm_count,
                ),
                Constraint(
                    "the master weights of a warp must fit its registers",
                    lambda c: self._master_registers(problem, c) <= 160 * min(1, 8 / c.integer("WARPS")),
                ),
                Constraint(
                    "a pair of warps makes 16 rows: SPLIT_K is at most WARPS / 2",
                    lambda c: 2 * c.integer("SPLIT_K") <= c.integer("WARPS"),
                    ("SPLIT_K", "WARPS"),
                ),
                Constraint(
                    "every warp that shares a depth needs a tile of 16 of it",
                    lambda c: c.integer("SPLIT_K") <= blocks or problem["layers"] == 1,
                ),
                Constraint(
                    "with one hidden layer there is no hidden product to share",
                    lambda c: problem["layers"] > 1 or c.integer("SPLIT_K") == 1,
                ),
                Constraint(
                    "a warp makes the logits of at most 16 rows: the batch is at most 16 WARPS",
                    lambda c: row_tiles <= min(c.integer("WARPS"), 15),
                ),
                Constraint("a tile of logits holds at most 16 classes", lambda _: problem["classes"] <= 16),
            ),
        )

    @staticmethod
    def _master_registers(problem: Problem, config: Config) -> int:
        """Per thread: 8 for each 16x16 tile that the warp keeps."""
        warps = config.integer("WARPS")
        first = ceil_div(ceil_div(problem["in_features"], 16), warps)
        hidden = ceil_div(ceil_div(problem["width"], 16), warps)
        return 8 * (first + hidden * (2 * (problem["layers"] - 1) + 1))

    @staticmethod
    def _shared_bytes(problem: Problem, config: Config) -> int:
        """Mirrors the layout in mlp_resident.cu."""
        row_tiles, warps, layers = ceil_div(problem["batch"], 16), config.integer("WARPS"), problem["layers"]
        rows, blocks = 16 * row_tiles, ceil_div(problem["width"], 16)
        x_tiles, split = ceil_div(problem["in_features"], 16), config.integer("SPLIT_K")
        x = rows * (x_tiles * 16 + 8) * 2
        tile = rows * 32
        buffers = layers + config.integer("CLUSTER") + max(layers - 2, 0)
        operands = (2 * (layers - 1) + 1) * blocks * 512
        copies = warps >= 2 * row_tiles and blocks > 1
        parts = max(split if split > 1 else 0, int(copies)) * rows * 64
        sums = ceil_div(x_tiles, ceil_div(x_tiles, warps)) * rows * 64
        small = 2 * tile + (layers + 1) * 64 + rows * 28
        barriers = 8 * (layers + max(layers - 2, 0)) * (2 if layers == 1 else 1)
        if layers >= 2 and sums <= blocks * tile:
            sums = 0
        return config.integer("X_BUFFERS") * x + buffers * blocks * tile + operands + parts + small + barriers + sums

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {
            "BATCH": problem["batch"],
            "IN_FEATURES": problem["in_features"],
            "WIDTH": problem["width"],
            "LAYERS": problem["layers"],
            "CLASSES": problem["classes"],
            **config,
        }

    def launch(self, problem: Problem, config: Config) -> Launch:
        blocks, threads = ceil_div(problem["width"], 16), WARP * config.integer("WARPS")
        clustered = bool(config.integer("CLUSTER"))
        return Launch(
            (blocks, 1, 1),
            (threads, 1, 1),
            self._shared_bytes(problem, config),
            cooperative=not clustered,
            cluster=blocks if clustered else 1,
        )

    def exchange_words(self, problem: Problem) -> int:
        """Elements of `exchange` as uint32: two sets of places, a phase per all-gather, 8 bytes per pair of columns."""
        layers, rows = problem["layers"], ceil_div(problem["batch"], 16) * 16
        phases = layers + max(layers - 2, 0)
        return 2 * phases * ceil_div(problem["width"], 16) * rows * 8 * 2

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        batch, inputs, steps = problem["batch"], problem["in_features"], problem["steps"]
        # Normal, not pixels: units differ, and few activations lie where rounding decides about the ReLU.
        images = rng.standard_normal((_IMAGES, inputs), dtype=np.float32).astype(np.float16)
        labels = rng.integers(0, problem["classes"], size=_IMAGES).astype(np.uint8)
        order = rng.integers(0, _IMAGES, size=(steps + 1, batch)).astype(np.int32)
        pairs, words = itertools.pairwise(self.sizes(problem)), self.exchange_words(problem)
        parts = [self._uniform(rng, (n + 1) * m, n) for n, m in pairs]
        weights = np.concatenate(parts)
        return (
            Array("images", images, Role.IN),
            Array("labels", labels, Role.IN),
            Array("order", order, Role.IN),
            # Near the end, so that the order starts over within the launch.
            Array("position", np.full_like(order, 2, shape=(1,)), Role.INOUT),
            Scalar("total", np.int32(steps + 1)),
            Scalar("steps", np.int32(steps)),
            Array("weights", weights, Role.INOUT),
            Scalar("rate", np.float32(_PATH / steps / batch)),
            Array("loss", np.zeros_like(weights, shape=(steps + 1,)), Role.INOUT),
            Scalar("slots", np.int32(steps + 1)),
            # Read before it is written, while a block waits; that is what the numbers in it are for.
            Array("exchange", np.zeros_like(order, shape=(words,), dtype=np.uint32), Role.INOUT),
            Array("failed", np.zeros_like(order, shape=(1,)), Role.COUNTER),
        )

    @staticmethod
    def _uniform(rng: Any, count: int, fan_in: int) -> Any:
        return ((2 * rng.random((count,), dtype=np.float32) - 1) / np.float32(fan_in**0.5)).astype(np.float32)

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """SGD in float64, rounded to fp16 where the kernel hands on fp16.

        At a ReLU's corner such a rounding decides whether a gradient passes; without it a correct kernel would differ
        by whole gradients now and then, and the limits could catch nothing finer than that.
        """
        steps, classes = problem["steps"], problem["classes"]
        layers = self.split(problem, inputs["weights"].astype(np.float64))
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
        return found | self._named(layers)

    def outputs(self, problem: Problem, config: Config, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**values, **self._named(self.split(problem, values["weights"]))}

    def split(self, problem: Problem, weights: Any) -> list[tuple[Any, Any]]:
        """(W, b) of each layer out of the flat array; views."""
        layers, at = [], 0
        for inputs, outputs in itertools.pairwise(self.sizes(problem)):
            W = weights[at : at + inputs * outputs].reshape(inputs, outputs)
            at += inputs * outputs
            layers.append((W, weights[at : at + outputs]))
            at += outputs
        return layers

    @staticmethod
    def _named(layers: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        return {
            f"{name}{depth}": part for depth, pair in enumerate(layers) for name, part in zip("Wb", pair, strict=True)
        }

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        # What is left are sums in fp32, and the few values that they put on the other side of a tie of fp16 or of a
        # ReLU. Seen over 64 steps: up to 3e-4 of W0, 5e-4 of the biases, 1e-4 of the other matrices, while those steps
        # move W0 and the biases by 2e-3 of themselves at least, the others by 8e-4. Fewer steps are larger ones: each
        # such value then weighs more, and there are fewer to average.
        few = max(1.0, 64 / problem["steps"]) ** 0.5
        coarse, fine, last = few * 2.0**-10, few * 2.0**-12, problem["layers"]
        weights = {f"W{depth}": fine if depth else coarse for depth in range(last + 1)}
        return {"loss": 2.0**-13, "position": 0.0} | weights | {f"b{depth}": coarse for depth in range(last + 1)}

    def emulates(self, config: Config) -> bool:
        return not config.integer("CLUSTER")

    def work(self, problem: Problem, config: Config) -> Work:
        batch, steps = problem["batch"], problem["steps"]
        weights = sum(inputs * outputs for inputs, outputs in itertools.pairwise(self.sizes(problem)))
        first = problem["in_features"] * problem["width"]
        images = 2 * batch * problem["in_features"]
        blocks = ceil_div(problem["width"], 16)
        exchanged = 4 * self.exchange_words(problem) // 2
        return Work(
            flops=2.0 * batch * (3 * weights - first) * steps,
            floor_bytes=8.0 * weights + images * steps,
            moved_bytes=8.0 * weights * 2 + steps * blocks * (images + exchanged),
            serial_steps=steps * (2 * problem["layers"] + 2),
        )


def _rounded(values: Any) -> Any:
    """To fp16 and back."""
    return values.astype(np.float16).astype(np.float64)
