"""Every kernel compiles for every architecture, and what should use tensor cores does."""

from __future__ import annotations

import random

import pytest

import kernels
from kernels.problems import mlp_problems
from tests.kernels.conftest import RESIDENT
from tests.kernels.sass import count_hmma
from tuner.compile import ARCHITECTURES, compile_kernel, compile_source
from tuner.devices import find
from tuner.kernel import Kernel
from tuner.types import Binary, Config, Device, Problem
from tuner.valid import Valid

SAMPLE = 4
"""Configurations of each space and architecture, drawn anew with a fixed seed."""

SAMPLED = [
    *mlp_problems(1024, 3, 32),
    # Tails in every size, an odd pitch, and a batch of several chunks.
    kernels.linear_forward.problem(100, 77, 33),
    kernels.linear_backward.problem(100, 77, 33),
    *RESIDENT,
]
GPU_OF = {"sm_75": "Tesla T4", "sm_90": "NVIDIA H200"}


def compiled(kernel: Kernel, problem: Problem, config: Config, arch: str) -> Binary:
    binary = compile_kernel(kernel, problem, config, arch)
    assert isinstance(binary, Binary), f"{problem.label} [{config.label}] for {arch}: {binary}"
    return binary


@pytest.mark.parametrize("arch", GPU_OF)
@pytest.mark.parametrize("problem", SAMPLED, ids=lambda problem: problem.label)
def test_a_sample_of_every_space_compiles_and_multiplies_on_tensor_cores(problem: Problem, arch: str) -> None:
    kernel = kernels.ALL[problem.kernel]
    space = kernel.space(problem, find(GPU_OF[arch]))
    for config in Valid(space, random.Random(problem.label + arch).getrandbits(32)).sample(SAMPLE):
        binary = compiled(kernel, problem, config, arch)
        if kernel.library(problem) or kernel.name.startswith("mlp"):
            assert count_hmma(binary.path, kernel.name) > 0, config.label


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", kernels.ALL)
def test_the_file_alone_compiles_with_its_own_defaults(name: str, arch: str) -> None:
    binary = compile_source(kernels.ALL[name].source, name, {}, arch)
    assert isinstance(binary, Binary), binary
    assert binary.spill_bytes == 0
    if name.startswith(("linear", "mlp")):
        assert count_hmma(binary.path, name) > 0


def test_clusters_compile_where_there_are_some(h200: Device) -> None:
    problem = kernels.linear_backward.problem(32, 1024, 1024)
    clustered = Config.of(kernels.linear_backward.space(problem, h200).default(), SPLIT_N=4, REDUCE="cluster")
    assert clustered in kernels.linear_backward.space(problem, h200)
    compiled(kernels.linear_backward, problem, clustered, "sm_90")


@pytest.mark.parametrize(("width", "split"), [(32, 1), (128, 1), (256, 2)])
def test_the_resident_form_of_clusters_compiles(width: int, split: int, h200: Device) -> None:
    problem = kernels.mlp_resident.problem(32, 784, width, 3, 10, 64)
    config = Config.of(CLUSTER=1, WARPS=8, SPLIT_K=split, X_BUFFERS=2)
    assert config in kernels.mlp_resident.space(problem, h200)
    binary = compiled(kernels.mlp_resident, problem, config, "sm_90")
    assert count_hmma(binary.path, "mlp_resident") > 0
    assert kernels.mlp_resident.launch(problem, config).cluster == width // 16


@pytest.mark.parametrize(
    ("width", "tunables"),
    [
        (512, {"GRID_N": 16, "GRID_K": 8, "SLOTS": 8, "ROUNDS": 1}),
        (4096, {"GRID_N": 16, "GRID_K": 8, "SLOTS": 6, "ROUNDS": 1}),
        (8192, {"GRID_N": 16, "GRID_K": 8, "SLOTS": 2, "ROUNDS": 4}),
    ],
)
def test_the_streaming_form_of_clusters_compiles(width: int, tunables: dict[str, int], h200: Device) -> None:
    problem = kernels.mlp_streaming.problem(32, 784, width, 3, 10, 64)
    config = Config.of(CLUSTER=1, WARPS=8, **tunables)
    assert config in kernels.mlp_streaming.space(problem, h200)
    compiled(kernels.mlp_streaming, problem, config, "sm_90")


@pytest.mark.parametrize("sizes", [(32, 784, 512, 3, 10, 64), (32, 784, 8192, 2, 10, 64), (50, 77, 1000, 4, 7, 3)])
def test_the_streaming_layout_in_shared_memory_is_the_one_asked_for(sizes: tuple[int, ...], h200: Device) -> None:
    kernel = kernels.mlp_streaming
    problem = kernel.problem(*sizes)
    for config in random.Random(problem.label).sample(list(kernel.space(problem, h200)), 3):
        asked = kernel.launch(problem, config).shared_bytes
        defines = {**kernel.defines(problem, config), "EXPECTED_SHARED_BYTES": asked}
        binary = compile_source(kernel.source, kernel.name, defines, "sm_90")
        assert isinstance(binary, Binary), f"{problem.label} [{config.label}]: {binary}"


def test_the_resident_layout_in_shared_memory_is_the_one_that_is_asked_for(h200: Device) -> None:
    for sizes in ((32, 784, 256, 3, 10, 64), (17, 50, 33, 1, 7, 3), (64, 100, 40, 4, 16, 2)):
        problem = kernels.mlp_resident.problem(*sizes)
        space = kernels.mlp_resident.space(problem, h200)
        for config in Valid(space, random.Random(problem.label).getrandbits(32)).sample(3):
            asked = kernels.mlp_resident.launch(problem, config).shared_bytes
            defines = {**kernels.mlp_resident.defines(problem, config), "EXPECTED_SHARED_BYTES": asked}
            binary = compile_source(kernels.mlp_resident.source, "mlp_resident", defines, "sm_90")
            assert isinstance(binary, Binary), f"{problem.label} [{config.label}]: {binary}"


@pytest.mark.parametrize(
    ("define", "value", "said"),
    [
        ("WARP_M", 24, "warp tiles must fill the block tile"),
        ("SPLIT_K", 99, "every slice needs a tile"),
        ("SKEW", 4, "WMMA's leading dimension is a multiple of 16 bytes"),
        ("FRAGMENT_N", 8, "WMMA pointers are aligned to 32 bytes"),
    ],
)
def test_the_kernel_asserts_what_its_constraints_say(define: str, value: int, said: str) -> None:
    source = kernels.linear_forward.source
    failure = compile_source(source, "linear_forward", {define: value, "FRAGMENT_M": 16}, "sm_75")
    assert not isinstance(failure, Binary)
    assert said in failure.message
