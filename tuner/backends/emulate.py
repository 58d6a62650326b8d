"""Runs a kernel's source on the CPU, for its outputs only: what verification needs where there is no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuner import emulation
from tuner.kernel import Argument, Array, Kernel, Product, Role
from tuner.types import Binary, Config, Failure, Problem, Status

FAULT_STATUS = {"timeout": Status.TIMEOUT, "launch": Status.LAUNCH, "argument": Status.LAUNCH}
"""Every other kind of fault is one of the running kernel."""


class EmulationRunner:
    """The emulation as a `tuner.backends.Runner`.

    Args:
        threads: OS threads to run blocks on.
        checked: look for races and for reads of memory that nobody has written; about ten times slower.
        seed: order in which threads run: 0 in order, 1 in reverse, any other at random.
        time_limit: seconds for one launch.
    """

    name = "emulation"

    def __init__(self, *, threads: int = 2, checked: bool = False, seed: int = 0, time_limit: float = 60.0) -> None:
        self.threads = threads
        self.checked = checked
        self.seed = seed
        self.time_limit = time_limit

    def rng(self, seed: int) -> np.random.Generator:
        """NumPy's generator: the arrays live in the CPU's memory."""
        return np.random.default_rng(seed)

    def execute(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Config,
        binary: Binary | None,
        arguments: Sequence[Argument],
        *,
        order: int = 0,
    ) -> Mapping[str, Any] | Failure:
        """Compile and run one launch on a copy of `arguments`; every array's value afterwards, by name.

        `binary` is a GPU's and not used: the source is compiled for the CPU. OUT and SCRATCH arrays hold NaN (0xFF
        bytes) before the launch; `order` is added to the runner's `seed`. A fault comes back as a `Failure` with the
        first report.

        Raises:
            UserError: there is no g++.
        """
        kernel = kernel.form(config)
        try:
            module = emulation.build(kernel.source, kernel.name, kernel.defines(problem, config), checked=self.checked)
        except emulation.EmulationBuildError as error:
            return Failure(Status.COMPILE, str(error))
        buffers = {argument.name: as_buffer(argument) for argument in arguments if isinstance(argument, Array)}
        values = [buffers[argument.name] if isinstance(argument, Array) else argument.value for argument in arguments]
        launch, seed = kernel.launch(problem, config), self.seed + order
        multiply(
            kernel.products(problem),
            [value.array if isinstance(value, emulation.Buffer) else value for value in values],
        )
        try:
            module.launch(launch, values, threads=self.threads, seed=seed, time_limit=self.time_limit)
        except emulation.EmulationFault as fault:
            return Failure(FAULT_STATUS.get(fault.kinds[0], Status.RUNTIME), fault.reports[0])
        return {name: buffer.array.copy() for name, buffer in buffers.items() if buffer is not None}


def multiply(products: Sequence[Product], values: Sequence[Any]) -> None:
    """A library's products of arrays in the CPU's memory, as cuBLAS makes them: fp16, sums in fp32.

    `values` are the kernel's arguments; what is no array is not looked at.
    """
    for product in products:
        gemm = product.gemm
        a = _operand(values[product.a], gemm.m, gemm.k, gemm.transpose_a)
        b = _operand(values[product.b], gemm.k, gemm.n, gemm.transpose_b)
        place = values[product.c].reshape(-1).view(np.float16)
        place[: gemm.m * gemm.n] = (a @ b).astype(np.float16).reshape(-1)


def _operand(array: Any, rows: int, cols: int, transposed: bool) -> Any:
    """The rows x cols operand in fp32; it lies transposed in memory where `transposed` says so."""
    flat = array.reshape(-1)[: rows * cols].astype(np.float32)
    return flat.reshape(cols, rows).T if transposed else flat.reshape(rows, cols)


def as_buffer(argument: Array) -> emulation.Buffer | None:
    """A guarded copy of an array argument; null where the kernel is given none."""
    if argument.data is None:
        return None
    data = np.asarray(argument.data)
    if argument.role in {Role.OUT, Role.SCRATCH}:
        return emulation.Buffer(data.shape, data.dtype, name=argument.name)
    return emulation.Buffer(data, name=argument.name)
