"""Contenders that keep PyTorch's model, autograd and optimiser: how most people would write the step.

All run under fp16 autocast with fp32 weights and without loss scaling (the mean over a batch of this size does not
underflow; a scaler would only slow them down), and gather their batches on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from trainer.contenders.pytorch import TorchContender


class Eager(TorchContender):
    """nn.Sequential, autocast, cross_entropy, backward, torch.optim.SGD(fused=True); one step after the other."""

    name: ClassVar[str] = "eager"
    description: ClassVar[str] = "autocast, autograd and fused SGD, not compiled"
    half_precision: ClassVar[bool] = True

    def _build(self) -> None:
        import torch

        layers: list[Any] = []
        for W, _ in self.task.weights:
            layers += [torch.nn.ReLU(), torch.nn.Linear(*W.shape)]
        self.model = torch.nn.Sequential(*layers[1:]).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.task.lr, fused=True)
        self.forward = self._forward()

    def _forward(self) -> Any:
        """The model as the step calls it."""
        return self.model

    def _advance(self, first_step: int, steps: int) -> None:
        for step in range(first_step, first_step + steps):
            rows = self.order[step]
            loss = self._step(self.images.index_select(0, rows), self.labels.index_select(0, rows))
            self.log[step] = loss

    def _step(self, x: Any, y: Any) -> Any:
        import torch

        with torch.autocast(self.device.type, torch.float16, enabled=self.half_precision):
            loss = torch.nn.functional.cross_entropy(self.forward(x), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _parameters(self) -> list[tuple[Any, Any]]:
        return [(layer.weight.t(), layer.bias) for layer in self.model if hasattr(layer, "weight")]


class Reference(Eager):
    """`Eager` in fp32 throughout. Not raced: the yardstick for everybody's losses."""

    name: ClassVar[str] = "reference"
    description: ClassVar[str] = "fp32, not raced: what losses are compared with"
    half_precision: ClassVar[bool] = False

    def _build(self) -> None:
        super()._build()
        self.images = self.images.float()


class MaxAutotune(Eager):
    """torch.compile(mode="max-autotune", fullgraph=True) on the model; loss, backward and optimiser as they are."""

    name: ClassVar[str] = "max_autotune"
    description: ClassVar[str] = "the model under torch.compile(max-autotune), the rest eager"

    def _build(self) -> None:
        super()._build()
        if self.on_gpu:
            with replays() as count:
                # Compile, warm up and record; the last steps show whether graphs are replayed.
                for _ in range(6):
                    before = count[0]
                    self._advance(0, 1)
            self._notes.append(f"{count[0] - before} CUDA graph replays per step")

    def _forward(self) -> Any:
        return self._compiled(self.model, mode="max-autotune")


class Graph(Eager):
    """The compiled model with its backward, and fused SGD, many steps in one CUDA graph that we capture ourselves."""

    name: ClassVar[str] = "graph"
    description: ClassVar[str] = "the compiled model and fused SGD, many steps per CUDA graph"

    def _build(self) -> None:
        super()._build()
        self._call = self._captured(self._steps)

    def _forward(self) -> Any:
        return self._compiled(self.model)

    def _steps(self) -> None:
        xs, ys = self._batches()
        self._log_and_move_on([self._step(x, y).view(1) for x, y in zip(xs.unbind(), ys.unbind(), strict=True)])

    def _advance(self, first_step: int, steps: int) -> None:
        for _ in range(steps // self.task.steps_per_call):
            self._call()


class CompiledStep(TorchContender):
    """One function that gathers, computes loss and gradients and updates, under torch.compile(mode="max-autotune").

    Gradients come from `torch.func`, since `Tensor.backward` cannot be inside a full graph. Every tensor is marked as
    having a fixed address: otherwise the compiler's CUDA graphs would copy the whole data set at every step, or not be
    used at all because inputs are written.
    """

    name: ClassVar[str] = "compiled_step"
    description: ClassVar[str] = "gather, loss, gradients and SGD in one compiled function"

    def _build(self) -> None:
        import torch

        self.parameters = [(self._tensor(W).clone(), self._tensor(b).clone()) for W, b in self.task.weights]
        self._step = self._compiled(_whole_step, mode="max-autotune")
        if self.on_gpu:
            fixed = [self.images, self.labels, self.order, self.log, self.cursor]
            for tensor in [*fixed, *(tensor for pair in self.parameters for tensor in pair)]:
                torch._dynamo.mark_static_address(tensor)
            with replays() as count:
                for _ in range(6):
                    self.cursor.zero_()
                    before = count[0]
                    self._advance(0, 1)
            self._notes.append(f"{count[0] - before} CUDA graph replays per step")

    def _advance(self, first_step: int, steps: int) -> None:
        for _ in range(steps):
            self._step(self.parameters, self.images, self.labels, self.order, self.log, self.cursor, self.task.lr)

    def _parameters(self) -> list[tuple[Any, Any]]:
        return self.parameters


def _whole_step(
    parameters: list[tuple[Any, Any]], images: Any, labels: Any, order: Any, log: Any, cursor: Any, lr: float
) -> None:
    import torch

    rows = order.index_select(0, cursor).view(-1)
    x, y = images.index_select(0, rows), labels.index_select(0, rows)

    def loss_of(parameters: list[tuple[Any, Any]]) -> Any:
        with torch.autocast(x.device.type, torch.float16):
            a = x
            for W, b in parameters[:-1]:
                a = torch.relu(torch.addmm(b, a, W))
            W, b = parameters[-1]
            return torch.nn.functional.cross_entropy(torch.addmm(b, a, W), y)

    gradients, loss = torch.func.grad_and_value(loss_of)(parameters)
    for (W, b), (dW, db) in zip(parameters, gradients, strict=True):
        W.sub_(dW, alpha=lr)
        b.sub_(db, alpha=lr)
    log.index_copy_(0, cursor, loss.detach().view(1))
    cursor.add_(1)


@contextmanager
def replays() -> Iterator[list[int]]:
    """Count the CUDA graphs that are replayed meanwhile, also those that torch.compile made for itself."""
    import torch

    count = [0]
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: Any) -> Any:
        count[0] += 1
        return replay(graph)

    with mock.patch.object(torch.cuda.CUDAGraph, "replay", counted):
        yield count
