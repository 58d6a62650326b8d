"""The step on cuBLAS's own epilogues, in place of generated products.

Forward: one product per layer, with bias and ReLU in its epilogue. SGD: `W += -rate * Xt dY`, one product with fp16
inputs that accumulates into the fp32 master, so dW never exists. What is left is compiled: the gradient of the
softmax, a kernel that masks dX and updates the bias, and one launch that refreshes all fp16 copies.
"""

from __future__ import annotations

from typing import Any, ClassVar

from trainer.contenders.written_out import Layer, WrittenOut, softmax_gradient


class Library(WrittenOut):
    """The written-out step on cuBLAS, captured; see the module."""

    name: ClassVar[str] = "library"
    description: ClassVar[str] = "by hand on cuBLAS epilogues, SGD inside dW's product, many per CUDA graph"
    two_streams: ClassVar[bool] = False
    """Put the updates on a second stream beside the chain of dX: a graph with two branches."""

    def _prepare_step(self) -> None:
        import torch

        self._side = torch.cuda.Stream(self.device) if self.on_gpu and self.two_streams else None
        self._in_product = self._can_accumulate()
        self._pending: list[tuple[Layer, Any]] = []
        self._apply = self._compiled(_update_all)
        self._compile_kernels()

    def _compile_kernels(self) -> None:
        self._loss = self._compiled(_loss_and_bias)
        self._mask = self._compiled(_mask_and_bias)

    def _steps(self) -> None:
        xs, ys = self._batches()
        self._log_and_move_on([self._one(x, y) for x, y in zip(xs.unbind(), ys.unbind(), strict=True)])

    def _one(self, x: Any, y: Any) -> Any:
        import torch

        activations = [x]
        for layer in self.layers[:-1]:
            activations.append(torch._addmm_activation(layer.b16, activations[-1], layer.W16))
        last = self.layers[-1]
        loss, dY = self._gradient_of_logits(torch.addmm(last.b16, activations[-1], last.W16), y)
        alive = [dY]  # what the second stream reads must not be reused before the streams join
        for i in reversed(range(len(self.layers))):
            self._update(self.layers[i], activations[i], dY)
            if i:
                dY = self._gradient_below(i, torch.mm(dY, self.layers[i].W16.t()), activations[i])
                alive.append(dY)
        if self._side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._side)
        self._refresh_copies()
        return loss

    def _gradient_of_logits(self, logits: Any, y: Any) -> tuple[Any, Any]:
        """The loss, and dY of the last layer; updates its bias."""
        last = self.layers[-1]
        return self._loss(logits, y, last.b, last.b16, self.classes, self.rate)  # type: ignore[no-any-return]

    def _gradient_below(self, i: int, dX: Any, activation: Any) -> Any:
        """dY of layer i - 1 from dX of layer i and the activation between them; updates the bias."""
        below = self.layers[i - 1]
        return self._mask(dX, activation, below.b, below.b16, self.rate)

    def _update(self, layer: Layer, x: Any, dY: Any) -> None:
        """The layer's SGD on its master weights. The fp16 copies stay as they are, because dX still needs them."""
        import torch

        if self._side is None:
            self._accumulate(layer, x, dY)
            return
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side):
            self._accumulate(layer, x, dY)

    def _accumulate(self, layer: Layer, x: Any, dY: Any) -> None:
        import torch

        if not self._in_product:
            self._pending.append((layer, torch.mm(x.t(), dY)))
        elif self.on_gpu:
            _addmm_into(layer.W, x, dY, self.rate)
        else:  # the CPU's addmm takes no mixed types
            layer.W.addmm_(x.t().float(), dY.float(), alpha=-self.rate)

    def _refresh_copies(self) -> None:
        import torch

        if self._in_product:
            torch._foreach_copy_([layer.W16 for layer in self.layers], [layer.W for layer in self.layers])
            return
        layers = [layer for layer, _ in self._pending]
        gradients = [dW for _, dW in self._pending]
        self._apply([layer.W for layer in layers], [layer.W16 for layer in layers], gradients, self.rate)
        self._pending = []

    def _can_accumulate(self) -> bool:
        """Whether this PyTorch's addmm adds an fp16 product to an fp32 matrix; older ones want all inputs alike."""
        if not self.on_gpu:
            return True
        import torch

        half = torch.zeros(16, 16, dtype=torch.float16, device=self.device)
        try:
            _addmm_into(half.float(), half, half, 1.0)
        except (RuntimeError, AttributeError) as error:
            self._notes.append(f"SGD apart from dW's product, since addmm refuses ({str(error).splitlines()[0]})")
            return False
        self._notes.append("SGD inside dW's product")
        return True


def _addmm_into(W: Any, x: Any, dY: Any, rate: float) -> None:
    import torch

    torch.ops.aten.addmm.dtype_out(W, x.t(), dY, torch.float32, beta=1, alpha=-rate, out=W)


def _loss_and_bias(logits: Any, y: Any, b: Any, b16: Any, classes: int, rate: float) -> tuple[Any, Any]:
    loss, dY = softmax_gradient(logits, y, classes)
    b.sub_(dY.float().sum(0) * rate)
    b16.copy_(b)
    return loss, dY


def _mask_and_bias(dX: Any, activation: Any, b: Any, b16: Any, rate: float) -> Any:
    import torch

    dY = torch.where(activation > 0, dX, torch.zeros_like(dX))
    b.sub_(dY.float().sum(0) * rate)
    b16.copy_(b)
    return dY


def _update_all(masters: list[Any], copies: list[Any], gradients: list[Any], rate: float) -> None:
    """All layers in one launch: the compiler fuses `_foreach` operations across their tensors."""
    import torch

    torch._foreach_sub_(masters, torch._foreach_mul([gradient.float() for gradient in gradients], rate))
    torch._foreach_copy_(copies, masters)
