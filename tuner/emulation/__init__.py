"""Runs CUDA kernels on the CPU, for correctness: the same .cu file, compiled by g++ with stand-ins for CUDA's headers.

    module = emulation.build(Path("add.cu"), "add", {"BLOCK": 128})
    out = emulation.Buffer((1000,), numpy.float32, name="out")
    module.launch(Launch((8, 1, 1), (128, 1, 1)), [x, out, numpy.int32(1000)])

A CUDA thread is a fiber, so barriers, shuffles and WMMA have their full meaning; see headers/ for what is offered and
runtime/ for how. Not emulated: inline PTX (guard it by __CUDA_ARCH__ and give a plain form), clusters, TMA, timing.
Mistakes that a GPU forgives or answers with garbage are reported as an `EmulationFault`.
"""

from tuner.emulation.builder import build
from tuner.emulation.errors import EmulationBuildError, EmulationFault
from tuner.emulation.memory import Buffer
from tuner.emulation.module import Module

__all__ = ["Buffer", "EmulationBuildError", "EmulationFault", "Module", "build"]
