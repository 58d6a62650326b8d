"""What the PyTorch contenders share: data on the device, the log of losses, timing, compilation, CUDA graphs.

On a CPU nothing is compiled or captured: the same functions run eagerly, so that their arithmetic can be tested
anywhere. `notes` says which path was taken.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.contenders.base import Task, Weights

NO_GRAPHS = "max-autotune-no-cudagraphs"
"""Compile as hard as PyTorch can, but leave the CUDA graph to us: ours spans many steps."""


class TorchContender(ABC):
    """Base of the PyTorch contenders. A subclass makes its state in `_build` and its steps in `_advance`."""

    name: ClassVar[str]
    description: ClassVar[str]

    def prepare(self, task: Task) -> None:
        """See `Contender.prepare`."""
        import torch

        self.task = task
        self.device = torch.device(task.device)
        self.on_gpu = self.device.type == "cuda"
        self._notes: list[str] = []
        self._next = 0
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        self.images = self._tensor(task.images)
        self.labels = self._tensor(task.labels.astype(np.int64))
        self.order = self._tensor(task.order)
        self.log = torch.zeros(task.steps, device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        """The next step, on the device: a captured graph reads and advances it, so the host has nothing to tell."""
        if not self.on_gpu:
            self._notes.append("eager on the CPU: nothing compiled or captured")
        self._build()
        self._restore()
        self.synchronize()

    def run(self, first_step: int, steps: int) -> None:
        """See `Contender.run`.

        Raises:
            ValueError: the steps do not follow on the last ones, are not a multiple of `steps_per_call`, or exceed
                the task's order.
        """
        if first_step != self._next:
            raise ValueError(f"{self.name} is at step {self._next} and cannot go on from {first_step}")
        if steps % self.task.steps_per_call or first_step + steps > self.task.steps:
            raise ValueError(
                f"{steps} steps from {first_step}: not a multiple of {self.task.steps_per_call}, "
                f"or more than the task's {self.task.steps}"
            )
        self._advance(first_step, steps)
        self._next += steps

    def synchronize(self) -> None:
        """See `Contender.synchronize`."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize(self.device)

    def timed(self, first_step: int, steps: int) -> float:
        """See `Contender.timed`."""
        if not self.on_gpu:
            started = time.perf_counter()
            self.run(first_step, steps)
            return time.perf_counter() - started
        import torch

        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.synchronize()
        before.record()
        self.run(first_step, steps)
        after.record()
        self.synchronize()
        return float(before.elapsed_time(after)) / 1e3

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        """See `Contender.losses`."""
        return np.asarray(self.log[first_step : first_step + steps].cpu().numpy(), np.float32)

    def weights(self) -> Weights:
        """See `Contender.weights`."""
        return tuple(
            (np.array(W.detach().float().cpu().numpy()), np.array(b.detach().float().cpu().numpy()))
            for W, b in self._parameters()
        )

    @property
    def peak_bytes(self) -> int | None:
        """See `Contender.peak_bytes`; PyTorch's own count, which leaves out the CUDA context."""
        if not self.on_gpu:
            return None
        import torch

        return int(torch.cuda.max_memory_allocated(self.device))

    @property
    def notes(self) -> str:
        """See `Contender.notes`."""
        return "; ".join(self._notes)

    def close(self) -> None:
        """See `Contender.close`."""
        self.__dict__.clear()

    @abstractmethod
    def _build(self) -> None:
        """Make the state, compile, capture; may make steps, since `_restore` follows."""

    @abstractmethod
    def _advance(self, first_step: int, steps: int) -> None:
        """Make the steps; their losses go to `log`."""

    @abstractmethod
    def _parameters(self) -> list[tuple[Any, Any]]:
        """W (in, out) and b of each layer: views of the tensors that training updates."""

    def _restore(self) -> None:
        """Set everything back to before the first step, in place: graphs keep the addresses."""
        import torch

        with torch.no_grad():
            for (W, b), (W0, b0) in zip(self._parameters(), self.task.weights, strict=True):
                W.copy_(self._tensor(W0))
                b.copy_(self._tensor(b0))
            self.log.zero_()
            self.cursor.zero_()

    def _tensor(self, array: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self.device)

    def _compiled(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """`function`, compiled for static shapes on a GPU; as it is on a CPU."""
        if not self.on_gpu:
            return function
        import torch

        if "mode" not in options and "options" not in options:
            options["mode"] = NO_GRAPHS
        compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False, **options)
        return compiled

    def _captured(self, body: Callable[[], None]) -> Callable[[], None]:
        """`body` as one CUDA graph; as it is on a CPU. Warms it up first, on a stream of its own as capture demands."""
        if not self.on_gpu:
            return body
        import torch

        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.cursor.zero_()
                body()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        self._notes.append(f"{self.task.steps_per_call} steps per CUDA graph")
        replay: Callable[[], None] = graph.replay
        return replay

    def _batches(self) -> tuple[Any, Any]:
        """The next `steps_per_call` batches, as (steps, batch, pixels) and (steps, batch), at the device's cursor."""
        k, batch = self.task.steps_per_call, self.task.batch
        rows = self.order.index_select(0, self._coming()).view(-1)
        return self.images.index_select(0, rows).view(k, batch, -1), self.labels.index_select(0, rows).view(k, batch)

    def _log_and_move_on(self, losses: list[Any]) -> None:
        """Write the losses of `steps_per_call` steps, (1,) each, and advance the cursor."""
        import torch

        self.log.index_copy_(0, self._coming(), torch.cat(losses).float())
        self.cursor.add_(self.task.steps_per_call)

    def _coming(self) -> Any:
        import torch

        return self.cursor + torch.arange(self.task.steps_per_call, device=self.device)
