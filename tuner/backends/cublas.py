"""cuBLAS's matrix product, by ctypes: CuPy's own binding refuses to be captured into a CUDA graph."""

from __future__ import annotations

import ctypes
from typing import Any

from tuner.kernel import Gemm

WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends from sm_90 on. Given by us, so that cuBLAS allocates nothing while a graph is captured."""

_HALF = 2  # CUDA_R_16F
_SUMS_FP32 = 68  # CUBLAS_COMPUTE_32F
_HEURISTIC = -1  # CUBLAS_GEMM_DEFAULT


class CublasError(RuntimeError):
    """cuBLAS returned an error status."""


class Cublas:
    """A handle on the current device, with a workspace of its own.

    Raises:
        ImportError: the library is not installed.
        CublasError: it cannot be initialised.
    """

    def __init__(self) -> None:
        import cupy
        from cuda import pathfinder

        try:
            found = pathfinder.load_nvidia_dynamic_lib("cublas")
        except pathfinder.DynamicLibNotFoundError as error:
            raise ImportError("cuBLAS was not found") from error
        self._library: Any = ctypes.CDLL(found.abs_path)
        self._handle = ctypes.c_void_p()
        self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)))
        self._workspace = cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def use_current_stream(self) -> None:
        """Enqueue on CuPy's current stream from now on. (It resets the workspace, so that is set again.)"""
        import cupy

        stream = cupy.cuda.get_current_stream()
        self._check(self._library.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream.ptr)))
        place = ctypes.c_void_p(self._workspace.data.ptr)
        self._check(self._library.cublasSetWorkspace_v2(self._handle, place, ctypes.c_size_t(WORKSPACE_BYTES)))

    def multiply(self, gemm: Gemm, a: Any, b: Any, c: Any) -> None:
        """C = op(A) op(B) for row-major fp16 CuPy arrays, sums in fp32. C's memory may be longer, and of another type.

        cuBLAS is column major: row-major C = A B is its C^T = B^T A^T, so the operands change places.
        """
        self._check(
            self._library.cublasGemmEx(
                self._handle,
                int(gemm.transpose_b),
                int(gemm.transpose_a),
                gemm.n,
                gemm.m,
                gemm.k,
                ctypes.byref(self._one),
                ctypes.c_void_p(b.data.ptr),
                _HALF,
                gemm.k if gemm.transpose_b else gemm.n,
                ctypes.c_void_p(a.data.ptr),
                _HALF,
                gemm.m if gemm.transpose_a else gemm.k,
                ctypes.byref(self._zero),
                ctypes.c_void_p(c.data.ptr),
                _HALF,
                gemm.n,
                _SUMS_FP32,
                _HEURISTIC,
            )
        )

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise CublasError(f"cuBLAS returned the status {status}")
