"""`linear_forward`: Y = activation(X W + b), the forward pass of a fully connected layer. See linear_forward.cu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kernels.tiling import (
    COPY_INSTRUCTIONS,
    OVERLAP,
    WARP,
    WMMA_K,
    at_most,
    bank_conflicts,
    ceil_div,
    copies,
    overlap_needs_sm_90,
    sum_tolerance,
    up_to,
    vector_width,
)
from tuner.kernel import Argument, Array, Finish, Gemm, Kernel, Loop, Role, Scalar, Work
from tuner.space import Constraint, Param, Space
from tuner.types import Config, Device, Launch, Problem, Value


class LinearForward(Kernel):
    """X (batch, in), W (in, out) fp16 and b (out) fp32 to Y (batch, out) fp16, row major."""

    name = "linear_forward"
    source = Path(__file__).with_name("linear_forward.cu")
    dims = ("batch", "in_features", "out_features")
    options: ClassVar = {"activation": ("relu", "none")}

    def space(self, problem: Problem, device: Device) -> Space:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        # Below 32 rows a block would read W for less work than it could do; above the batch there is nothing to do.
        block_m = up_to((32, 64, 128), batch)
        block_n, block_k = up_to((16, 32, 64, 128), outputs), up_to((32, 64, 128, 256), inputs)
        vectors = up_to((1, 2, 4, 8), vector_width(outputs, 8))[-2:]
        params = (
            Param("BLOCK_M", block_m, block_m[-1] if batch <= 64 else 64, "rows of Y per block: fewer reads of W"),
            Param("WARP_M", (16, 32, 64), 32, "rows per warp: registers against reads of W from shared memory"),
            Param("BLOCK_N", block_n, at_most(block_n, 32), "columns per block"),
            Param("WARP_N", (16, 32, 64), at_most(block_n, 32), "columns per warp"),
            Param("WMMA", ("16x16x16", "8x32x16"), "16x16x16", "32x8x16 would break WMMA's pointer alignment here"),
            Param("BLOCK_K", block_k, at_most(block_k, 64), "depth of a ring buffer"),
            Param("WARPS_K", (1, 2, 4, 8), at_most(block_k, 64) // 16, "warps that share out the depth"),
            Param("STAGES", (1, 2, 3, 4, 6), 2, "ring buffers: bytes in flight against shared memory"),
            Param("SPLIT_K", (1, 2, 4, 8, 16, 32), 1, "blocks that share a tile of Y: parallelism against a reduction"),
            Param("REDUCE", ("workspace", "cluster"), "workspace", "how they meet: global memory, or sm_90's clusters"),
            Param("ACCUMULATOR", ("float", "half"), "float", "precision of the sums"),
            Param("VECTOR", vectors, vectors[-1], "elements per copy"),
            OVERLAP,
            Param("SKEW", (0, 8), 8, "padding of rows in shared memory: bank conflicts against space"),
            Param("MIN_BLOCKS", (1, 2), 1, "blocks per SM that the compiler must leave registers for"),
        )
        return Space(params, self._constraints(problem, device), self.also())

    def _constraints(self, problem: Problem, device: Device) -> tuple[Constraint, ...]:
        inputs = problem["in_features"]

        def tiles(config: Config) -> int:
            return ceil_div(inputs, config.integer("BLOCK_K"))

        return (
            overlap_needs_sm_90(device),
            Constraint(
                "WARP_M must divide BLOCK_M: warp tiles fill the block tile",
                lambda c: c.integer("BLOCK_M") % c.integer("WARP_M") == 0,
                ("BLOCK_M", "WARP_M"),
            ),
            Constraint(
                "WARP_N must divide BLOCK_N: warp tiles fill the block tile",
                lambda c: c.integer("BLOCK_N") % c.integer("WARP_N") == 0,
                ("BLOCK_N", "WARP_N"),
            ),
            Constraint(
                "the WMMA shape must divide the warp tile",
                lambda c: c.integer("WARP_M") % _wmma(c)[0] == 0 and c.integer("WARP_N") % _wmma(c)[1] == 0,
                ("WARP_M", "WARP_N", "WMMA"),
            ),
            Constraint(
                "the accumulators of a warp must fit its registers: WARP_M * WARP_N at most 2048",
                lambda c: c.integer("WARP_M") * c.integer("WARP_N") <= 2048,
                ("WARP_M", "WARP_N"),
            ),
            Constraint(
                "BLOCK_K must be a multiple of 16 * WARPS_K: every warp takes the same number of WMMA steps",
                lambda c: c.integer("BLOCK_K") % (WMMA_K * c.integer("WARPS_K")) == 0,
                ("BLOCK_K", "WARPS_K"),
            ),
            Constraint(
                "a block has at most 512 threads, so that two fit on an SM of sm_75",
                lambda c: _threads(c) <= 512,
                ("BLOCK_M", "WARP_M", "BLOCK_N", "WARP_N", "WARPS_K"),
            ),
            Constraint(
                "more ring buffers than tiles in a slice would never be filled",
                lambda c: c.integer("STAGES") <= max(2, tiles(c) // c.integer("SPLIT_K")),
                ("BLOCK_K", "STAGES", "SPLIT_K"),
            ),
            Constraint(
                "every slice of SPLIT_K needs a tile",
                lambda c: c.integer("SPLIT_K") <= tiles(c),
                ("BLOCK_K", "SPLIT_K"),
            ),
            Constraint(
                "REDUCE=cluster needs sm_90 and 2 to 8 slices: a portable cluster has at most 8 blocks",
                lambda c: (
                    c.choice("REDUCE") == "workspace" or (device.capability >= 90 and 2 <= c.integer("SPLIT_K") <= 8)
                ),
                ("SPLIT_K", "REDUCE"),
            ),
            Constraint(
                f"the block's shared memory must fit the {device.shared_per_block} bytes that a block can have",
                lambda c: self._shared_bytes(c) <= device.shared_per_block,
            ),
            Constraint(
                "MIN_BLOCKS blocks must fit an SM's shared memory and threads",
                lambda c: (
                    c.integer("MIN_BLOCKS") * self._shared_bytes(c) <= device.shared_per_sm
                    and c.integer("MIN_BLOCKS") * _threads(c) <= device.threads_per_sm
                ),
            ),
        )

    @staticmethod
    def _shared_bytes(config: Config) -> int:
        """The ring, or the warps' sums that take its place at the end."""
        block_m, block_n, block_k = (config.integer(f"BLOCK_{axis}") for axis in "MNK")
        skew = config.integer("SKEW")
        ring = config.integer("STAGES") * 2 * (block_m * (block_k + skew) + block_k * (block_n + skew))
        width = 4 if config.choice("ACCUMULATOR") == "float" else 2
        sums = config.integer("WARPS_K") * block_m * (block_n + 8) * width
        if config.choice("REDUCE") == "cluster":
            sums += block_m * block_n * 4
        return max(ring, sums)

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        fragment_m, fragment_n = _wmma(config)
        tunables = {name: value for name, value in config.items() if name not in ("WMMA", "REDUCE")}
        return {
            "BATCH": problem["batch"],
            "IN_FEATURES": problem["in_features"],
            "OUT_FEATURES": problem["out_features"],
            "RELU": int(problem.option("activation") == "relu"),
            "FRAGMENT_M": fragment_m,
            "FRAGMENT_N": fragment_n,
            "REDUCE_CLUSTER": int(config.choice("REDUCE") == "cluster"),
            **tunables,
        }

    def launch(self, problem: Problem, config: Config) -> Launch:
        grid = (
            ceil_div(problem["out_features"], config.integer("BLOCK_N")),
            ceil_div(problem["batch"], config.integer("BLOCK_M")),
            config.integer("SPLIT_K"),
        )
        overlap = bool(config.integer("OVERLAP"))
        return Launch(grid, (_threads(config), 1, 1), self._shared_bytes(config), overlap=overlap)

    def workspace(self, problem: Problem, config: Config) -> tuple[int, int]:
        """Elements of `partial` (fp32) and `arrived` (uint32)."""
        grid = self.launch(problem, config).grid
        spills = config.integer("SPLIT_K") > 1 and config.choice("REDUCE") == "workspace"
        padded = ceil_div(problem["out_features"], 4) * 4
        return (config.integer("SPLIT_K") * problem["batch"] * padded if spills else 1), grid[0] * grid[1]

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        X = rng.standard_normal((batch, inputs), dtype=np.float32).astype(np.float16)
        # Scaled as a layer's initial weights are, so that Y is of order 1.
        W = (rng.standard_normal((inputs, outputs), dtype=np.float32) / inputs**0.5).astype(np.float16)
        b = rng.standard_normal((outputs,), dtype=np.float32)
        partial, arrived = self.workspace(problem, config)
        return (
            Array("X", X, Role.IN),
            Array("W", W, Role.IN),
            Array("b", b, Role.IN),
            Array("Y", np.empty_like(X, shape=(batch, outputs)), Role.OUT),
            Scalar("settled", np.int32(1)),
            Array("partial", np.empty_like(b, shape=(partial,)), Role.SCRATCH),
            Array("arrived", np.zeros_like(b, shape=(arrived,), dtype=np.uint32), Role.COUNTER),
        )

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        X, W, b = (inputs[name].astype(np.float64) for name in ("X", "W", "b"))
        Y = X @ W + b
        return {"Y": np.maximum(Y, 0.0) if problem.option("activation") == "relu" else Y}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        chain = ceil_div(problem["in_features"], config.integer("SPLIT_K") * config.integer("WARPS_K"))
        return {"Y": sum_tolerance(config.choice("ACCUMULATOR"), chain)}

    def work(self, problem: Problem, config: Config) -> Work:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        launch = self.launch(problem, config)
        x_bytes, w_bytes, y_bytes = 2 * batch * inputs, 2 * inputs * outputs, 2 * batch * outputs
        partial = 4 * self.workspace(problem, config)[0]
        return Work(
            flops=2.0 * batch * inputs * outputs,
            floor_bytes=x_bytes + w_bytes + y_bytes + 4 * outputs,
            moved_bytes=x_bytes * launch.grid[0] + w_bytes * launch.grid[1] + y_bytes + 4 * outputs + 2 * partial,
            serial_steps=ceil_div(ceil_div(inputs, config.integer("BLOCK_K")), config.integer("SPLIT_K")),
            loop=_loop(problem, config),
            finish=_finish(config),
        )

    def emulates(self, config: Config) -> bool:
        return config.choice("REDUCE") != "cluster"

    def library(self, problem: Problem) -> tuple[Gemm, ...]:
        return (Gemm(problem["batch"], problem["out_features"], problem["in_features"]),)


def _loop(problem: Problem, config: Config) -> Loop:
    """One tile of X and W through the ring, and a warp's share of the products."""
    block_m, block_n, block_k = (config.integer(f"BLOCK_{axis}") for axis in "MNK")
    skew, vector, threads = config.integer("SKEW"), config.integer("VECTOR"), _threads(config)
    x_vector, w_vector = vector_width(problem["in_features"], vector), vector_width(problem["out_features"], vector)
    fetched = 2 * (block_m * block_k + block_k * block_n)
    steps = block_k // (WMMA_K * config.integer("WARPS_K"))
    reads_x = config.integer("WARP_M") * bank_conflicts(block_k + skew)
    reads_w = config.integer("WARP_N") * bank_conflicts(block_n + skew)
    return Loop(
        fetched_bytes=fetched,
        # cp.async moves 4 bytes at least: single elements come through registers, which their warp waits for.
        ahead=0 if min(x_vector, w_vector) == 1 else config.integer("STAGES") - 1,
        instructions=COPY_INSTRUCTIONS
        * (copies(block_m * block_k, x_vector, threads) + copies(block_k * block_n, w_vector, threads)),
        tensor_steps=steps,
        barriers=1,
        shared_bytes=fetched + threads // WARP * steps * 2 * WMMA_K * (reads_x + reads_w),
    )


def _finish(config: Config) -> Finish:
    """The sums of the warps meet in shared memory, those of the slices where REDUCE says."""
    tile, slices = config.integer("BLOCK_M") * config.integer("BLOCK_N"), config.integer("SPLIT_K")
    clustered = config.choice("REDUCE") == "cluster"
    width = 4 if config.choice("ACCUMULATOR") == "float" else 2
    return Finish(
        shared_bytes=2 * config.integer("WARPS_K") * tile * width,
        blocks=slices,
        clustered=clustered,
        loads=0 if clustered or slices == 1 else slices * copies(tile, 4, _threads(config)),
    )


def _wmma(config: Config) -> tuple[int, int]:
    """Rows and columns of a WMMA fragment."""
    m, n, _ = config.choice("WMMA").split("x")
    return int(m), int(n)


def _threads(config: Config) -> int:
    warps_m = config.integer("BLOCK_M") // config.integer("WARP_M")
    warps_n = config.integer("BLOCK_N") // config.integer("WARP_N")
    return WARP * warps_m * warps_n * config.integer("WARPS_K")
