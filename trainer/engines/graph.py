"""Our contender: the tuned kernels of a training step, many steps to a CUDA graph, the host out of the loop."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.contenders.base import Task, Weights
from trainer.engines.on_gpu import Stopwatch, ready
from trainer.engines.program import Call, Slice, make_buffers, make_calls, read_weights
from trainer.plan import Choice, Plan, with_steps
from tuner.backends.cuda import CudaRunner, Prepared


class GraphEngine:
    """Implements `trainer.contenders.base.Contender` on the GPU with the kernels of `plan`."""

    name: ClassVar[str] = "tuned"
    description: ClassVar[str] = "our tuned kernels, a CUDA graph of many steps"

    def __init__(self, plan: Plan, device_index: int = 0) -> None:
        self._plan = plan
        self._index = device_index
        self._graphs: dict[int, Any] = {}
        self._loaded: dict[Choice, Prepared] = {}

    def prepare(self, task: Task) -> None:
        """Compile (from the cache where it is warm), upload, and capture the graph. No step is made.

        Raises:
            RuntimeError: a kernel that passed its check at look-up does not load here.
        """
        import cupy

        self._runner = CudaRunner(self._plan.device, self._index)
        self._pool = cupy.get_default_memory_pool()
        self._task = task
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._buffers = {name: cupy.asarray(array) for name, array in make_buffers(self._plan, task).items()}
        self._stopwatch = Stopwatch(self._stream)
        cupy.cuda.get_current_stream().synchronize()
        self._graph(self._plan.steps_per_graph)

    def run(self, first_step: int, steps: int) -> None:
        """Make the next `steps` steps. They follow the order's log, so `first_step` only says which they are."""
        per_graph = self._plan.steps_per_graph
        whole, rest = divmod(steps, per_graph)
        for _ in range(whole):
            self._graph(per_graph).launch(self._stream)
        if rest:
            self._graph(rest).launch(self._stream)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def timed(self, first_step: int, steps: int) -> float:
        return self._stopwatch.seconds(lambda: self.run(first_step, steps))

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        self.synchronize()
        found: NDArray[np.float32] = self._buffers["loss"][first_step : first_step + steps].get()
        return found

    def weights(self) -> Weights:
        import cupy

        self.synchronize()
        return tuple((cupy.asnumpy(W), cupy.asnumpy(b)) for W, b in read_weights(self._plan, self._buffers))

    @property
    def peak_bytes(self) -> int | None:
        """Nothing is allocated after `prepare`, so what the pool holds is the peak."""
        return int(self._pool.total_bytes())

    @property
    def notes(self) -> str:
        return f"CUDA graph of {self._plan.steps_per_graph} steps"

    def close(self) -> None:
        self._graphs.clear()
        self._buffers.clear()
        self._pool.free_all_blocks()

    def _graph(self, steps: int) -> Any:
        """The graph of `steps` steps, captured when it is first asked for."""
        if steps not in self._graphs:
            calls = make_calls(with_steps(self._plan, steps), self._task)
            launches = [(self._load(call), self._arguments(call)) for call in calls]
            with self._stream:
                self._stream.begin_capture()
                for prepared, values in launches:
                    prepared(values)
                self._graphs[steps] = self._stream.end_capture()
        return self._graphs[steps]

    def _load(self, call: Call) -> Prepared:
        choice = call.choice
        loaded = self._loaded.get(choice)
        if loaded is None:
            loaded = self._loaded[choice] = ready(choice, self._runner)
        return loaded

    def _arguments(self, call: Call) -> tuple[Any, ...]:
        return tuple(
            self._buffers[item.buffer].reshape(-1)[item.offset :] if isinstance(item, Slice) else item
            for item in call.arguments
        )
