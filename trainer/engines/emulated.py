"""Our contender where there is no GPU: the same program of the same kernels, emulated on the CPU; not for speed."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.contenders.base import Task, Weights
from trainer.engines.program import Call, Slice, make_buffers, make_calls, read_weights
from trainer.plan import Plan
from tuner import emulation
from tuner.backends.emulate import multiply


class EmulatedEngine:
    """Implements `trainer.contenders.base.Contender` on the CPU. One step at a time (`plan.steps_per_graph` is 1)."""

    name: ClassVar[str] = "tuned"
    description: ClassVar[str] = "our tuned kernels, emulated on the CPU"

    def __init__(self, plan: Plan, *, threads: int = 2) -> None:
        if plan.steps_per_graph != 1:
            raise ValueError(f"emulation makes one step at a time, the plan has {plan.steps_per_graph} in a graph")
        self._plan = plan
        self._threads = threads

    def prepare(self, task: Task) -> None:
        """Compile every kernel with g++, and bind it to its buffers. No step is made.

        Raises:
            EmulationBuildError: a kernel does not compile for the CPU.
            UserError: there is no g++.
        """
        self._buffers = {
            name: emulation.Buffer(array, name=name) for name, array in make_buffers(self._plan, task).items()
        }
        self._step = [self._bind(call) for call in make_calls(self._plan, task)]

    def run(self, first_step: int, steps: int) -> None:
        """Make the next `steps` steps.

        Raises:
            EmulationFault: a kernel did what it must not do.
        """
        for _ in range(steps):
            for launch in self._step:
                launch()

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def timed(self, first_step: int, steps: int) -> float:
        """Seconds that the emulation took: a time of this computer, never one of a GPU."""
        started = time.perf_counter()
        self.run(first_step, steps)
        return time.perf_counter() - started

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._buffers["loss"].array[first_step : first_step + steps].copy()
        return found

    def weights(self) -> Weights:
        arrays = {name: buffer.array for name, buffer in self._buffers.items()}
        return tuple((W.copy(), b.copy()) for W, b in read_weights(self._plan, arrays))

    @property
    def peak_bytes(self) -> int | None:
        return None

    @property
    def notes(self) -> str:
        return "emulated on the CPU"

    def close(self) -> None:
        self._step.clear()
        self._buffers.clear()

    def _bind(self, call: Call) -> Any:
        choice = call.choice
        kernel, problem, config = choice.kernel.form(choice.config), choice.problem, choice.config
        module = emulation.build(kernel.source, kernel.name, kernel.defines(problem, config))
        values = [self._buffers[item.buffer] if isinstance(item, Slice) else item for item in call.arguments]
        launch = module.bind(kernel.launch(problem, config), values, threads=self._threads)
        products = kernel.products(problem)
        if not products:
            return launch
        arrays = [
            self._buffers[item.buffer].array.reshape(-1)[item.offset :] if isinstance(item, Slice) else item
            for item in call.arguments
        ]

        def multiply_and_launch() -> None:
            multiply(products, arrays)
            launch()

        return multiply_and_launch
