"""A look at many flags at once, on a GPU or not."""

from __future__ import annotations

from typing import Any

import numpy as np


def any_of(flags: Any) -> Any:
    """Whether any of `flags` (a NumPy or CuPy array of bool, not empty) is set: a scalar 0 or 1, still where they are.

    A maximum, for which CuPy brings a kernel along. For `any` and `all` it compiles one with CUB's headers, and another
    one for every power of two that a small array's size may come near; counters have other sizes in every
    configuration, so candidates would be charged for it.
    """
    return flags.view(np.uint8).max()
