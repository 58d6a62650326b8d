"""The written-out step with the biases inside the weights, which leaves nothing but products.

Every input gets a column of ones, and W a row that holds b: then x W is x W + b, and Xt dY holds db in that row. The
column of ones of the next layer comes out of the product itself, from a column of W that is zero but for a one in the
row of the bias (ReLU keeps it; its gradient is masked, so SGD never changes it):

             | W  0 |
    [x 1] x  |      |  =  [x W + b   1]
             | b  1 |

Sizes are padded with zeros to a multiple of 32, for whole tiles in the products' inner loops. A step of three hidden
layers is 4 + 3 + 4 products and the gradient of the softmax: 12 launches, where all epilogues fuse.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from trainer.contenders.library import Library
from trainer.contenders.written_out import ALIGNMENT, Layer, WrittenOut, padded, softmax_gradient

TILE = 32

Pairs = list[tuple[Any, Any]]
"""For each layer W with its bias inside, in fp32 and in fp16."""


class Ones(WrittenOut):
    """Base: the state with the biases inside the weights."""

    def _make_state(self) -> None:
        import torch

        count, pixels = self.task.images.shape
        images = torch.zeros(count, padded(pixels + 1, TILE), dtype=torch.float16, device=self.device)
        images[:, :pixels] = self.images
        images[:, pixels] = 1
        self.images = images
        self.widths = [b.shape[0] for _, b in self.task.weights[:-1]]
        self.layers = []
        sizes = [padded(n + 1, TILE) for n in (pixels, *self.widths)] + [padded(self.classes, ALIGNMENT)]
        for inputs, outputs in itertools.pairwise(sizes):
            W = torch.zeros(inputs, outputs, device=self.device)
            no_bias = torch.zeros(outputs, device=self.device)
            self.layers.append(Layer(W, no_bias, W.half(), no_bias.half()))

    def _fill(self) -> None:
        for layer, (W0, _), width in zip(self.layers, self.task.weights, self.widths, strict=False):
            layer.W[W0.shape[0], width] = 1

    def _parameters(self) -> list[tuple[Any, Any]]:
        sizes = [W.shape for W, _ in self.task.weights]
        return [
            (layer.W[:inputs, :outputs], layer.W[inputs, :outputs])
            for layer, (inputs, outputs) in zip(self.layers, sizes, strict=True)
        ]


class OnesFused(Ones):
    """One compiled function that returns new weights, so that SGD can be the epilogue of dW's product."""

    name: ClassVar[str] = "ones_fused"
    description: ClassVar[str] = "by hand with the biases inside the weights, compiled, SGD fuses into dW's product"

    def _prepare_step(self) -> None:
        self._step = self._compiled(_step_to_new)

    def _steps(self) -> None:
        import torch

        xs, ys = self._batches()
        losses = []
        old = state = [(layer.W, layer.W16) for layer in self.layers]
        for x, y in zip(xs.unbind(), ys.unbind(), strict=True):
            loss, state = self._step(x, y, state, self.widths, self.classes, self.rate)
            losses.append(loss)
        for kind in range(2):
            torch._foreach_copy_([layer[kind] for layer in old], [layer[kind] for layer in state])
        self._log_and_move_on(losses)


class OnesTriton(OnesFused):
    """`OnesFused` with every product generated, never cuBLAS: so every epilogue fuses."""

    name: ClassVar[str] = "ones_triton"
    description: ClassVar[str] = "the same with every product a Triton kernel"

    def _prepare_step(self) -> None:
        options = {
            "max_autotune": True,
            "coordinate_descent_tuning": True,
            "max_autotune_gemm_backends": "TRITON",
        }
        self._step = self._compiled(_step_to_new, options=options)


class OnesLibrary(Ones, Library):
    """`Library` with the biases inside the weights: what is compiled is pointwise, and the bias costs nothing."""

    name: ClassVar[str] = "ones_library"
    description: ClassVar[str] = "by hand on cuBLAS epilogues with the biases inside the weights"

    def _compile_kernels(self) -> None:
        self._loss = self._compiled(softmax_gradient)
        self._mask = self._compiled(_mask)

    def _gradient_of_logits(self, logits: Any, y: Any) -> tuple[Any, Any]:
        return self._loss(logits, y, self.classes)  # type: ignore[no-any-return]

    def _gradient_below(self, i: int, dX: Any, activation: Any) -> Any:
        return self._mask(dX, activation, self.widths[i - 1])


class OnesStreams(OnesLibrary):
    """`OnesLibrary` with the updates on a second stream."""

    name: ClassVar[str] = "ones_streams"
    description: ClassVar[str] = "the same with the updates on a second stream"
    two_streams: ClassVar[bool] = True


def _mask(dX: Any, activation: Any, width: int) -> Any:
    """dX where the ReLU let through, without the column of ones and the padding behind it."""
    import torch

    column = torch.arange(dX.shape[1], device=dX.device)
    return torch.where((activation > 0) & (column < width), dX, torch.zeros_like(dX))


def _step_to_new(x: Any, y: Any, state: Pairs, widths: list[int], classes: int, rate: float) -> tuple[Any, Pairs]:
    import torch

    activations = [x]
    for _, W16 in state[:-1]:
        activations.append(torch.relu(torch.mm(activations[-1], W16)))
    loss, dY = softmax_gradient(torch.mm(activations[-1], state[-1][1]), y, classes)
    new: Pairs = []
    for i in reversed(range(len(state))):
        W, W16 = state[i]
        W_new = W - torch.mm(activations[i].t(), dY).float() * rate
        new.insert(0, (W_new, W_new.half()))
        if i:
            dY = _mask(torch.mm(dY, W16.t()), activations[i], widths[i - 1])
    return loss, new
