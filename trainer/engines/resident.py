"""Our contender for small widths: one launch makes all the steps, the weights resident in registers (`mlp_resident`).

The same kernel runs on the GPU, as a cooperative launch, and by emulation on the CPU.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.contenders.base import Task, Weights
from trainer.plan import ResidentPlan
from tuner import emulation
from tuner.backends.cuda import CudaRunner
from tuner.compile import compile_kernel
from tuner.types import Failure

PARAMETERS = (
    "images",
    "labels",
    "order",
    "position",
    "total",
    "steps",
    "weights",
    "rate",
    "loss",
    "slots",
    "exchange",
    "failed",
)
"""Of the kernel, in order."""

EMULATION_LIMIT_S = 600.0
"""For one launch of some hundred steps."""


class ResidentError(RuntimeError):
    """A block of the grid did not answer in time; the launch ended, and its weights are not to be used."""


def make_buffers(plan: ResidentPlan, task: Task) -> dict[str, NDArray[Any]]:
    """The arrays that the kernel works on, with their content at the start."""
    kernel, problem = plan.kernel, plan.choice.problem
    return {
        "images": task.images,
        "labels": task.labels,
        "order": task.order,
        "position": np.zeros(1, np.int32),
        "weights": np.concatenate([part.astype(np.float32).ravel() for pair in task.weights for part in pair]),
        "loss": np.zeros(task.steps, np.float32),
        "exchange": np.zeros(kernel.exchange_words(problem), np.uint32),
        "failed": np.zeros(1, np.int32),
    }


def make_scalars(plan: ResidentPlan, task: Task, steps: int) -> dict[str, np.generic]:
    """The scalars of a launch of `steps` steps. The gradient is the summed loss's; the rate divides by the batch."""
    return {
        "total": np.int32(task.steps),
        "steps": np.int32(steps),
        "rate": np.float32(task.lr / plan.network.batch),
        "slots": np.int32(task.steps),
    }


class _Resident(ABC):
    """What both places share: a subclass puts the buffers somewhere, launches, and reads them back."""

    name: ClassVar[str] = "tuned"

    def __init__(self, plan: ResidentPlan) -> None:
        self._plan = plan

    def prepare(self, task: Task) -> None:
        """Compile and upload. No step is made."""
        self._task = task
        self._load()

    def run(self, first_step: int, steps: int) -> None:
        """Make the next `steps` steps in one launch; `first_step` only says which they are."""
        scalars = make_scalars(self._plan, self._task, steps)
        self._launch([scalars.get(name, name) for name in PARAMETERS])

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        """See `Contender.losses`.

        Raises:
            ResidentError: the grid was blocked.
        """
        self.synchronize()
        if int(self._read("failed")[0]):
            raise ResidentError("a block of the resident grid did not answer in time; train with --engine graph")
        found: NDArray[np.float32] = self._read("loss")[first_step : first_step + steps]
        return found

    def weights(self) -> Weights:
        """See `Contender.weights`."""
        self.synchronize()
        layers = self._plan.kernel.split(self._plan.choice.problem, self._read("weights"))
        return tuple((W.copy(), b.copy()) for W, b in layers)

    @abstractmethod
    def synchronize(self) -> None: ...

    @abstractmethod
    def _load(self) -> None: ...

    @abstractmethod
    def _launch(self, arguments: list[Any]) -> None:
        """`arguments` in the order of `PARAMETERS`: a scalar, or the name of a buffer."""

    @abstractmethod
    def _read(self, name: str) -> NDArray[Any]:
        """A copy of a buffer on the host."""


class ResidentEngine(_Resident):
    """Implements `trainer.contenders.base.Contender` on the GPU."""

    description: ClassVar[str] = "our resident kernel, all steps in one launch"

    def __init__(self, plan: ResidentPlan, device_index: int = 0) -> None:
        super().__init__(plan)
        self._index = device_index

    def synchronize(self) -> None:
        self._stream.synchronize()

    def timed(self, first_step: int, steps: int) -> float:
        """See `Contender.timed`."""
        import cupy

        start, stop = self._events
        start.record(self._stream)
        self.run(first_step, steps)
        stop.record(self._stream)
        stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e-3

    @property
    def peak_bytes(self) -> int | None:
        """Nothing is allocated after `prepare`, so what the pool holds is the peak."""
        return int(self._pool.total_bytes())

    @property
    def notes(self) -> str:
        return "weights resident, all steps of a call in one launch"

    def close(self) -> None:
        self._buffers.clear()
        self._pool.free_all_blocks()

    def _load(self) -> None:
        import cupy

        choice, device = self._plan.choice, self._plan.device
        runner = CudaRunner(device, self._index)
        binary = compile_kernel(choice.kernel, choice.problem, choice.config, device.arch)
        prepared = (
            binary
            if isinstance(binary, Failure)
            else runner.prepare(choice.kernel, choice.problem, choice.config, binary)
        )
        if isinstance(prepared, Failure):
            raise RuntimeError(f"{choice.problem.label} [{choice.config.label}]: {prepared.message}")
        self._prepared = prepared
        self._pool = cupy.get_default_memory_pool()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._events = cupy.cuda.Event(), cupy.cuda.Event()
        self._buffers = {name: cupy.asarray(array) for name, array in make_buffers(self._plan, self._task).items()}
        cupy.cuda.get_current_stream().synchronize()

    def _launch(self, arguments: list[Any]) -> None:
        with self._stream:
            self._prepared(tuple(self._buffers[item] if isinstance(item, str) else item for item in arguments))

    def _read(self, name: str) -> NDArray[Any]:
        import cupy

        found: NDArray[Any] = cupy.asnumpy(self._buffers[name])
        return found


class EmulatedResidentEngine(_Resident):
    """The same on the CPU. For results, not for speed."""

    description: ClassVar[str] = "our resident kernel, emulated on the CPU"

    def __init__(self, plan: ResidentPlan, *, threads: int = 2) -> None:
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

    def _load(self) -> None:
        choice = self._plan.choice
        defines = choice.kernel.defines(choice.problem, choice.config)
        self._module = emulation.build(choice.kernel.source, choice.kernel.name, defines)
        self._buffers = {
            name: emulation.Buffer(array, name=name) for name, array in make_buffers(self._plan, self._task).items()
        }

    def _launch(self, arguments: list[Any]) -> None:
        choice = self._plan.choice
        values = [self._buffers[item] if isinstance(item, str) else item for item in arguments]
        launch = choice.kernel.launch(choice.problem, choice.config)
        self._module.launch(launch, values, threads=self._threads, time_limit=EMULATION_LIMIT_S)

    def _read(self, name: str) -> NDArray[Any]:
        return self._buffers[name].array.copy()
