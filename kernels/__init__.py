"""The kernels of an MLP's training step: each a NAME.cu and a NAME.py that declares it to the tuner."""

from kernels.gather_rows import GatherRows
from kernels.library_forms import LinearBackwardLibrary, LinearForwardLibrary
from kernels.linear_backward import LinearBackward
from kernels.linear_forward import LinearForward
from kernels.mlp_resident import MlpResident
from kernels.mlp_streaming import MlpStreaming
from kernels.softmax_cross_entropy import SoftmaxCrossEntropy
from tuner.kernel import Kernel

linear_forward = LinearForward(LinearForwardLibrary())
linear_backward = LinearBackward(LinearBackwardLibrary())
softmax_cross_entropy = SoftmaxCrossEntropy()
gather_rows = GatherRows()
mlp_resident = MlpResident()
mlp_streaming = MlpStreaming()

ALL: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        gather_rows,
        linear_forward,
        softmax_cross_entropy,
        linear_backward,
        mlp_resident,
        mlp_streaming,
    )
}
"""Every kernel by name, in the order of a training step."""
