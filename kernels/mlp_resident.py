"""`mlp_resident`: many SGD steps of a whole MLP in one cooperative launch. See mlp_resident.cu."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.tiling import WARP, ceil_div
from kernels.whole_step import Layer, WholeStep
from tuner.kernel import Work
from tuner.space import Constraint, Param, Space
from tuner.types import Config, Device, Launch, Problem

LARGEST_CLUSTER = 16
"""Blocks that an H100 or H200 can put into a cluster; 8 on every GPU with clusters."""


class MlpResident(WholeStep):
    """The weights of all layers, fp32, one after the other, in place. `steps` SGD steps are made in one launch."""

    name = "mlp_resident"
    source = Path(__file__).with_name("mlp_resident.cu")
    parts = (
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
    packed_names = ("weights",)

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

    def packed(self, problem: Problem, config: Config, layers: Sequence[Layer]) -> dict[str, Any]:
        return {"weights": np.concatenate([part.astype(np.float32).ravel() for pair in layers for part in pair])}

    def workspace(self, problem: Problem, config: Config) -> dict[str, int]:
        return {"exchange": self.exchange_words(problem)}

    def layers_of(self, problem: Problem, values: Mapping[str, Any]) -> list[Layer]:
        """See `WholeStep`; views."""
        weights, at = values["weights"], 0
        layers: list[Layer] = []
        for inputs, outputs in itertools.pairwise(self.sizes(problem)):
            W = weights[at : at + inputs * outputs].reshape(inputs, outputs)
            at += inputs * outputs
            layers.append((W, weights[at : at + outputs]))
            at += outputs
        return layers

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
