"""`gather_rows`: the batches of the next training steps, picked on the device. See gather_rows.cu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.tiling import COPY_INSTRUCTIONS, ceil_div, copies, up_to, vector_width
from tuner.kernel import Argument, Array, Kernel, Loop, Role, Scalar, Work
from tuner.space import Constraint, Param, Space
from tuner.types import Config, Device, Launch, Problem, Value

_IMAGES = 512
"""Rows to pick from while tuning: too many for L1, few enough to make quickly."""


class GatherRows(Kernel):
    """images (any, features) fp16 and labels uint8 to X (steps, batch, features) fp16 and y (steps, batch) int32."""

    name = "gather_rows"
    source = Path(__file__).with_name("gather_rows.cu")
    dims = ("batch", "features", "steps")

    def space(self, problem: Problem, device: Device) -> Space:
        rows = problem["batch"] * problem["steps"]
        vectors = up_to((1, 2, 4, 8), vector_width(problem["features"], 8))
        return Space(
            (
                Param("THREADS", (32, 64, 128, 256), 128, "threads per block"),
                Param("ROWS", up_to((1, 2, 4, 8), rows), 1, "rows per block"),
                Param("VECTOR", vectors, vectors[-1], "elements per copy"),
            ),
            (
                Constraint(
                    "half of the threads or more would have nothing to copy",
                    lambda c: (
                        c.integer("THREADS") == 32
                        or c.integer("THREADS")
                        < 2 * c.integer("ROWS") * ceil_div(problem["features"], c.integer("VECTOR"))
                    ),
                ),
            ),
        )

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        sizes = {"BATCH": problem["batch"], "FEATURES": problem["features"], "STEPS": problem["steps"]}
        return {**sizes, **config}

    def launch(self, problem: Problem, config: Config) -> Launch:
        blocks = ceil_div(problem["batch"] * problem["steps"], config.integer("ROWS"))
        # Shared memory for the flag of the block that arrives last.
        return Launch((blocks, 1, 1), (config.integer("THREADS"), 1, 1), 16)

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        batch, features, steps = (problem[dim] for dim in self.dims)
        images = rng.random((_IMAGES, features), dtype=np.float32).astype(np.float16)
        labels = rng.integers(0, 10, size=_IMAGES).astype(np.uint8)
        # The position is so near the end that the order starts over within the launch.
        order = rng.integers(0, _IMAGES, size=(steps + 1, batch)).astype(np.int32)
        return (
            Array("images", images, Role.IN),
            Array("labels", labels, Role.IN),
            Array("order", order, Role.IN),
            Array("position", np.full_like(order, 2, shape=(1,)), Role.INOUT),
            Scalar("total", np.int32(steps + 1)),
            Array("X", np.empty_like(images, shape=(steps, batch, features)), Role.OUT),
            Array("y", np.empty_like(order, shape=(steps, batch)), Role.OUT),
            Array("arrived", np.zeros_like(order, shape=(1,), dtype=np.uint32), Role.COUNTER),
        )

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        done = int(inputs["position"][0])
        steps = (done + np.arange(problem["steps"])) % int(inputs["total"])
        rows = inputs["order"][steps]
        return {
            "X": inputs["images"][rows].astype(np.float64),
            "y": inputs["labels"][rows].astype(np.float64),
            "position": (inputs["position"] + problem["steps"]).astype(np.float64),
        }

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {"X": 0.0, "y": 0.0, "position": 0.0}  # copies are exact

    def work(self, problem: Problem, config: Config) -> Work:
        rows = problem["batch"] * problem["steps"]
        moved = rows * (4 * problem["features"] + 9)
        width = vector_width(problem["features"], config.integer("VECTOR"))
        return Work(
            flops=0.0,
            floor_bytes=moved,
            moved_bytes=moved,
            serial_steps=copies(config.integer("ROWS") * problem["features"], width, config.integer("THREADS")),
            loop=Loop(instructions=2 * COPY_INSTRUCTIONS),  # the row's number is looked up as well
        )
