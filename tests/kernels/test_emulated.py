"""The kernels' results, tails and barriers, by emulation against the float64 references."""

from __future__ import annotations

import random

import numpy as np
import pytest

import kernels
from tests.kernels.conftest import RESIDENT
from tuner import emulation
from tuner.backends.emulate import EmulationRunner
from tuner.kernel import Array
from tuner.types import Config, Device, Problem
from tuner.verify import verify

PROBLEMS = [
    kernels.gather_rows.problem(5, 77, 3),
    kernels.linear_forward.problem(32, 784, 32),
    kernels.linear_forward.problem(32, 128, 10, activation="none"),
    kernels.linear_forward.problem(33, 77, 33),
    kernels.linear_forward.problem(1, 1, 1),
    kernels.softmax_cross_entropy.problem(32, 10),
    kernels.softmax_cross_entropy.problem(7, 3),
    kernels.linear_backward.problem(32, 128, 10),
    kernels.linear_backward.problem(32, 784, 32, dx="none"),
    kernels.linear_backward.problem(33, 77, 33),
    kernels.linear_backward.problem(100, 48, 70),
    kernels.linear_backward.problem(1, 1, 1),
    *RESIDENT,
]


@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_a_sample_of_the_space_is_right_and_free_of_races(problem: Problem, checked: bool, t4: Device) -> None:
    kernel = kernels.ALL[problem.kernel]
    space = list(kernel.space(problem, t4))
    for config in random.Random(problem.label).sample(space, min(2, len(space))):
        verdict = verify(EmulationRunner(checked=checked), kernel, problem, config, None, seed=1)
        assert verdict.ok, f"{config.label}: {verdict.message}"


def test_the_fp16_accumulator_is_within_its_own_limit_and_beyond_the_other(t4: Device) -> None:
    problem = kernels.linear_forward.problem(32, 784, 16)
    default = kernels.linear_forward.space(problem, t4).default()
    seen = {}
    for accumulator in ("float", "half"):
        config = Config.of(default, ACCUMULATOR=accumulator, WARPS_K=1)
        verdict = verify(EmulationRunner(), kernels.linear_forward, problem, config, None, seed=1)
        assert verdict.ok, verdict.message
        seen[accumulator] = verdict
    assert (seen["half"].error or 0) > (seen["float"].tolerance or 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_order_of_threads_and_blocks_changes_no_bit(seed: int, t4: Device) -> None:
    problem = kernels.linear_backward.problem(32, 96, 80)
    config = Config.of(kernels.linear_backward.space(problem, t4).default(), SPLIT_N=2)
    arguments = kernels.linear_backward.arguments(problem, config, np.random.default_rng(0))
    runs = [
        EmulationRunner(seed=order).execute(kernels.linear_backward, problem, config, None, arguments)
        for order in (0, seed)
    ]
    for name in ("dX", "W", "master", "b"):
        np.testing.assert_array_equal(runs[0][name], runs[1][name])


@pytest.mark.parametrize(
    ("sizes", "tunables"),
    [
        ((16, 32, 32, 1, 10, 3), {"WARPS": 4, "X_BUFFERS": 2}),
        ((32, 48, 64, 2, 10, 2), {"WARPS": 8, "SPLIT_K": 4, "X_BUFFERS": 2}),
        ((32, 48, 144, 3, 10, 1), {"WARPS": 8, "SPLIT_K": 2, "X_BUFFERS": 2}),
        ((33, 31, 50, 4, 7, 2), {"WARPS": 16, "SPLIT_K": 2, "X_BUFFERS": 2}),
        ((64, 40, 48, 3, 16, 2), {"WARPS": 4, "SPLIT_K": 2, "X_BUFFERS": 0}),
        ((64, 16, 16, 3, 3, 3), {"WARPS": 16, "X_BUFFERS": 2}),
        # The first layer's sums lie in the last activations: 16 blocks of 8 warps.
        ((16, 128, 256, 3, 10, 2), {"WARPS": 8, "SPLIT_K": 2, "X_BUFFERS": 2}),
        ((16, 128, 256, 2, 10, 2), {"WARPS": 8, "SPLIT_K": 1, "X_BUFFERS": 2}),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else None,
)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_resident_steps_of_every_shape_are_right_and_free_of_races(
    sizes: tuple[int, ...], tunables: dict[str, int], checked: bool, h200: Device
) -> None:
    problem = kernels.mlp_resident.problem(*sizes)
    config = Config.of({"CLUSTER": 0, "SPLIT_K": 1, **tunables})
    assert config in kernels.mlp_resident.space(problem, h200)
    verdict = verify(EmulationRunner(checked=checked), kernels.mlp_resident, problem, config, None, seed=1)
    assert verdict.ok, verdict.message


def test_a_resident_grid_with_a_block_missing_ends_and_says_so() -> None:
    problem = kernels.mlp_resident.problem(16, 16, 32, 2, 4, 2)
    config = Config.of(CLUSTER=0, WARPS=4, SPLIT_K=1, X_BUFFERS=0)
    arguments = kernels.mlp_resident.arguments(problem, config, np.random.default_rng(0))
    defines = {**kernels.mlp_resident.defines(problem, config), "SPIN_LIMIT": 200}
    module = emulation.build(kernels.mlp_resident.source, kernels.mlp_resident.name, defines)
    values = [
        emulation.Buffer(item.data, name=item.name) if isinstance(item, Array) else item.value for item in arguments
    ]
    launch = kernels.mlp_resident.launch(problem, config)
    alone = type(launch)((1, 1, 1), launch.block, launch.shared_bytes, cooperative=True)
    module.launch(alone, values)
    assert values[-1].array[0] == 1


def test_resident_steps_in_two_launches_are_the_steps_of_one() -> None:
    problem = kernels.mlp_resident.problem(16, 20, 32, 3, 4, 4)
    config = Config.of(CLUSTER=0, WARPS=4, SPLIT_K=2, X_BUFFERS=2)
    arguments = kernels.mlp_resident.arguments(problem, config, np.random.default_rng(0))
    module = emulation.build(
        kernels.mlp_resident.source, kernels.mlp_resident.name, kernels.mlp_resident.defines(problem, config)
    )

    def weights_after(*parts: int) -> np.ndarray:
        buffers = {
            item.name: emulation.Buffer(item.data, name=item.name) for item in arguments if isinstance(item, Array)
        }
        for steps in parts:
            scalars = {item.name: item.value for item in arguments if not isinstance(item, Array)}
            scalars["steps"] = np.int32(steps)
            values = [buffers.get(item.name) or scalars[item.name] for item in arguments]
            module.launch(kernels.mlp_resident.launch(problem, config), values)
        return buffers["weights"].array.copy()

    np.testing.assert_array_equal(weights_after(4), weights_after(1, 3))
