"""`softmax_cross_entropy`: the mean loss of a batch of logits and its gradient. See softmax_cross_entropy.cu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.tiling import FP16_ROUNDING, OVERLAP, WARP, ceil_div, overlap_needs_sm_90
from tuner.kernel import Argument, Array, Kernel, Role, Scalar, Work
from tuner.space import Constraint, Param, Space
from tuner.types import Config, Device, Launch, Problem, Value


class SoftmaxCrossEntropy(Kernel):
    """logits (batch, classes) fp16 and labels (batch) int32 to dLogits (batch, classes) fp16, mean loss fp32."""

    name = "softmax_cross_entropy"
    source = Path(__file__).with_name("softmax_cross_entropy.cu")
    dims = ("batch", "classes")

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(
            (
                Param("THREADS", (32, 64, 128, 256, 512), 128, "threads of the one block"),
                Param("LANES", (1, 2, 4, 8, 16, 32), 4, "threads per row: shuffles against serial exponentials"),
                OVERLAP,
            ),
            (
                Constraint(
                    "half of the lane groups or more would have no row",
                    lambda c: c.integer("THREADS") == WARP or _groups(c) < 2 * problem["batch"],
                    ("THREADS", "LANES"),
                ),
                overlap_needs_sm_90(device),
            ),
        )

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {"BATCH": problem["batch"], "CLASSES": problem["classes"], **config}

    def launch(self, problem: Problem, config: Config) -> Launch:
        overlap = bool(config.integer("OVERLAP"))
        return Launch((1, 1, 1), (config.integer("THREADS"), 1, 1), 4 * _groups(config), overlap=overlap)

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        batch, classes = problem["batch"], problem["classes"]
        logits = (4 * rng.standard_normal((batch, classes), dtype=np.float32)).astype(np.float16)
        labels = rng.integers(0, classes, size=batch).astype(np.int32)
        return (
            Array("logits", logits, Role.IN),
            Array("labels", labels, Role.IN),
            Array("dLogits", np.empty_like(logits), Role.OUT),
            Array("loss", np.full_like(logits, 0.5, shape=(2,), dtype=np.float32), Role.INOUT),
            Array("position", np.full_like(labels, 5, shape=(1,)), Role.IN),
            Scalar("offset", np.int32(-3)),
            Scalar("slots", np.int32(2)),
            Scalar("scale", np.float32(batch)),
        )

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        batch, classes = problem["batch"], problem["classes"]
        z = inputs["logits"].astype(np.float64)
        z = z - z.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(z).sum(axis=1, keepdims=True))
        columns = np.arange(classes, like=z)
        onehot = (inputs["labels"][:, None] == columns[None, :]).astype(np.float64)
        loss = ((log_sum - z) * onehot).sum() / batch
        gradient = (np.exp(z - log_sum) - onehot) * (float(inputs["scale"]) / batch)
        log = inputs["loss"].astype(np.float64)
        log[(int(inputs["position"][0]) + int(inputs["offset"])) % int(inputs["slots"])] = loss
        return {"dLogits": gradient, "loss": log}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        # __expf and __logf are good to about 2^-21 here; the gradient is rounded to fp16 once.
        return {"dLogits": 1.5 * FP16_ROUNDING, "loss": 2.0**-18}

    def work(self, problem: Problem, config: Config) -> Work:
        logits = 2 * problem["batch"] * problem["classes"]
        moved = 2 * logits + 4 * problem["batch"] + 8
        return Work(
            flops=4.0 * problem["batch"] * problem["classes"],
            floor_bytes=moved,
            moved_bytes=moved,
            serial_steps=ceil_div(problem["batch"], _groups(config))
            * ceil_div(problem["classes"], config.integer("LANES")),
        )


def _groups(config: Config) -> int:
    """Lane groups of the block: rows at a time."""
    return config.integer("THREADS") // config.integer("LANES")
