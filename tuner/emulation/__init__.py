"""Runs CUDA kernels on the CPU, for correctness: the same .cu file, compiled by g++ with stand-ins for CUDA's headers.

    module = emulation.build(Path("add.cu"), "add", {"BLOCK": 128})
    out = emulation.Buffer((1000,), numpy.float32, name="out")
    module.launch(Launch((8, 1, 1), (128, 1, 1)), [x, out, numpy.int32(1000)])

A CUDA thread is a fiber, so barriers, shuffles and WMMA have their full meaning; see headers/ for what is offered and
runtime/ for how. Mistakes that a GPU forgives or answers with garbage are reported as an `EmulationFault`.

What a kernel has to do for it:
- be a plain function, `extern "C" __global__ void name(...)`; macros make its variants;
- declare dynamic shared memory by `MNT_DYNAMIC_SHARED(name);` (for nvcc: `extern __shared__ unsigned char name[]`);
- guard what is not emulated by `__CUDA_ARCH__` and give a plain form: inline PTX, TMA, `cluster_group`;
- call a stand-in where `__MNT_EMULATION__` is defined, if there is one: mnt_warp_matrix.h, and mnt_cluster.h for
  messages within a cluster (st.async, memory barriers);
- in a loop that waits for another thread, give it a turn: `__nanosleep`, an atomic and `__ldcg` do, a bare volatile
  load does not (`mnt_emulation_yield()` where `__MNT_EMULATION__` is defined).
"""

from tuner.emulation.builder import build
from tuner.emulation.errors import EmulationBuildError, EmulationFault
from tuner.emulation.memory import Buffer
from tuner.emulation.module import Module

__all__ = ["Buffer", "EmulationBuildError", "EmulationFault", "Module", "build"]
