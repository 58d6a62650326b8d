"""Contenders that write the whole step out by hand and compile it: forward, gradients, SGD.

Common to all of them, and to `library` and `ones`:
- fp32 master weights, and fp16 copies of them that the products read (kept from step to step, so no step converts).
- Autograd takes no part.
- The gradient is that of the sum over the batch, which fp16 holds without underflow; 1/batch is folded into the
  learning rate (a loss scale of `batch`, as our own kernels have it).
- The classes are padded to a multiple of 16, so that the rows of the last layer are aligned for the tensor cores; the
  softmax leaves the padding out and its gradient is zero.
- `steps_per_call` steps are captured in one CUDA graph, with one gather for all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer.contenders.pytorch import TorchContender

ALIGNMENT = 16
"""Columns of a tensor-core tile."""

State = list[tuple[Any, Any, Any, Any]]
"""For each layer W, b (fp32) and their fp16 copies."""


def padded(size: int, to: int) -> int:
    """The smallest multiple of `to` that is not below `size`."""
    return -(-size // to) * to


@dataclass(slots=True)
class Layer:
    """W (in, out) and b (out) in fp32, and their fp16 copies; the last layer's `out` is padded."""

    W: Any
    b: Any
    W16: Any
    b16: Any


class WrittenOut(TorchContender):
    """Base: the state, and many steps per CUDA graph. A subclass writes the step."""

    def _build(self) -> None:
        self.classes = self.task.weights[-1][1].shape[0]
        self.rate = self.task.lr / self.task.batch
        self._make_state()
        self._prepare_step()
        self._call = self._captured(self._steps)

    def _make_state(self) -> None:
        import torch

        self.layers: list[Layer] = []
        for i, (W0, _) in enumerate(self.task.weights):
            inputs, outputs = W0.shape
            if i == len(self.task.weights) - 1:
                outputs = padded(outputs, ALIGNMENT)
            W = torch.zeros(inputs, outputs, device=self.device)
            b = torch.zeros(outputs, device=self.device)
            self.layers.append(Layer(W, b, W.half(), b.half()))

    def _restore(self) -> None:
        for layer in self.layers:  # the padding too: a warm-up that diverged leaves NaN there
            layer.W.zero_()
            layer.b.zero_()
        self._fill()
        super()._restore()
        for layer in self.layers:
            layer.W16.copy_(layer.W)
            layer.b16.copy_(layer.b)

    def _fill(self) -> None:
        """Set what is constant in the state beside the parameters and zeros."""

    def _parameters(self) -> list[tuple[Any, Any]]:
        pairs = [(layer.W, layer.b) for layer in self.layers]
        W, b = pairs[-1]
        return [*pairs[:-1], (W[:, : self.classes], b[: self.classes])]

    def _state(self) -> State:
        return [(layer.W, layer.b, layer.W16, layer.b16) for layer in self.layers]

    def _advance(self, first_step: int, steps: int) -> None:
        for _ in range(steps // self.task.steps_per_call):
            self._call()

    @abstractmethod
    def _prepare_step(self) -> None:
        """Compile what the steps call."""

    @abstractmethod
    def _steps(self) -> None:
        """Make `steps_per_call` steps: the body of the CUDA graph."""


class Compiled(WrittenOut):
    """The step as one compiled function that updates the weights in place."""

    name: ClassVar[str] = "written_out"
    description: ClassVar[str] = "the whole step by hand, compiled, many per CUDA graph"

    def _prepare_step(self) -> None:
        self._step = self._compiled(_step_in_place)

    def _steps(self) -> None:
        xs, ys = self._batches()
        state = self._state()
        pairs = zip(xs.unbind(), ys.unbind(), strict=True)
        self._log_and_move_on([self._step(x, y, state, self.classes, self.rate) for x, y in pairs])


class CompiledFp16(Compiled):
    """`Compiled`, with cuBLAS allowed to sum in fp16 (reducing split sums in fp16 is PyTorch's default already)."""

    name: ClassVar[str] = "written_out_fp16"
    description: ClassVar[str] = "the same with fp16 accumulation allowed"

    def _prepare_step(self) -> None:
        self._allow(True)
        super()._prepare_step()

    def close(self) -> None:
        """See `Contender.close`; the switch is the process's, so it is set back."""
        self._allow(False)
        super().close()

    def _allow(self, on: bool) -> None:
        import torch

        torch.backends.cuda.matmul.allow_fp16_accumulation = on


class CompiledFused(WrittenOut):
    """The step as one compiled function that returns new weights instead of writing the old ones.

    The compiler does not fuse a product with what follows where that writes an input. Without writes, W - rate * dW
    and its fp16 copy can become the epilogue of dW's product, and dW need not go through memory. New weights land in
    the graph's own memory; once per graph they are copied back.
    """

    name: ClassVar[str] = "written_out_fused"
    description: ClassVar[str] = "by hand, compiled without in-place writes, so that SGD fuses into dW's product"

    def _prepare_step(self) -> None:
        self._step = self._compiled(_step_to_new)

    def _steps(self) -> None:
        import torch

        xs, ys = self._batches()
        losses = []
        old = state = self._state()
        for x, y in zip(xs.unbind(), ys.unbind(), strict=True):
            loss, state = self._step(x, y, state, self.classes, self.rate)
            losses.append(loss)
        for kind in range(4):
            torch._foreach_copy_([layer[kind] for layer in old], [layer[kind] for layer in state])
        self._log_and_move_on(losses)


def softmax_gradient(logits: Any, y: Any, classes: int) -> tuple[Any, Any]:
    """Mean cross-entropy as (1,), and the gradient of its sum as fp16; columns from `classes` on are padding."""
    import torch

    column = torch.arange(logits.shape[1], device=logits.device)
    z = torch.where(column < classes, logits.float(), float("-inf"))
    z = z - z.amax(1, keepdim=True)
    exponentials = z.exp()
    total = exponentials.sum(1, keepdim=True)
    hit = column == y.unsqueeze(1)
    loss = (total.log().squeeze(1) - torch.where(hit, z, 0.0).sum(1)).mean().view(1)
    return loss, (exponentials / total - hit.float()).half()


def _gradients(x: Any, y: Any, state: State, classes: int) -> tuple[Any, list[tuple[Any, Any]]]:
    """The loss as (1,), and dW (fp16) and db (fp32) of each layer, summed over the batch."""
    import torch

    activations = [x]
    for _, _, W16, b16 in state[:-1]:
        activations.append(torch.relu(torch.addmm(b16, activations[-1], W16)))
    _, _, W16, b16 = state[-1]
    loss, dY = softmax_gradient(torch.addmm(b16, activations[-1], W16), y, classes)
    gradients: list[tuple[Any, Any]] = []
    for i in reversed(range(len(state))):
        gradients.insert(0, (torch.mm(activations[i].t(), dY), dY.float().sum(0)))
        if i:
            dX = torch.mm(dY, state[i][2].t())
            dY = torch.where(activations[i] > 0, dX, torch.zeros_like(dX))
    return loss, gradients


def _step_in_place(x: Any, y: Any, state: State, classes: int, rate: float) -> Any:
    loss, gradients = _gradients(x, y, state, classes)
    for (W, b, W16, b16), (dW, db) in zip(state, gradients, strict=True):
        W.sub_(dW.float() * rate)
        b.sub_(db * rate)
        W16.copy_(W)
        b16.copy_(b)
    return loss


def _step_to_new(x: Any, y: Any, state: State, classes: int, rate: float) -> tuple[Any, State]:
    loss, gradients = _gradients(x, y, state, classes)
    new = []
    for (W, b, _, _), (dW, db) in zip(state, gradients, strict=True):
        W_new, b_new = W - dW.float() * rate, b - db * rate
        new.append((W_new, b_new, W_new.half(), b_new.half()))
    return loss, new
