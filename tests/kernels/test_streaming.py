"""`mlp_streaming` by emulation: its results, what it exchanges, and how it keeps weights."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kernels
from kernels.mlp_streaming import MlpStreaming
from tuner import emulation
from tuner.backends.emulate import EmulationRunner
from tuner.kernel import Array
from tuner.types import Config, Problem
from tuner.verify import verify

KERNEL = kernels.mlp_streaming
SMALL = KERNEL.problem(16, 32, 32, 2, 10, 3)
TWO_TEAMS = {"GRID_N": 2, "GRID_K": 2, "WARPS": 2, "SLOTS": 2}
CLUSTERS = {**TWO_TEAMS, "CLUSTER": 1}


def config(**tunables: int) -> Config:
    return Config.of(**{"CLUSTER": 0, "ROUNDS": 1, **tunables})


@pytest.mark.parametrize(
    ("sizes", "tunables"),
    [
        ((16, 32, 32, 2, 10, 3), TWO_TEAMS),
        # Warps share the depth; more slots than a step has.
        ((16, 48, 64, 3, 10, 1), {"GRID_N": 2, "GRID_K": 2, "WARPS": 4, "SLOTS": 9}),
        # Tails in every size, four hidden layers, a ring of one slot.
        ((20, 50, 60, 4, 7, 1), {"GRID_N": 2, "GRID_K": 1, "WARPS": 2, "SLOTS": 1}),
        # Several columns of tiles to a warp, not all of which there are; rows beyond two tiles.
        ((33, 45, 90, 2, 10, 1), {"GRID_N": 2, "GRID_K": 2, "WARPS": 2, "SLOTS": 4}),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else None,
)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_steps_of_every_shape_are_right_and_free_of_races(
    sizes: tuple[int, ...], tunables: dict[str, int], checked: bool
) -> None:
    verdict = verify(EmulationRunner(checked=checked), KERNEL, KERNEL.problem(*sizes), config(**tunables), None, seed=1)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    ("sizes", "tunables", "checked", "seed"),
    [
        # Warps share the depth.
        ((16, 32, 32, 2, 10, 3), TWO_TEAMS, True, 1),
        # Tails in every size, four blocks to a cluster, whose shares are halves of tiles.
        ((20, 50, 120, 3, 7, 2), {"GRID_N": 4, "GRID_K": 4, "WARPS": 2, "SLOTS": 3}, False, 2),
        # Rounds; several columns of tiles to a warp, not all of which there are; rows beyond two tiles.
        ((33, 45, 90, 2, 10, 2), {"GRID_N": 2, "GRID_K": 2, "WARPS": 2, "SLOTS": 4, "ROUNDS": 2}, False, 3),
        ((33, 45, 90, 2, 10, 1), {"GRID_N": 2, "GRID_K": 2, "WARPS": 2, "SLOTS": 4, "ROUNDS": 4}, True, 0),
    ],
)
def test_teams_that_are_clusters_are_right_and_free_of_races(
    sizes: tuple[int, ...], tunables: dict[str, int], checked: bool, seed: int
) -> None:
    chosen = config(**{**tunables, "CLUSTER": 1})
    verdict = verify(EmulationRunner(checked=checked), KERNEL, KERNEL.problem(*sizes), chosen, None, seed=seed)
    assert verdict.ok, verdict.message


def altered(folder: Path, *changes: tuple[str, str]) -> MlpStreaming:
    """The kernel with other pieces of source."""
    for name in ("common.cuh", "warp_matrix.cuh", "persistent.cuh"):
        shutil.copy(KERNEL.source.with_name(name), folder / name)
    source = KERNEL.source.read_text()
    for before, after in changes:
        assert source.count(before) == 1
        source = source.replace(before, after)
    path = folder / KERNEL.source.name
    path.write_text(source)
    kernel = MlpStreaming()
    kernel.source = path  # type: ignore[misc]
    return kernel


@pytest.mark.parametrize(
    "needed",
    [
        "if (t > 0) await_written(t - 1);",
        "__threadfence();  // the new weights, and what becomes of the biases, before anything that follows",
        "__syncthreads();  // all have left the batch of that step, too",
    ],
)
def test_what_orders_the_blocks_is_needed(needed: str, tmp_path: Path) -> None:
    kernel = altered(tmp_path, (needed, ""))
    verdict = verify(EmulationRunner(checked=True), kernel, SMALL, config(**TWO_TEAMS), None, seed=1)
    assert not verdict.ok
    assert "race" in verdict.message


AWAIT_TEAM = ("        cluster_wait();\n#endif\n    };", "#endif\n    };")
AWAIT_SUMS = "late = late || !await(inbox, collected & 1);"
AWAIT_GRADIENT = "late = late || !await(gradient_inbox, t & 1);"
NO_MEETING = (
    AWAIT_TEAM,
    ("        cluster_arrive();\n#else", "#else"),
    ("    cluster_arrive();  // nothing has been sent yet", "    // nothing has been sent yet"),
    ("    cluster_wait();\n    cluster_sync();", "    cluster_sync();"),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((AWAIT_TEAM,), "cluster-barrier: arrives again"),
        (NO_MEETING, ""),
        (((AWAIT_SUMS, ""),), "memory-barrier: more than 1 arrive"),
        (((AWAIT_SUMS, f"if (clerk) {AWAIT_SUMS}"),), ""),
        (((AWAIT_GRADIENT, ""),), "memory-barrier: more than 1 arrive"),
    ],
    ids=["half a meeting", "no meeting", "sums", "sums of all threads", "gradient"],
)
@pytest.mark.parametrize("seed", [0, 5])
def test_what_orders_the_messages_of_a_cluster_is_needed(
    changes: tuple[tuple[str, str], ...], message: str, seed: int, tmp_path: Path
) -> None:
    kernel = altered(tmp_path, *changes)
    verdict = verify(EmulationRunner(time_limit=3), kernel, SMALL, config(**CLUSTERS), None, seed=seed)
    assert not verdict.ok
    assert message in verdict.message


def test_a_lost_low_part_is_found_out(tmp_path: Path) -> None:
    """Over as many steps as the tuner verifies: fewer do not tell it from the rounding of activations."""
    kernel = altered(tmp_path, ("low = pack((w.x - kept.x) * FINER, (w.y - kept.y) * FINER);", "low = 0;"))
    problem = KERNEL.problem(16, 32, 32, 2, 10, 64)
    assert verify(EmulationRunner(), KERNEL, problem, config(**TWO_TEAMS), None, seed=1).ok
    verdict = verify(EmulationRunner(), kernel, problem, config(**TWO_TEAMS), None, seed=1)
    assert not verdict.ok
    assert "relative error" in verdict.message


def launched(problem: Problem, tunables: dict[str, int], *parts: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays after launches of so many steps each."""
    chosen = config(**tunables)
    arguments = KERNEL.arguments(problem, chosen, np.random.default_rng(0))
    buffers = {item.name: emulation.Buffer(item.data, name=item.name) for item in arguments if isinstance(item, Array)}
    module = emulation.build(KERNEL.source, KERNEL.name, KERNEL.defines(problem, chosen))
    for steps in parts:
        scalars = {item.name: item.value for item in arguments if not isinstance(item, Array)}
        scalars["steps"] = np.int32(steps)
        values = [buffers.get(item.name) or scalars[item.name] for item in arguments]
        module.launch(KERNEL.launch(problem, chosen), values, seed=seed)
    return {name: buffer.array.copy() for name, buffer in buffers.items()}


def test_steps_in_two_launches_are_the_steps_of_one() -> None:
    once, twice = launched(SMALL, TWO_TEAMS, 3), launched(SMALL, TWO_TEAMS, 1, 2)
    for name in ("weights", "last_copies", "biases", "loss", "position"):
        np.testing.assert_array_equal(once[name], twice[name])


def test_no_steps_change_nothing() -> None:
    before, after = launched(SMALL, TWO_TEAMS), launched(SMALL, TWO_TEAMS, 0)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_order_of_threads_and_blocks_changes_no_bit(seed: int) -> None:
    runs = [launched(SMALL, TWO_TEAMS, 3, seed=order) for order in (0, seed)]
    for name in ("weights", "last_copies", "biases", "loss"):
        np.testing.assert_array_equal(runs[0][name], runs[1][name])


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_clusters_make_the_same_bits_in_any_order_and_in_any_launches(seed: int) -> None:
    through_l2 = launched(SMALL, TWO_TEAMS, 3)
    for parts in ((3,), (1, 2)):
        through_clusters = launched(SMALL, CLUSTERS, *parts, seed=seed)
        for name in ("weights", "last_copies", "biases", "loss", "position"):
            np.testing.assert_array_equal(through_clusters[name], through_l2[name])


@pytest.mark.parametrize(
    ("tunables", "blocks", "steps"),
    # A thousand steps: a memory barrier that everybody goes on filling, and nobody counts any more, would overflow.
    [(TWO_TEAMS, 1, 3), (CLUSTERS, 2, 3), (CLUSTERS, 2, 1000)],
    ids=["l2", "cluster", "many steps"],
)
def test_a_grid_with_blocks_missing_ends_and_says_so(tunables: dict[str, int], blocks: int, steps: int) -> None:
    chosen = config(**tunables)
    problem = KERNEL.problem(16, 32, 32, 2, 10, steps)
    arguments = KERNEL.arguments(problem, chosen, np.random.default_rng(0))
    limits = {"SPIN_LIMIT": 200, "CYCLE_LIMIT": 10_000_000}
    module = emulation.build(KERNEL.source, KERNEL.name, {**KERNEL.defines(problem, chosen), **limits})
    values = [
        emulation.Buffer(item.data, name=item.name) if isinstance(item, Array) else item.value for item in arguments
    ]
    launch = replace(KERNEL.launch(problem, chosen), grid=(blocks, 1, 1))
    # Seed 1: messages land at once. Those sent before a wait was given up are not waited for; on a GPU they land within
    # a microsecond, the emulation's other seeds hold them back for good.
    module.launch(launch, values, seed=1)
    assert values[-1].array[0] == 1


@pytest.mark.parametrize("sizes", [(16, 32, 32, 2, 10, 3), (20, 50, 100, 4, 7, 1)])
def test_what_is_packed_is_unpacked(sizes: tuple[int, ...]) -> None:
    problem, chosen = KERNEL.problem(*sizes), config(GRID_N=4, GRID_K=2, WARPS=2, SLOTS=1)
    layers = KERNEL.fresh_layers(problem, np.random.default_rng(0))
    packed = KERNEL.packed(problem, chosen, layers)
    again = KERNEL.layers_of(problem, packed)
    for (W, b), (W_again, b_again) in zip(layers, again, strict=True):
        np.testing.assert_allclose(W_again, W, rtol=2.0**-22, atol=2.0**-36)
        np.testing.assert_array_equal(b_again, b)
    np.testing.assert_array_equal(again[-1][0], layers[-1][0])
    for name, array in KERNEL.packed(problem, chosen, again).items():
        np.testing.assert_array_equal(array, packed[name])


def test_copies_of_the_last_matrix_that_differ_are_no_result() -> None:
    chosen = config(**TWO_TEAMS)
    packed = KERNEL.packed(SMALL, chosen, KERNEL.fresh_layers(SMALL, np.random.default_rng(0)))
    packed["last_copies"][1, 5] += 1
    assert np.isnan(KERNEL.layers_of(SMALL, packed)[-1][0]).all()
