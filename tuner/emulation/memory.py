"""Guarded memory for kernels, seen as NumPy arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tuner.emulation.library import Library


class GuardedMemory:
    """An allocation between pages that cannot be touched; freed when the last array that views it is gone."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str, *, initialised: bool) -> None:
        self.library = Library.load()
        size = math.prod(shape) * dtype.itemsize
        self.address: int | None = self.library.allocate(size, dtype.itemsize, name.encode(), int(initialised))
        if self.address is None:
            raise MemoryError(f"no memory for buffer {name} of {size} bytes")
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (self.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        if getattr(self, "address", None) is not None:
            self.library.release(self.address)


class Buffer:
    """Memory that a kernel can be given, with a NumPy view, `array`, on it.

    Made from an array (a copy of it), or from a shape and a dtype; then it is filled with 0xFF bytes (NaN), and a
    checked kernel that reads an element before anybody wrote it is reported. Reports call it by its `name`.
    """

    def __init__(
        self, array_or_shape: NDArray[Any] | tuple[int, ...], dtype: DTypeLike | None = None, name: str = ""
    ) -> None:
        initial = array_or_shape if isinstance(array_or_shape, np.ndarray) else None
        shape = initial.shape if initial is not None else tuple(array_or_shape)
        if initial is None and dtype is None:
            raise TypeError("a buffer made from a shape needs a dtype")
        kind = np.dtype(dtype if dtype is not None else initial.dtype)  # type: ignore[union-attr]
        self.name = name
        self.memory = GuardedMemory(shape, kind, name or "(unnamed)", initialised=initial is not None)
        self.array: NDArray[Any] = np.asarray(self.memory)
        if initial is not None:
            self.array[...] = initial

    @property
    def address(self) -> int:
        """Where the data begins."""
        if self.memory.address is None:
            raise RuntimeError("the buffer has no memory")
        return self.memory.address
