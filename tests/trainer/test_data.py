"""Where the digits come from, and what is said of files that are not what they should be."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainer import data
from trainer.data import SAMPLE, load, permutations, scaled
from trainer.download import DownloadError
from tuner.errors import UserError

RNG = np.random.default_rng(7)
TRAIN = RNG.integers(0, 256, (12, 28, 28), np.uint8)
TRAIN_LABELS = RNG.integers(0, 10, 12, np.uint8)
TEST = RNG.integers(0, 256, (5, 28, 28), np.uint8)
TEST_LABELS = RNG.integers(0, 10, 5, np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fill(folder: Path, pattern: str = "{}-{}-ubyte", pack: Callable[[bytes], bytes] = bytes) -> Path:
    for part, kind, array in (
        ("train-images", "idx3", TRAIN),
        ("train-labels", "idx1", TRAIN_LABELS),
        ("t10k-images", "idx3", TEST),
        ("t10k-labels", "idx1", TEST_LABELS),
    ):
        (folder / pattern.format(part, kind)).write_bytes(pack(idx(array)))
    return folder


@pytest.mark.parametrize("pattern", ["{}-{}-ubyte", "{}.{}-ubyte", "{}-{}.ubyte"])
@pytest.mark.parametrize(("end", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_a_folder_is_read_whatever_its_spelling(tmp_path, pattern, end, pack):
    dataset = load(fill(tmp_path, pattern + end, pack))
    assert np.array_equal(dataset.train_images, TRAIN.reshape(12, 784))
    assert np.array_equal(dataset.train_labels, TRAIN_LABELS)
    assert np.array_equal(dataset.test_images, TEST.reshape(5, 784))
    assert np.array_equal(dataset.test_labels, TEST_LABELS)
    assert dataset.notice == ""
    assert str(tmp_path) in dataset.source


def test_the_sample_is_real_mnist_and_balanced():
    dataset = load(SAMPLE)
    assert np.bincount(dataset.train_labels).tolist() == [500] * 10
    assert np.bincount(dataset.test_labels).tolist() == [100] * 10
    # MNIST's training set begins 5 0 4 1 9 2 1 3 1 4, its test set 7 2 1 0 4 1 4 9 5 9.
    assert dataset.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert dataset.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # The mean pixel of MNIST's training set is 0.1307 of full scale.
    assert scaled(dataset.train_images).mean(dtype=np.float64) == pytest.approx(0.1307, abs=0.003)
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 2_500_000


def test_offline_takes_the_sample_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_TUNE_CACHE", str(tmp_path))
    monkeypatch.setenv("MNIST_TUNE_OFFLINE", "1")
    dataset = load()
    assert len(dataset.train_images) == 5000
    assert "downloads are switched off" in dataset.notice


def test_a_failed_download_takes_the_sample_and_says_why(tmp_path, monkeypatch):
    def fail(folder: Path) -> str:
        raise DownloadError("no mirror answered in time")

    monkeypatch.setenv("MNIST_TUNE_CACHE", str(tmp_path))
    monkeypatch.delenv("MNIST_TUNE_OFFLINE", raising=False)
    monkeypatch.setattr(data, "fetch", fail)
    assert "no mirror answered in time" in load().notice


def test_a_full_cache_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_TUNE_CACHE", str(tmp_path))
    monkeypatch.setenv("MNIST_TUNE_OFFLINE", "1")
    (tmp_path / "mnist").mkdir()
    fill(tmp_path / "mnist")
    monkeypatch.setattr(data, "is_complete", lambda _: True)
    assert len(load().train_images) == 12
    assert load().notice == ""


def replaced(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def swap(first: str, second: str) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        one, two = (folder / first).read_bytes(), (folder / second).read_bytes()
        (folder / first).write_bytes(two)
        (folder / second).write_bytes(one)

    return do


def swap_sets(folder: Path) -> None:
    swap("train-images-idx3-ubyte", "t10k-images-idx3-ubyte")(folder)
    swap("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte")(folder)


def empty_folder(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("spoil", "named", "sentence"),
    [
        (replaced(IMAGES, idx(TRAIN)[:-1]), IMAGES, "is truncated: its header promises 9408 bytes, it has 9407"),
        (replaced(IMAGES, idx(TRAIN)[:10]), IMAGES, "it ends within its header"),
        (replaced(IMAGES, idx(TRAIN) + b"\0"), IMAGES, "is too long"),
        (replaced(IMAGES, gzip.compress(idx(TRAIN))[:-20]), IMAGES, "is truncated or damaged"),
        (replaced(IMAGES, b"\x1f\x8b" + bytes(30)), IMAGES, "is truncated or damaged"),
        (replaced(IMAGES, b""), IMAGES, "is empty"),
        (replaced(IMAGES, b"<!DOCTYPE html>"), IMAGES, "is not an IDX file of images"),
        (replaced(IMAGES, idx(TRAIN[:0])), IMAGES, "holds no images at all"),
        (replaced(IMAGES, idx(TRAIN[:, :14])), IMAGES, "images of 14 x 28 pixels"),
        (replaced(IMAGES, idx(TRAIN[:11])), IMAGES, "11 images but train-labels-idx1-ubyte 12 labels"),
        (replaced(LABELS, idx(TRAIN_LABELS + np.uint8(10))), LABELS, "labels go from 0 to 9"),
        (swap(IMAGES, LABELS), IMAGES, "holds labels where images belong"),
        (swap(LABELS, "t10k-images-idx3-ubyte"), LABELS, "holds images where labels belong"),
        (swap(IMAGES, "t10k-images-idx3-ubyte"), IMAGES, "not of one set"),
        (swap_sets, IMAGES, "the two sets are swapped"),
        (lambda folder: (folder / LABELS).unlink(), "", "has no train-labels-idx1-ubyte.gz"),
        (empty_folder, "", "has no train-images-idx3-ubyte.gz"),
    ],
)
def test_a_wrong_file_gets_one_sentence_that_names_it(tmp_path, spoil, named, sentence):
    spoil(fill(tmp_path))
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert sentence in message
    assert str(tmp_path / named) in message
    assert message.endswith(".")
    assert "\n" not in message


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        load(tmp_path / "file")


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    fill(tmp_path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte cannot be read \(Permission denied\)"):
        load(tmp_path)


def test_pixels_are_rounded_to_half():
    pixels = scaled(np.arange(256, dtype=np.uint8)[None])
    assert pixels.dtype == np.float16
    assert pixels[0, 0] == 0
    assert pixels[0, 255] == 1
    assert pixels[0, 128] == np.float16(128 / 255)


@given(n=st.integers(1, 200), batch=st.integers(1, 40), steps=st.integers(1, 60), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_every_epoch_sees_each_image_at_most_once(n, batch, steps, seed):
    if batch > n:
        with pytest.raises(UserError, match="use --batch"):
            permutations(n, batch, steps, seed)
        return
    order = permutations(n, batch, steps, seed)
    assert order.shape == (steps, batch)
    assert order.dtype == np.int32
    per_epoch = n // batch
    for first in range(0, steps, per_epoch):
        epoch = order[first : first + per_epoch].ravel()
        assert len(np.unique(epoch)) == len(epoch)
        assert epoch.min() >= 0
        assert epoch.max() < n


def test_the_seed_fixes_the_batches_and_more_steps_keep_the_first():
    order = permutations(100, 8, 50, seed=3)
    assert np.array_equal(order, permutations(100, 8, 80, seed=3)[:50])
    assert not np.array_equal(order, permutations(100, 8, 50, seed=4))
    assert not np.array_equal(order[:12], order[12:24])
