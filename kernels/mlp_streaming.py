"""`mlp_streaming`: many SGD steps of a whole MLP in one launch, the weights streaming. See mlp_streaming.cu."""

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

PORTABLE_CLUSTER = 8
"""Blocks that every GPU with clusters can put into one."""

FINER = 2048.0
"""By which low parts are larger than what they stand for: it keeps them inside fp16."""


class MlpStreaming(WholeStep):
    """All matrices but the last as high and low parts in fp16, tile by tile; the last one and the biases in fp32."""

    name = "mlp_streaming"
    source = Path(__file__).with_name("mlp_streaming.cu")
    parts = (
        "sums h0",
        "weights written",
        "wait h",
        "product h",
        "sums h",
        "wait top h",
        "logits",
        "softmax..dz",
        "wait dz",
        "product dz",
        "sums dz",
        "wait dz0",
        "first layer",
    )
    packed_names = ("weights", "last_copies", "biases")
    scratch = frozenset({"bias_steps"})

    def space(self, problem: Problem, device: Device) -> Space:
        tiles, row_tiles = ceil_div(problem["width"], 16), ceil_div(problem["batch"], 16)
        return Space(
            (
                Param("CLUSTER", (0, 1), 0, "a team's messages go through L2, or the team is a cluster (sm_90)"),
                Param("GRID_N", (8, 16, 32), 8, "teams: they share the columns of a product"),
                Param("GRID_K", (2, 4, 8), 4, "blocks of a team: they share the depth of a product"),
                Param("WARPS", (4, 8, 16), 8, "warps of a block: they share its columns, then its depth"),
                Param("SLOTS", (1, 2, 3, 4, 6, 8, 12, 16, 24), 2, "how far ahead a warp requests its weights"),
                Param("ROUNDS", (1, 2, 4), 1, "in which partial sums are exchanged: more need less shared memory"),
            ),
            (
                Constraint(
                    f"the block's shared memory must fit the {device.shared_per_block} bytes that a block can have",
                    lambda c: self._shared_bytes(problem, c) <= device.shared_per_block,
                ),
                Constraint(
                    f"CLUSTER=1 needs sm_90, and at most {PORTABLE_CLUSTER} blocks a team",
                    lambda c: c.integer("CLUSTER") == 0 or device.capability >= 90,
                    ("CLUSTER",),
                ),
                Constraint(
                    f"every block must be on the GPU at once, one to each of {device.sm_count} SMs",
                    lambda c: c.integer("GRID_N") * c.integer("GRID_K") <= device.sm_count,
                    ("GRID_N", "GRID_K"),
                ),
                Constraint(
                    "every team needs a tile of columns: GRID_N is at most WIDTH / 16",
                    lambda c: c.integer("GRID_N") <= tiles,
                    ("GRID_N",),
                ),
                Constraint(
                    "every warp needs a tile of its block's depth",
                    lambda c: self._warps_in_depth(problem, c) <= _tiles(problem, c) // c.integer("GRID_K"),
                ),
                Constraint(
                    "the sums and operands of a warp must fit its registers",
                    lambda c: self._registers(problem, c) <= 160 * min(1, 8 / c.integer("WARPS")),
                ),
                Constraint(
                    "through L2 no shared memory is needed for partial sums: ROUNDS is 1",
                    lambda c: c.integer("ROUNDS") == 1 or c.integer("CLUSTER") == 1,
                    ("ROUNDS", "CLUSTER"),
                ),
                Constraint(
                    "a round of less than the logits frees no shared memory",
                    lambda c: (
                        c.integer("ROUNDS") == 1 or self._share(problem, c) // c.integer("ROUNDS") >= 128 * row_tiles
                    ),
                ),
                Constraint(
                    "with one hidden layer there is no hidden matrix to stream",
                    lambda _: problem["layers"] >= 2,
                ),
                Constraint(
                    "a batch's rows are read by as many threads",
                    lambda c: 16 * row_tiles <= WARP * c.integer("WARPS"),
                ),
                Constraint("a tile of logits holds at most 16 classes", lambda _: problem["classes"] <= 16),
            ),
        )

    @staticmethod
    def _share(problem: Problem, config: Config) -> int:
        """Words, pairs of columns of a row, of a block's share of its team's outcome."""
        out_tiles = _tiles(problem, config) // config.integer("GRID_N")
        return out_tiles * 8 // config.integer("GRID_K") * 16 * ceil_div(problem["batch"], 16)

    @staticmethod
    def _warps_in_width(problem: Problem, config: Config) -> int:
        """WARP_N of mlp_streaming.cu: the largest power of two that there are tiles and warps for."""
        out_tiles = _tiles(problem, config) // config.integer("GRID_N")
        return min(config.integer("WARPS"), 1 << (out_tiles.bit_length() - 1))

    def _warps_in_depth(self, problem: Problem, config: Config) -> int:
        return config.integer("WARPS") // self._warps_in_width(problem, config)

    def _columns(self, problem: Problem, config: Config) -> int:
        """Of tiles, of a warp."""
        out_tiles = _tiles(problem, config) // config.integer("GRID_N")
        return ceil_div(out_tiles, self._warps_in_width(problem, config))

    def _registers(self, problem: Problem, config: Config) -> int:
        """Per thread, of the backward pass: sums and activations for each column, the tiles in hand, the slab's."""
        columns, row_tiles = self._columns(problem, config), ceil_div(problem["batch"], 16)
        return columns * (12 * row_tiles + 8) + 8 * row_tiles

    def _shared_bytes(self, problem: Problem, config: Config) -> int:
        """Mirrors the layout in mlp_streaming.cu."""
        warps, grid_k, layers = config.integer("WARPS"), config.integer("GRID_K"), problem["layers"]
        rows, tiles = 16 * ceil_div(problem["batch"], 16), _tiles(problem, config)
        out_tiles, in_tiles = tiles // config.integer("GRID_N"), tiles // grid_k
        words, tile = rows * 8, rows * 32
        ring = warps * config.integer("SLOTS") * self._columns(problem, config) * 1024
        x_share = ceil_div(ceil_div(problem["in_features"], 16), grid_k)
        in_depth = self._warps_in_depth(problem, config)
        last_warps = ceil_div(in_tiles, ceil_div(in_tiles, warps))
        parts = max(in_depth * out_tiles if in_depth > 1 else 0, last_warps) * words * 8
        share = self._share(problem, config)
        pairs = share // rows
        received = grid_k * max(share // config.integer("ROUNDS"), words) * 8 if config.integer("CLUSTER") else 0
        small = tile + (layers - 1) * share * 4 + layers * pairs * 8 + 64 + rows * 28 + 16
        x = 2 * rows * (x_share * 16 + 8) * 2
        return ring + (in_tiles + out_tiles) * tile + x + parts + received + small

    def launch(self, problem: Problem, config: Config) -> Launch:
        team = config.integer("GRID_K")
        return Launch(
            (config.integer("GRID_N") * team, 1, 1),
            (WARP * config.integer("WARPS"), 1, 1),
            self._shared_bytes(problem, config),
            cooperative=True,
            cluster=team if config.integer("CLUSTER") else 1,
        )

    # ---- What the kernel works on

    def packed(self, problem: Problem, config: Config, layers: Sequence[Layer]) -> dict[str, Any]:
        tiles, x_tiles = _tiles(problem, config), ceil_div(problem["in_features"], 16)
        *streamed, (W_last, b_last) = layers
        flat = [_pack(W, tiles if depth else x_tiles, tiles) for depth, (W, _) in enumerate(streamed)]
        high = [part.astype(np.float16) for part in flat]
        low = [((w - h.astype(np.float32)) * FINER).astype(np.float16) for w, h in zip(flat, high, strict=True)]
        last = _padded(W_last, tiles * 16, 16).reshape(tiles, 2, 4, 2, 2, 8).transpose(0, 5, 2, 1, 4, 3)
        copies = np.concatenate([last.reshape(1, -1)] * config.integer("GRID_N"))
        biases = [_padded(b.reshape(1, -1), 1, tiles * 16).ravel() for _, b in streamed]
        # fp32 sums of fp16 parts hold what the two parts do, so that packing what was unpacked changes nothing.
        return {
            "weights": np.concatenate([*high, *low]),
            "last_copies": np.ascontiguousarray(copies),
            "biases": np.concatenate([*biases, _padded(b_last.reshape(1, -1), 1, 16).ravel()]),
        }

    def layers_of(self, problem: Problem, values: Mapping[str, Any]) -> list[Layer]:
        """See `WholeStep`. Where the copies of the last matrix differ by a bit, it is not a number."""
        sizes, biases, copies = self.sizes(problem), values["biases"], values["last_copies"]
        tiles, x_tiles = (len(biases) - 16) // (16 * problem["layers"]), ceil_div(problem["in_features"], 16)
        high, low = np.split(values["weights"], 2)
        layers: list[Layer] = []
        at = 0
        for depth, (inputs, outputs) in enumerate(itertools.pairwise(sizes[:-1])):
            k_tiles = tiles if depth else x_tiles
            count = k_tiles * tiles * 256
            parts = (_unpack(plane[at : at + count], k_tiles, tiles).astype(np.float32) for plane in (high, low))
            W_high, W_low = parts
            at += count
            b = biases[depth * tiles * 16 :][:outputs]
            layers.append(((W_high + W_low / np.float32(FINER))[:inputs, :outputs], b))
        first = copies.reshape(-1, tiles * 256)
        last = first[0].reshape(tiles, 8, 4, 2, 2, 2).transpose(0, 3, 2, 5, 4, 1).reshape(tiles * 16, 16)
        if not bool((first == first[0]).all()):
            last = last * np.float32(np.nan)
        W_last = last[: sizes[-2], : sizes[-1]]
        return [*layers, (W_last, biases[problem["layers"] * tiles * 16 :][: sizes[-1]])]

    def workspace(self, problem: Problem, config: Config) -> dict[str, int]:
        layers, rows, tiles = problem["layers"], 16 * ceil_div(problem["batch"], 16), _tiles(problem, config)
        blocks, out_tiles = config.integer("GRID_N") * config.integer("GRID_K"), tiles // config.integer("GRID_N")
        sums = 2 * blocks * ((2 * layers - 1) * out_tiles + 1) * rows * 8 * 2 * 2
        return {
            "exchange": 2 * (2 * layers - 1) * tiles * rows * 8 * 2,
            "sums": 2 if config.integer("CLUSTER") else sums,
            "written": blocks,
            "bias_steps": layers * tiles * 16,
        }

    def work(self, problem: Problem, config: Config) -> Work:
        batch, steps, layers = problem["batch"], problem["steps"], problem["layers"]
        weights = sum(inputs * outputs for inputs, outputs in itertools.pairwise(self.sizes(problem)))
        first = problem["in_features"] * problem["width"]
        images = 2 * batch * problem["in_features"]
        tiles, rows = _tiles(problem, config), 16 * ceil_div(batch, 16)
        exchanged = (2 * layers - 1) * tiles * rows * 64 * config.integer("GRID_N")
        return Work(
            flops=2.0 * batch * (3 * weights - first) * steps,
            floor_bytes=8.0 * weights + images * steps,
            moved_bytes=(10.0 * weights - 2.0 * first + exchanged + images * config.integer("GRID_N")) * steps,
            serial_steps=steps * (4 * layers + 2),
        )


def _tiles(problem: Problem, config: Config) -> int:
    """Tiles of 16 columns of a hidden layer, padded to as many for each team."""
    grid_n = config.integer("GRID_N")
    return ceil_div(ceil_div(problem["width"], 16), grid_n) * grid_n


def _padded(matrix: Any, rows: int, cols: int) -> Any:
    full = np.zeros_like(matrix, shape=(rows, cols))
    full[: matrix.shape[0], : matrix.shape[1]] = matrix
    return full


def _pack(W: Any, k_tiles: int, n_tiles: int) -> Any:
    """W (k, n) as tiles in the order of mma.sync's operand b: [k tile][n tile][lane 4 g + t][n half][k half][2]."""
    parts = _padded(W, k_tiles * 16, n_tiles * 16).reshape(k_tiles, 2, 4, 2, n_tiles, 2, 8)
    return parts.transpose(0, 4, 6, 2, 5, 1, 3).ravel()


def _unpack(flat: Any, k_tiles: int, n_tiles: int) -> Any:
    """The inverse of `_pack`, padded."""
    parts = flat.reshape(k_tiles, n_tiles, 8, 4, 2, 2, 2)
    return parts.transpose(0, 5, 3, 6, 1, 4, 2).reshape(k_tiles * 16, n_tiles * 16)
