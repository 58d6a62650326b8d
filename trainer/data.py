"""MNIST, or another data set in its format: from the user's folder, the cache, a download, or the shipped sample.

The pre-processing that every contender shares is here too: `scaled` (pixels) and `permutations` (batches).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.download import DownloadError, fetch, is_complete
from trainer.idx import read_images, read_labels
from tuner.cache import cache_dir
from tuner.errors import UserError

PIXELS = 784
SAMPLE = Path(__file__).parent / "sample"

_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images as (count, 784) bytes from 0 (background) to 255, labels as (count,) bytes from 0 to 9."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]
    source: str
    """Where it comes from, for people."""
    notice: str = ""
    """What the user should know before believing an accuracy; empty where nothing is out of the ordinary."""

    @property
    def fingerprint(self) -> str:
        """Differs where the data does, wherever they lie: of all labels, and of one image in a hundred."""
        digest = hashlib.sha256()
        for part in (self.train_labels, self.test_labels, self.train_images[::100], self.test_images[::100]):
            digest.update(part.tobytes())
        return digest.hexdigest()[:16]


def load(folder: Path | None = None, *, allow_download: bool = True) -> Dataset:
    """The data set in `folder`; without one MNIST, from the cache, a download, or the sample that ships.

    Environment: `MNIST_TUNE_OFFLINE=1` is `allow_download=False`.

    Raises:
        UserError: a file of `folder` is missing or wrong, or the cache cannot be written.
    """
    if folder is not None:
        try:
            return _read(folder, source=str(folder))
        except OSError as error:  # of looking for the files: their own are explained where they are read
            raise UserError(f"The data folder {folder} cannot be used ({error.strerror}); name another.") from error
    cache = cache_dir("mnist")
    if is_complete(cache):
        return _read(cache, source=f"MNIST ({cache})")
    if not allow_download or os.environ.get("MNIST_TUNE_OFFLINE", "") not in {"", "0"}:
        return _sample("downloads are switched off")
    try:
        mirror = fetch(cache)
    except DownloadError as error:
        return _sample(f"the download failed ({error})")
    return _read(cache, source=f"MNIST, from {mirror}")


def scaled(images: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Pixels divided by 255, rounded to fp16: the input that every contender gets."""
    return (images.astype(np.float32) / np.float32(255.0)).astype(np.float16)


def permutations(n: int, batch: int, steps: int, seed: int) -> NDArray[np.int32]:
    """Which of `n` images make up each batch, as (steps, batch).

    Every epoch is a fresh permutation of all images; what is left of it after the last whole batch is dropped.

    Raises:
        UserError: the data set has fewer images than one batch.
    """
    if batch > n:
        raise UserError(
            f"A batch of {batch} needs at least {batch} training images, the data set has {n}; use --batch."
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    per_epoch = n // batch
    epochs = -(-steps // per_epoch)
    order = np.empty((epochs, per_epoch, batch), np.int32)
    for epoch in range(epochs):
        order[epoch] = rng.permutation(n)[: per_epoch * batch].reshape(per_epoch, batch)
    return order.reshape(-1, batch)[:steps]


def _sample(reason: str) -> Dataset:
    notice = (
        f"Using the sample of MNIST that ships with mnist-tune (5000 digits to train, 1000 to test), because {reason}. "
        "Times are not affected, accuracies are lower than on the full set; --data DIR takes it from a folder."
    )
    return _read(SAMPLE, source="MNIST sample (5000 train, 1000 test)", notice=notice)


def _read(folder: Path, source: str, notice: str = "") -> Dataset:
    train_images_path, train_labels_path, test_images_path, test_labels_path = _find(folder)
    train_images, train_labels = read_images(train_images_path), read_labels(train_labels_path)
    test_images, test_labels = read_images(test_images_path), read_labels(test_labels_path)
    for images, labels, images_path, labels_path in (
        (train_images, train_labels, train_images_path, train_labels_path),
        (test_images, test_labels, test_images_path, test_labels_path),
    ):
        if len(images) != len(labels):
            raise UserError(
                f"{images_path} holds {len(images)} images but {labels_path.name} {len(labels)} labels; "
                "they are not of one set: get both again."
            )
    if len(train_images) < len(test_images):
        raise UserError(
            f"{train_images_path} holds {len(train_images)} images and {test_images_path.name} {len(test_images)}, "
            "more to test than to train: the two sets are swapped, rename the files."
        )
    return Dataset(train_images, train_labels, test_images, test_labels, source, notice)


def _find(folder: Path) -> list[Path]:
    """The four files, each as `train-images-idx3-ubyte` or `train-images.idx3-ubyte`, with or without `.gz`."""
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"The data folder {folder} {state}; name a folder that holds the four IDX files of MNIST.")
    found = []
    for part in _PARTS:
        stem, _, kind = part.rpartition("-")
        names = [f"{stem}{mark}{kind}-ubyte{end}" for end in (".gz", "") for mark in ("-", ".")]
        names += [f"{stem}{mark}{kind}.ubyte{end}" for end in (".gz", "") for mark in ("-", ".")]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise UserError(
                f"The data folder {folder} has no {names[0]} (nor {names[2]}); put the four IDX files there."
            )
        found.append(path)
    return found
