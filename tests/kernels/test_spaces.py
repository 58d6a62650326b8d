"""The search spaces: laws that hold for every problem, and the rules that cut them down."""

from __future__ import annotations

import random
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels.problems import mlp_problems
from kernels.tiling import at_most, sum_tolerance, up_to, vector_width
from tuner.devices import KNOWN
from tuner.kernel import Kernel
from tuner.types import Config, Device

sizes = st.integers(1, 9000)
devices = st.sampled_from(list(KNOWN.values()))
layers = st.sampled_from([kernels.linear_forward, kernels.linear_backward])


@given(layers, st.integers(1, 600), sizes, sizes, devices, st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_what_a_space_calls_valid_fits_the_device(
    kernel: Kernel, batch: int, inputs: int, outputs: int, device: Device, seed: int
) -> None:
    problem = kernel.problem(batch, inputs, outputs)
    space = kernel.space(problem, device)
    rng = random.Random(seed)
    for _ in range(300):
        config = Config.of({param.name: rng.choice(param.values) for param in space.params})
        if config not in space:
            continue
        launch = kernel.launch(problem, config)
        assert launch.threads <= 1024
        assert launch.shared_bytes <= device.shared_per_block
        assert launch.grid[1] <= 65535
        work = kernel.work(problem, config)
        assert work.moved_bytes >= work.floor_bytes
        assert all(limit > 0 for limit in kernel.tolerance(problem, config).values())


@given(layers, st.integers(1, 600), sizes, sizes, devices)
@settings(max_examples=25, deadline=None)
def test_every_problem_has_a_default_on_every_device(
    kernel: Kernel, batch: int, inputs: int, outputs: int, device: Device
) -> None:
    problem = kernel.problem(batch, inputs, outputs)
    space = kernel.space(problem, device)
    assert space.default() in space


def test_walking_a_space_finds_what_trying_every_combination_finds(t4: Device) -> None:
    problem = kernels.softmax_cross_entropy.problem(32, 10)
    space = kernels.softmax_cross_entropy.space(problem, t4)
    names, values = [param.name for param in space.params], [param.values for param in space.params]
    by_hand = [Config.of(dict(zip(names, each, strict=True))) for each in product(*values)]
    assert list(space) == [config for config in by_hand if space.broken(config) is None]


def test_a_wide_layer_has_thousands_of_configurations(h200: Device) -> None:
    for problem in mlp_problems(1024, 3, 32):
        if "1024x1024" in problem.shape:
            configurations = iter(kernels.ALL[problem.kernel].space(problem, h200))
            assert sum(1 for _ in islice(configurations, 2001)) == 2001


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"WARP_N": 64}, "WARP_N must divide BLOCK_N"),
        ({"REDUCE": "cluster", "SPLIT_K": 2}, "REDUCE=cluster needs sm_90"),
        ({"SPLIT_K": 16}, "every slice of SPLIT_K needs a tile"),
        ({"BLOCK_K": 32}, "BLOCK_K must be a multiple of 16 * WARPS_K"),
        ({"BLOCK_N": 20}, "BLOCK_N=20 is not among"),
    ],
)
def test_a_broken_rule_is_named(t4: Device, change: dict[str, int | str], reason: str) -> None:
    space = kernels.linear_forward.space(kernels.linear_forward.problem(32, 784, 128), t4)
    config = Config.of(space.default(), **change)
    assert (space.broken(config) or "").startswith(reason)


def test_a_parameter_too_many_or_too_few_is_named(t4: Device) -> None:
    space = kernels.softmax_cross_entropy.space(kernels.softmax_cross_entropy.problem(32, 10), t4)
    names = sorted(param.name for param in space.params)
    assert space.broken(Config.of(THREADS=32)) == f"has the parameters ['THREADS'], the space has {names}"


@given(st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_vector_width_divides(pitch: int, most: int) -> None:
    width = vector_width(pitch, most)
    assert pitch % width == 0
    assert width <= most
    assert width == most or pitch % (2 * width)


def test_arithmetic_of_tiles() -> None:
    assert up_to((16, 32, 64), 10) == (16,)
    assert up_to((16, 32, 64), 33) == (16, 32, 64)
    assert at_most((16, 32, 64), 40) == 32
    assert at_most((16, 32), 8) == 16
    assert sum_tolerance("float", 4096) == 1.5 * 2.0**-11
    assert sum_tolerance("half", 400) == 11.5 * 2.0**-11


def test_what_only_a_gpu_can_run_is_not_passed_by_emulation(h200: Device) -> None:
    forward = kernels.linear_forward.problem(32, 784, 128)
    default = kernels.linear_forward.space(forward, h200).default()
    assert kernels.linear_forward.emulates(default)
    assert not kernels.linear_forward.emulates(Config.of(default, REDUCE="cluster", SPLIT_K=2))
    assert not kernels.linear_backward.emulates(Config.of(REDUCE="cluster"))
    assert kernels.mlp_resident.emulates(Config.of(CLUSTER=0))
    assert not kernels.mlp_resident.emulates(Config.of(CLUSTER=1))
    assert kernels.mlp_streaming.emulates(Config.of(CLUSTER=1)), "its messages within a cluster have stand-ins"
