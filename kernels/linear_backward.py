"""`linear_backward`: dX, dW and the SGD update of a layer in one pass over W. See linear_backward.cu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kernels.tiling import (
    COPY_INSTRUCTIONS,
    FP16_ROUNDING,
    FP32_ROUNDING,
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

RESIDUAL_SCALE = 2048.0
"""What the low part of a weight is stored times; mirrors linear_backward.cu."""


def split_master(weight: Any, master: str) -> tuple[Any, Any]:
    """An fp32 weight as (W in fp16, master part), in the form that MASTER names: `fp32` or `hilo`."""
    W = weight.astype(np.float16)
    if master == "fp32":
        return W, weight.astype(np.float32)
    return W, ((weight - W.astype(np.float32)) * np.float32(RESIDUAL_SCALE)).astype(np.float16)


def join_master(W: Any, part: Any, master: str) -> Any:
    """The weight in float64 from its two parts: the inverse of `split_master` up to the form's precision."""
    if master == "fp32":
        return part.astype(np.float64)
    return W.astype(np.float64) + part.astype(np.float64) / RESIDUAL_SCALE


class LinearBackward(Kernel):
    """From dY (batch, out), X (batch, in), weights (in, out): dX (batch, in), and the weights updated in place."""

    name = "linear_backward"
    source = Path(__file__).with_name("linear_backward.cu")
    dims = ("batch", "in_features", "out_features")
    options: ClassVar = {"dx": ("relu", "none")}
    """`relu`: dX is made and masked by X > 0. `none`: the first layer, whose inputs need no gradient."""

    def space(self, problem: Problem, device: Device) -> Space:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        need_dx = problem.option("dx") == "relu"
        block_m = up_to((32, 64, 128), batch)
        block_n, block_k = up_to((16, 32, 64, 128), outputs), up_to((16, 32, 64, 128), inputs)
        vectors = up_to((1, 2, 4, 8), vector_width(outputs, 8))[-2:]
        params = (
            Param("BLOCK_M", block_m, block_m[-1], "rows of the batch at a time"),
            Param("BLOCK_N", block_n, at_most(block_n, 64), "columns of W per step"),
            Param("BLOCK_K", block_k, at_most(block_k, 32), "rows of W per block: fewer blocks, fewer reads of dY"),
            Param("WARPS", (2, 4, 8, 16), 4, "warps per block"),
            Param("WARP_M", (16, 32, 64) if need_dx else (16,), 16, "rows of dX per warp"),
            Param("WARP_K", (16, 32, 64) if need_dx else (16,), 16, "columns of dX per warp"),
            Param("STAGES", (1, 2, 3, 4, 6), 2, "ring buffers: bytes in flight against shared memory"),
            Param("SPLIT_N", _splits(outputs), 1, "blocks that share rows of W: parallelism against a reduction of dX"),
            Param(
                "REDUCE",
                ("workspace", "cluster") if need_dx else ("workspace",),
                "workspace",
                "how the slices of dX meet: global memory, or sm_90's clusters",
            ),
            Param("MASTER", ("fp32", "hilo"), "hilo", "fp32 master and fp16 copy, or fp16 high and low parts"),
            Param("ACCUMULATOR", ("float", "half") if need_dx else ("float",), "float", "precision of the sums of dX"),
            Param("VECTOR", vectors, vectors[-1], "elements per copy"),
            OVERLAP,
            Param("SKEW", (0, 8), 8, "padding of rows in shared memory: bank conflicts against space"),
            Param("MIN_BLOCKS", (1, 2), 1, "blocks per SM that the compiler must leave registers for"),
        )
        return Space(params, self._constraints(problem, device), self.also())

    def _constraints(self, problem: Problem, device: Device) -> tuple[Constraint, ...]:
        batch, outputs = problem["batch"], problem["out_features"]
        need_dx = problem.option("dx") == "relu"

        def tiles(config: Config) -> int:
            return ceil_div(outputs, config.integer("BLOCK_N"))

        rules = [
            overlap_needs_sm_90(device),
            Constraint(
                "the update of b takes one thread per column of the tile: BLOCK_N at most 32 * WARPS",
                lambda c: c.integer("BLOCK_N") <= WARP * c.integer("WARPS"),
                ("BLOCK_N", "WARPS"),
            ),
            Constraint(
                "the fragments of dW must fit the registers: at most 8 per warp",
                lambda c: c.integer("BLOCK_K") * c.integer("BLOCK_N") <= 8 * 256 * c.integer("WARPS"),
                ("BLOCK_K", "BLOCK_N", "WARPS"),
            ),
            Constraint(
                "every slice of SPLIT_N needs a tile",
                lambda c: c.integer("SPLIT_N") <= tiles(c),
                ("BLOCK_N", "SPLIT_N"),
            ),
            Constraint(
                "a batch of several chunks needs one tile of W per block: SPLIT_N = tiles of a row",
                lambda c: batch <= c.integer("BLOCK_M") or c.integer("SPLIT_N") == tiles(c),
                ("BLOCK_M", "BLOCK_N", "SPLIT_N"),
            ),
            Constraint(
                "more ring buffers than steps would never be filled",
                lambda c: c.integer("STAGES") <= max(2, self._steps(problem, c)),
                ("BLOCK_M", "BLOCK_N", "STAGES", "SPLIT_N"),
            ),
            Constraint(
                "REDUCE=cluster needs sm_90 and 2 to 8 slices: a portable cluster has at most 8 blocks",
                lambda c: (
                    c.choice("REDUCE") == "workspace" or (device.capability >= 90 and 2 <= c.integer("SPLIT_N") <= 8)
                ),
                ("SPLIT_N", "REDUCE"),
            ),
            Constraint(
                f"the block's shared memory must fit the {device.shared_per_block} bytes that a block can have",
                lambda c: self._shared_bytes(problem, c) <= device.shared_per_block,
            ),
            Constraint(
                "MIN_BLOCKS blocks must fit an SM's shared memory and threads",
                lambda c: (
                    c.integer("MIN_BLOCKS") * self._shared_bytes(problem, c) <= device.shared_per_sm
                    and c.integer("MIN_BLOCKS") * WARP * c.integer("WARPS") <= device.threads_per_sm
                ),
            ),
        ]
        if need_dx:
            rules += [
                Constraint(
                    "WARP_M must divide BLOCK_M, WARP_K must divide BLOCK_K: warp tiles fill the block's piece of dX",
                    lambda c: (
                        c.integer("BLOCK_M") % c.integer("WARP_M") == 0
                        and c.integer("BLOCK_K") % c.integer("WARP_K") == 0
                    ),
                    ("BLOCK_M", "BLOCK_K", "WARP_M", "WARP_K"),
                ),
                Constraint(
                    "the accumulators of a warp must fit its registers: WARP_M * WARP_K at most 2048",
                    lambda c: c.integer("WARP_M") * c.integer("WARP_K") <= 2048,
                    ("WARP_M", "WARP_K"),
                ),
                Constraint(
                    "the warps must share out dX and the WMMA steps along BLOCK_N evenly",
                    lambda c: (
                        c.integer("WARPS") % _pieces(c) == 0
                        and (c.integer("BLOCK_N") // WMMA_K) % (c.integer("WARPS") // _pieces(c)) == 0
                    ),
                    ("BLOCK_M", "BLOCK_N", "BLOCK_K", "WARPS", "WARP_M", "WARP_K"),
                ),
            ]
        return tuple(rules)

    @staticmethod
    def _steps(problem: Problem, config: Config) -> int:
        """Turns of a block's main loop: tiles of its slice, or chunks of the batch."""
        chunks = ceil_div(problem["batch"], config.integer("BLOCK_M"))
        if chunks > 1:
            return chunks
        return ceil_div(problem["out_features"], config.integer("BLOCK_N")) // config.integer("SPLIT_N")

    @staticmethod
    def _shared_bytes(problem: Problem, config: Config) -> int:
        """What stays, the ring, and the place that G and then the sums of dX take."""
        need_dx, fp32 = problem.option("dx") == "relu", config.choice("MASTER") == "fp32"
        block_m, block_n, block_k = (config.integer(f"BLOCK_{axis}") for axis in "MNK")
        skew = config.integer("SKEW")
        x = block_m * (block_k + skew) * 2
        dy = block_m * (block_n + skew) * 2
        weights = block_k * (block_n + skew) * ((2 if need_dx or not fp32 else 0) + (4 if fp32 else 2))
        chunked = problem["batch"] > block_m
        resident, stage = (weights, dy + x) if chunked else (x, dy + weights)
        scratch = block_k * (block_n + 8) * 4
        if need_dx:
            sharers = config.integer("WARPS") // _pieces(config) or 1
            width = 4 if config.choice("ACCUMULATOR") == "float" else 2
            sums = sharers * block_m * (block_k + 8) * width
            if config.choice("REDUCE") == "cluster":
                sums += block_m * block_k * 4
            scratch = max(scratch, sums)
        return resident + config.integer("STAGES") * stage + scratch

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        tunables = {name: value for name, value in config.items() if name not in ("MASTER", "REDUCE")}
        return {
            "BATCH": problem["batch"],
            "IN_FEATURES": problem["in_features"],
            "OUT_FEATURES": problem["out_features"],
            "NEED_DX": int(problem.option("dx") == "relu"),
            "MASTER_FP32": int(config.choice("MASTER") == "fp32"),
            "REDUCE_CLUSTER": int(config.choice("REDUCE") == "cluster"),
            **tunables,
        }

    def launch(self, problem: Problem, config: Config) -> Launch:
        grid = (ceil_div(problem["in_features"], config.integer("BLOCK_K")), config.integer("SPLIT_N"), 1)
        threads, overlap = WARP * config.integer("WARPS"), bool(config.integer("OVERLAP"))
        return Launch(grid, (threads, 1, 1), self._shared_bytes(problem, config), overlap=overlap)

    def workspace(self, problem: Problem, config: Config) -> tuple[int, int]:
        """Elements of `partial` (fp32) and `arrived` (uint32)."""
        slices = config.integer("SPLIT_N")
        spills = problem.option("dx") == "relu" and slices > 1 and config.choice("REDUCE") == "workspace"
        padded = ceil_div(problem["in_features"], 4) * 4
        return (slices * problem["batch"] * padded if spills else 1), self.launch(problem, config).grid[0]

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        X = rng.standard_normal((batch, inputs), dtype=np.float32).astype(np.float16)
        X = np.where(np.abs(X) < 0.25, np.zeros_like(X), X)  # exact zeros, as a ReLU makes them: their gradient is zero
        dY = rng.standard_normal((batch, outputs), dtype=np.float32).astype(np.float16)
        weight = rng.standard_normal((inputs, outputs), dtype=np.float32) / np.float32(inputs**0.5)
        b = rng.standard_normal((outputs,), dtype=np.float32)
        W, master = split_master(weight, config.choice("MASTER"))
        # So large that the update is of the weights' own size: a wrong gradient shows in every digit.
        rate = np.float32(1.0 / (inputs * batch) ** 0.5)
        partial, arrived = self.workspace(problem, config)
        dx_shape = (batch, inputs) if problem.option("dx") == "relu" else (1,)
        dX = Array("dX", np.empty_like(X, shape=dx_shape), Role.OUT if len(dx_shape) == 2 else Role.SCRATCH)
        return (
            Array("X", X, Role.IN),
            Array("dY", dY, Role.IN),
            Array("W", W, Role.INOUT),
            Array("master", master, Role.INOUT),
            Array("b", b, Role.INOUT),
            dX,
            Scalar("rate", rate),
            Scalar("settled", np.int32(1)),
            Array("partial", np.empty_like(b, shape=(partial,)), Role.SCRATCH),
            Array("arrived", np.zeros_like(b, shape=(arrived,), dtype=np.uint32), Role.COUNTER),
        )

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        X, dY, b = (inputs[name].astype(np.float64) for name in ("X", "dY", "b"))
        rate = float(inputs["rate"])
        # The form of the master shows in its type; `master` decides what the weight before the update was.
        form = "fp32" if inputs["master"].dtype == np.float32 else "hilo"
        weight = join_master(inputs["W"], inputs["master"], form)
        updated = weight - rate * (X.T @ dY)
        found = {"weight": updated, "W": updated, "b": b - rate * dY.sum(axis=0)}
        if problem.option("dx") == "relu":
            found["dX"] = np.where(X > 0, dY @ inputs["W"].astype(np.float64).T, 0.0)
        return found

    def outputs(self, problem: Problem, config: Config, values: Mapping[str, Any]) -> Mapping[str, Any]:
        weight = join_master(values["W"], values["master"], config.choice("MASTER"))
        return {**values, "weight": weight}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        batch, _, outputs = (problem[dim] for dim in self.dims)
        # G is summed in fp32 over the batch. hilo keeps 11 + 11 bits of the weight, fp32 keeps 24.
        summed = 2 * FP32_ROUNDING * batch**0.5
        stored = FP32_ROUNDING if config.choice("MASTER") == "fp32" else FP16_ROUNDING**2
        limits = {"weight": 2 * (summed + stored), "W": FP16_ROUNDING, "b": 2 * summed + 2 * FP32_ROUNDING}
        if problem.option("dx") == "relu":
            sharers = config.integer("SPLIT_N") * max(1, config.integer("WARPS") // _pieces(config))
            limits["dX"] = sum_tolerance(config.choice("ACCUMULATOR"), ceil_div(outputs, sharers))
        return limits

    def work(self, problem: Problem, config: Config) -> Work:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        need_dx, fp32 = problem.option("dx") == "relu", config.choice("MASTER") == "fp32"
        weights = inputs * outputs
        x_bytes, dy_bytes = 2 * batch * inputs, 2 * batch * outputs
        dx_bytes = 2 * x_bytes if need_dx else 0  # written, and X read again for the mask
        # Read and written back; W is not read where an fp32 master says all.
        per_weight = (4 + 6 + (2 if need_dx else 0)) if fp32 else 8
        grid_rows = ceil_div(inputs, config.integer("BLOCK_K"))
        return Work(
            flops=2.0 * batch * weights * (2 if need_dx else 1),
            floor_bytes=8 * weights + x_bytes + dy_bytes + (x_bytes if need_dx else 0) + 8 * outputs,
            moved_bytes=per_weight * weights
            + dy_bytes * grid_rows
            + x_bytes * config.integer("SPLIT_N")
            + dx_bytes
            + 8 * outputs
            + 2 * 4 * self.workspace(problem, config)[0],
            serial_steps=self._steps(problem, config),
            memory_bytes=per_weight * weights + x_bytes + dy_bytes + dx_bytes / 2 + 8 * outputs,
            loop=_loop(problem, config),
            finish=_finish(problem, config),
        )

    def emulates(self, config: Config) -> bool:
        return config.choice("REDUCE") != "cluster"

    def library(self, problem: Problem) -> tuple[Gemm, ...]:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        weight_gradient = Gemm(inputs, outputs, batch, transpose_a=True)
        if problem.option("dx") == "none":
            return (weight_gradient,)
        return (Gemm(batch, inputs, outputs, transpose_b=True), weight_gradient)


UPDATE_INSTRUCTIONS = 12
"""Of a warp per weight of each thread that it updates, about: conversions, the sum, two roundings."""


def _loop(problem: Problem, config: Config) -> Loop:
    """One tile of W: its copies, a warp's share of both products, and the update of the tile.

    A chunked batch fetches other things in the same shapes; it is reckoned as if it were not chunked.
    """
    need_dx, fp32 = problem.option("dx") == "relu", config.choice("MASTER") == "fp32"
    block_m, block_n, block_k = (config.integer(f"BLOCK_{axis}") for axis in "MNK")
    skew, warps = config.integer("SKEW"), config.integer("WARPS")
    threads, tile, width = (
        WARP * warps,
        block_n * block_k,
        vector_width(problem["out_features"], config.integer("VECTOR")),
    )
    part = 4 if fp32 else 2
    per_weight = (2 if need_dx or not fp32 else 0) + part
    fetched = 2 * block_m * block_n + per_weight * tile
    copied = copies(block_m * block_n, width, threads) + copies(tile, min(width, 16 // part), threads)
    copied += copies(tile, width, threads) if need_dx or not fp32 else 0
    updates = copies(tile, width, threads)
    fragments = tile // 256
    g_steps = ceil_div(fragments, warps) * (block_m // WMMA_K)
    dx_steps = block_n // (WMMA_K * (warps // _pieces(config) or 1)) if need_dx else 0
    reads_w = bank_conflicts(block_n + skew)
    g_reads = fragments * (block_m // WMMA_K) * 512 * (bank_conflicts(block_k + skew) + reads_w)
    dx_reads = warps * dx_steps * 2 * WMMA_K * (config.integer("WARP_M") + config.integer("WARP_K")) * reads_w
    # G is written and read in fp32; threads that are more than 16 bytes apart meet in the same banks.
    updated = tile * (4 + 4 * max(1, width // 4) + per_weight)
    return Loop(
        fetched_bytes=fetched,
        # cp.async moves 4 bytes at least: single elements come through registers, which their warp waits for.
        ahead=0 if width == 1 else config.integer("STAGES") - 1,
        instructions=COPY_INSTRUCTIONS * copied + updates * (UPDATE_INSTRUCTIONS * width + COPY_INSTRUCTIONS),
        tensor_steps=g_steps + dx_steps,
        barriers=3,
        shared_bytes=fetched + g_reads + dx_reads + updated,
    )


def _finish(problem: Problem, config: Config) -> Finish:
    """The sums of dX meet: those of the warps in shared memory, those of the slices where REDUCE says."""
    if problem.option("dx") == "none":
        return Finish()
    tile, slices = config.integer("BLOCK_M") * config.integer("BLOCK_K"), config.integer("SPLIT_N")
    clustered = config.choice("REDUCE") == "cluster"
    width = 4 if config.choice("ACCUMULATOR") == "float" else 2
    return Finish(
        shared_bytes=2 * (config.integer("WARPS") // _pieces(config) or 1) * tile * width,
        blocks=slices,
        clustered=clustered,
        loads=0 if clustered or slices == 1 else slices * copies(tile, 4, WARP * config.integer("WARPS")),
    )


def _splits(outputs: int) -> tuple[int, ...]:
    """Powers of two up to the number of the narrowest tiles, and (for chunked batches) each number of tiles."""
    most = ceil_div(outputs, 16)
    powers = {2**i for i in range(10) if 2**i <= min(most, 64)}
    return tuple(sorted(powers | {ceil_div(outputs, width) for width in (16, 32, 64, 128)}))


def _pieces(config: Config) -> int:
    """Warp tiles in a block's piece of dX."""
    pieces_m = config.integer("BLOCK_M") // config.integer("WARP_M")
    return pieces_m * (config.integer("BLOCK_K") // config.integer("WARP_K")) or 1
