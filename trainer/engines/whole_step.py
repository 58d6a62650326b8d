"""Our contender where one kernel makes whole steps, as many as a call asks for (`mlp_resident`, `mlp_streaming`).

The same kernel runs on the GPU and by emulation on the CPU.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.contenders.base import Task, Weights
from trainer.engines.on_gpu import Stopwatch, ready
from trainer.plan import WholeStepPlan
from tuner import emulation
from tuner.backends.cuda import CudaRunner

EMULATION_LIMIT_S = 600.0
"""For one launch of some hundred steps."""


class WholeStepError(RuntimeError):
    """A block of the grid did not answer in time; the launch ended, and its weights are not to be used."""


def make_buffers(plan: WholeStepPlan, task: Task) -> dict[str, NDArray[Any]]:
    """The arrays that the kernel works on, with their content at the start."""
    kernel, problem, config = plan.kernel, plan.choice.problem, plan.choice.config
    layers = [(W.astype(np.float32), b.astype(np.float32)) for W, b in task.weights]
    workspace = kernel.workspace(problem, config)
    return {
        "images": task.images,
        "labels": task.labels,
        "order": task.order,
        "position": np.zeros(1, np.int32),
        "loss": np.zeros(task.steps, np.float32),
        "failed": np.zeros(1, np.int32),
        **kernel.packed(problem, config, layers),
        **{name: np.zeros(count, np.uint32) for name, count in workspace.items()},
    }


def make_scalars(plan: WholeStepPlan, task: Task, steps: int) -> dict[str, np.generic]:
    """The scalars of a launch of `steps` steps. The gradient is the summed loss's; the rate divides by the batch."""
    return {
        "total": np.int32(task.steps),
        "steps": np.int32(steps),
        "rate": np.float32(task.lr / plan.network.batch),
        "slots": np.int32(task.steps),
    }


class _WholeStep(ABC):
    """What both places share: a subclass puts the buffers somewhere, launches, and reads them back."""

    name: ClassVar[str] = "tuned"

    def __init__(self, plan: WholeStepPlan) -> None:
        self._plan = plan

    def prepare(self, task: Task) -> None:
        """Compile and upload. No step is made."""
        self._task = task
        buffers = make_buffers(self._plan, task)
        kernel, choice = self._plan.kernel, self._plan.choice
        self._parameters = kernel.parameters(choice.problem, choice.config)
        self._load(buffers)

    def run(self, first_step: int, steps: int) -> None:
        """Make the next `steps` steps in one launch; `first_step` only says which they are."""
        scalars = make_scalars(self._plan, self._task, steps)
        self._launch([scalars.get(name, name) for name in self._parameters])

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        """See `Contender.losses`.

        Raises:
            WholeStepError: the grid was blocked.
        """
        self.synchronize()
        if int(self._read("failed")[0]):
            raise WholeStepError("a block of the grid did not answer in time; train with --engine graph")
        found: NDArray[np.float32] = self._read("loss")[first_step : first_step + steps]
        return found

    def weights(self) -> Weights:
        """See `Contender.weights`."""
        self.synchronize()
        packed = {name: self._read(name) for name in self._plan.kernel.packed_names}
        layers = self._plan.kernel.layers_of(self._plan.choice.problem, packed)
        return tuple((W.copy(), b.copy()) for W, b in layers)

    @abstractmethod
    def synchronize(self) -> None: ...

    @abstractmethod
    def _load(self, buffers: dict[str, NDArray[Any]]) -> None: ...

    @abstractmethod
    def _launch(self, arguments: list[Any]) -> None:
        """`arguments` in the order of the kernel's parameters: a scalar, or the name of a buffer."""

    @abstractmethod
    def _read(self, name: str) -> NDArray[Any]:
        """A copy of a buffer on the host."""


class WholeStepEngine(_WholeStep):
    """Implements `trainer.contenders.base.Contender` on the GPU."""

    description: ClassVar[str] = "our kernel of whole steps, all of a call in one launch"

    def __init__(self, plan: WholeStepPlan, device_index: int = 0) -> None:
        super().__init__(plan)
        self._index = device_index

    def synchronize(self) -> None:
        self._stream.synchronize()

    def timed(self, first_step: int, steps: int) -> float:
        """See `Contender.timed`."""
        return self._stopwatch.seconds(lambda: self.run(first_step, steps))

    @property
    def peak_bytes(self) -> int | None:
        """Nothing is allocated after `prepare`, so what the pool holds is the peak."""
        return int(self._pool.total_bytes())

    @property
    def notes(self) -> str:
        return f"{self._plan.form.value}, all steps of a call in one launch"

    def close(self) -> None:
        self._buffers.clear()
        self._pool.free_all_blocks()

    def _load(self, buffers: dict[str, NDArray[Any]]) -> None:
        import cupy

        self._prepared = ready(self._plan.choice, CudaRunner(self._plan.device, self._index))
        self._pool = cupy.get_default_memory_pool()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stopwatch = Stopwatch(self._stream)
        self._buffers = {name: cupy.asarray(array) for name, array in buffers.items()}
        cupy.cuda.get_current_stream().synchronize()

    def _launch(self, arguments: list[Any]) -> None:
        with self._stream:
            self._prepared(tuple(self._buffers[item] if isinstance(item, str) else item for item in arguments))

    def _read(self, name: str) -> NDArray[Any]:
        import cupy

        found: NDArray[Any] = cupy.asnumpy(self._buffers[name])
        return found


class EmulatedWholeStepEngine(_WholeStep):
    """The same on the CPU. For results, not for speed."""

    description: ClassVar[str] = "our kernel of whole steps, emulated on the CPU"

    def __init__(self, plan: WholeStepPlan, *, threads: int = 2) -> None:
        super().__init__(plan)
        self._threads = threads

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def timed(self, first_step: int, steps: int) -> float:
        """Seconds that the emulation took: a time of this computer, never one of a GPU."""
        started = time.perf_counter()
        self.run(first_step, steps)
        return time.perf_counter() - started

    @property
    def peak_bytes(self) -> int | None:
        return None

    @property
    def notes(self) -> str:
        return "emulated on the CPU"

    def close(self) -> None:
        self._buffers.clear()

    def _load(self, buffers: dict[str, NDArray[Any]]) -> None:
        choice = self._plan.choice
        defines = choice.kernel.defines(choice.problem, choice.config)
        self._module = emulation.build(choice.kernel.source, choice.kernel.name, defines)
        self._buffers = {name: emulation.Buffer(array, name=name) for name, array in buffers.items()}

    def _launch(self, arguments: list[Any]) -> None:
        choice = self._plan.choice
        values = [self._buffers[item] if isinstance(item, str) else item for item in arguments]
        launch = choice.kernel.launch(choice.problem, choice.config)
        self._module.launch(launch, values, threads=self._threads, time_limit=EMULATION_LIMIT_S)

    def _read(self, name: str) -> NDArray[Any]:
        return self._buffers[name].array.copy()
