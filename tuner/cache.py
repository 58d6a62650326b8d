"""The user's cache folder: compiled kernels, emulated kernels, downloaded data. Nothing in it is precious."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

from tuner.errors import UserError


def cache_dir(*parts: str) -> Path:
    """The folder `parts` inside the cache (`MNIST_TUNE_CACHE`, or the platform's place), made if need be.

    Raises:
        UserError: the folder cannot be made or written.
    """
    root = Path(os.environ.get("MNIST_TUNE_CACHE") or platformdirs.user_cache_dir("mnist-tune"))
    path = root.joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"The cache folder {path} cannot be written ({error.strerror}); set MNIST_TUNE_CACHE to a folder that can."
        ) from error
    return path
