"""The IDX format of MNIST's files: four bytes of magic, the sizes as big-endian 32-bit integers, then bytes.

    00 00 08 03 | count | rows | columns | pixels      images (type 08 = unsigned byte, 3 dimensions)
    00 00 08 01 | count |                  labels      labels (1 dimension)

Every way in which such a file can be wrong is answered with one sentence that names the file and the mend.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.errors import UserError

SIDE = 28
"""Pixels per side of an image."""
CLASSES = 10

_GZIP_MAGIC = b"\x1f\x8b"
_IMAGES = b"\x00\x00\x08\x03"
_LABELS = b"\x00\x00\x08\x01"


def read_images(path: Path) -> NDArray[np.uint8]:
    """The images in `path`, gzipped or not, as (count, 784) bytes.

    Raises:
        UserError: the file is not an IDX file of 28 x 28 images.
    """
    content = _content(path)
    if content[:4] == _LABELS:
        raise UserError(f"{path} holds labels where images belong; swap it with the file of the labels.")
    count, rows, columns = _sizes(path, content, _IMAGES, "images")
    if (rows, columns) != (SIDE, SIDE):
        raise UserError(
            f"{path} holds images of {rows} x {columns} pixels; this trainer takes {SIDE} x {SIDE}, as MNIST has them."
        )
    return _payload(path, content, 16, count * SIDE * SIDE).reshape(count, SIDE * SIDE)


def read_labels(path: Path) -> NDArray[np.uint8]:
    """The labels in `path`, gzipped or not, as (count,) bytes from 0 to 9.

    Raises:
        UserError: the file is not an IDX file of such labels.
    """
    content = _content(path)
    if content[:4] == _IMAGES:
        raise UserError(f"{path} holds images where labels belong; swap it with the file of the images.")
    (count,) = _sizes(path, content, _LABELS, "labels")
    labels = _payload(path, content, 8, count)
    if labels.max() >= CLASSES:
        at = int(np.argmax(labels >= CLASSES))
        raise UserError(
            f"{path} has the label {labels[at]} at position {at}, but labels go from 0 to {CLASSES - 1}; "
            "get the file again, or use a data set of 10 classes."
        )
    return labels


def _content(path: Path) -> bytes:
    """The file's bytes, unpacked where they are gzipped (told by the content, not by the name)."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error
    if not content:
        raise UserError(f"{path} is empty; get the file again.")
    if content[:2] != _GZIP_MAGIC:
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is truncated or damaged (gzip: {error}); get the file again.") from error


def _sizes(path: Path, content: bytes, magic: bytes, what: str) -> tuple[int, ...]:
    dimensions = magic[3]
    if content[:4] != magic:
        raise UserError(
            f"{path} is not an IDX file of {what}: it begins with {content[:4].hex(' ')}, "
            f"not with {magic.hex(' ')}; get the file again."
        )
    if len(content) < 4 + 4 * dimensions:
        raise UserError(f"{path} is truncated: it ends within its header; get the file again.")
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    if sizes[0] == 0:
        raise UserError(f"{path} holds no {what} at all; get the file again.")
    return sizes


def _payload(path: Path, content: bytes, offset: int, expected: int) -> NDArray[np.uint8]:
    found = len(content) - offset
    if found != expected:
        state = "is truncated" if found < expected else "is too long"
        raise UserError(f"{path} {state}: its header promises {expected} bytes, it has {found}; get the file again.")
    return np.frombuffer(content, np.uint8, offset=offset)
