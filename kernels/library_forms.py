"""The layers' kernels as a library does them: cuBLAS's products, and one element-wise kernel for all the rest.

They are what the fused kernels are held against, candidates like any other, and what is served where they are faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from kernels.linear_backward import LinearBackward
from kernels.linear_forward import LinearForward
from kernels.tiling import FP16_ROUNDING, FP32_ROUNDING, ceil_div, sum_tolerance, vector_width
from tuner.kernel import Product, Work
from tuner.space import Space
from tuner.types import Config, Device, Launch, Problem, Value

_VECTOR = 8


class LinearForwardLibrary(LinearForward):
    """Y = X W by cuBLAS (sums in fp32, rounded to fp16), then Y = activation(Y + b) in place."""

    source = Path(__file__).with_name("linear_forward_library.cu")
    _THREADS = 128

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((), also=(self.only_config,))

    def products(self, problem: Problem) -> tuple[Product, ...]:
        [gemm] = self.library(problem)
        X, W, Y = 0, 1, 3
        return (Product(gemm, X, W, Y),)

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {
            "BATCH": problem["batch"],
            "OUT_FEATURES": problem["out_features"],
            "RELU": int(problem.option("activation") == "relu"),
            "THREADS": self._THREADS,
        }

    def launch(self, problem: Problem, config: Config) -> Launch:
        outputs = problem["out_features"]
        vectors = problem["batch"] * (outputs // vector_width(outputs, _VECTOR))
        return Launch((ceil_div(vectors, self._THREADS), 1, 1), (self._THREADS, 1, 1))

    def workspace(self, problem: Problem, config: Config) -> tuple[int, int]:
        return 1, 1

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        # Rounded to fp16 before b is added, and once more after; b may cancel most of what was rounded first.
        return {"Y": 2 * sum_tolerance("float", problem["in_features"])}

    def work(self, problem: Problem, config: Config) -> Work:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        least = 2 * (batch * inputs + inputs * outputs + batch * outputs) + 4 * outputs
        return Work(2.0 * batch * inputs * outputs, least, least + 4 * batch * outputs)

    def emulates(self, config: Config) -> bool:
        return True


class LinearBackwardLibrary(LinearBackward):
    """dX = dY W^T and dW = X^T dY by cuBLAS (fp16, sums in fp32), then the mask and the update in one launch.

    dW lies in `partial`. The weights are kept in the form that MASTER names, as the fused kernel's are.
    """

    source = Path(__file__).with_name("linear_backward_library.cu")
    tunables: ClassVar = {"MASTER": "hilo"}
    _THREADS = 256

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((), also=(self.only_config,))

    def products(self, problem: Problem) -> tuple[Product, ...]:
        X, dY, W, dX, partial = 0, 1, 2, 5, 8
        *gradient, weight_gradient = self.library(problem)
        return (*(Product(gemm, dY, W, dX) for gemm in gradient), Product(weight_gradient, X, dY, partial))

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {
            "BATCH": problem["batch"],
            "IN_FEATURES": problem["in_features"],
            "OUT_FEATURES": problem["out_features"],
            "NEED_DX": int(problem.option("dx") == "relu"),
            "THREADS": self._THREADS,
        }

    def launch(self, problem: Problem, config: Config) -> Launch:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        shares = [inputs * (outputs // vector_width(outputs, _VECTOR)), outputs]
        if problem.option("dx") == "relu":
            shares.append(batch * (inputs // vector_width(inputs, _VECTOR)))
        return Launch((sum(ceil_div(share, self._THREADS) for share in shares), 1, 1), (self._THREADS, 1, 1))

    def workspace(self, problem: Problem, config: Config) -> tuple[int, int]:
        return ceil_div(problem["in_features"] * problem["out_features"], 2), 1

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        batch = problem["batch"]
        # dW is rounded to fp16, and the update is of the weights' own size while it is checked.
        limits = {
            "weight": FP16_ROUNDING,
            "W": 1.5 * FP16_ROUNDING,
            "b": 4 * FP32_ROUNDING * batch**0.5 + 2 * FP32_ROUNDING,
        }
        if problem.option("dx") == "relu":
            limits["dX"] = sum_tolerance("float", problem["out_features"])
        return limits

    def work(self, problem: Problem, config: Config) -> Work:
        batch, inputs, outputs = (problem[dim] for dim in self.dims)
        need_dx, weights = problem.option("dx") == "relu", inputs * outputs
        ends = 2 * batch * (inputs + outputs) + (2 * batch * inputs if need_dx else 0) + 8 * outputs
        passes = 4 * 2 * batch * inputs if need_dx else 0
        return Work(
            flops=2.0 * batch * weights * (2 if need_dx else 1),
            floor_bytes=8 * weights + ends,
            moved_bytes=(8 + 4 + (2 if need_dx else 0)) * weights + ends + passes,
        )

    def emulates(self, config: Config) -> bool:
        return True
