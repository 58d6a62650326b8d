"""The library's way of the layers' kernels: right by emulation, compiled everywhere, a member of the space."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernels
from tuner.backends import emulate
from tuner.backends.emulate import EmulationRunner
from tuner.compile import ARCHITECTURES, compile_kernel
from tuner.kernel import Array, Kernel
from tuner.types import Binary, Device, Problem, Status
from tuner.verify import verify

PROBLEMS = [
    kernels.linear_forward.problem(32, 784, 128),
    kernels.linear_forward.problem(32, 128, 10, activation="none"),
    kernels.linear_forward.problem(33, 77, 33),
    kernels.linear_forward.problem(1, 1, 1),
    kernels.linear_backward.problem(32, 128, 128),
    kernels.linear_backward.problem(32, 128, 10),
    kernels.linear_backward.problem(32, 784, 32, dx="none"),
    kernels.linear_backward.problem(33, 77, 33),
    kernels.linear_backward.problem(1, 1, 1),
]


def form_of(problem: Problem) -> Kernel:
    form = kernels.ALL[problem.kernel].library_form
    assert form is not None
    return form


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_it_is_right_within_its_own_limits(problem: Problem) -> None:
    verdict = verify(
        EmulationRunner(), kernels.ALL[problem.kernel], problem, form_of(problem).only_config, None, seed=3
    )
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("problem", PROBLEMS[::4], ids=lambda problem: problem.label)
def test_a_wrong_product_is_found(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = emulate.multiply

    def doubled(products: object, values: list[np.ndarray]) -> None:
        multiply(products, values)
        [*_, last] = products
        values[last.c].reshape(-1).view(np.float16)[0] += 100

    monkeypatch.setattr(emulate, "multiply", doubled)
    verdict = verify(
        EmulationRunner(), kernels.ALL[problem.kernel], problem, form_of(problem).only_config, None, seed=3
    )
    assert verdict.status is Status.WRONG


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_its_element_wise_kernel_compiles(problem: Problem, arch: str) -> None:
    binary = compile_kernel(kernels.ALL[problem.kernel], problem, form_of(problem).only_config, arch)
    assert isinstance(binary, Binary), binary
    assert binary.spill_bytes == 0


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_products_name_the_arguments_that_they_mean(problem: Problem) -> None:
    form = form_of(problem)
    arguments = form.arguments(problem, form.only_config, np.random.default_rng(0))
    products = form.products(problem)
    assert tuple(product.gemm for product in products) == kernels.ALL[problem.kernel].library(problem)
    for product in products:
        for position, size in (
            (product.a, product.gemm.m * product.gemm.k),
            (product.b, product.gemm.k * product.gemm.n),
            (product.c, product.gemm.m * product.gemm.n),
        ):
            item = arguments[position]
            assert isinstance(item, Array)
            assert item.data.nbytes // 2 >= size


def test_it_is_a_member_of_the_space_that_walking_leaves_out(t4: Device) -> None:
    problem = kernels.linear_forward.problem(32, 128, 10, activation="none")
    space, config = kernels.linear_forward.space(problem, t4), form_of(problem).only_config
    assert config in space
    assert config not in set(space)
    assert kernels.linear_forward.form(config) is form_of(problem)
    assert kernels.linear_forward.form(space.default()) is kernels.linear_forward


def test_a_row_of_another_source_is_no_member(t4: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = kernels.linear_forward.problem(32, 128, 10, activation="none")
    before = form_of(problem).only_config
    changed = tmp_path / "linear_forward_library.cu"
    changed.write_text(form_of(problem).source.read_text() + "// changed\n")
    monkeypatch.setattr(type(form_of(problem)), "source", changed)
    assert before not in kernels.linear_forward.space(problem, t4)
