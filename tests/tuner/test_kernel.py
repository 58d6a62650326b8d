"""The guard of the store: a kernel's hash is that of its source as it is now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tuner.toy import Toy
from tuner.kernel import content, source_files


class Written(Toy):
    def __init__(self, source: Path) -> None:
        super().__init__()
        self._source = source

    @property
    def source(self) -> Path:  # type: ignore[override]
        return self._source


@pytest.fixture
def kernel(tmp_path: Path) -> Written:
    (tmp_path / "part.cuh").write_text("// 1\n")
    (tmp_path / "toy.cu").write_text('#include "part.cuh"\n#include <mma.h>\n')
    return Written(tmp_path / "toy.cu")


def age(path: Path, seconds: float) -> None:
    seen = path.stat()
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns - int(seconds * 1e9)))


def test_a_change_of_an_included_file_is_another_hash(kernel: Written) -> None:
    part = kernel.source.with_name("part.cuh")
    assert source_files(kernel.source) == [kernel.source, part]
    before = kernel.source_hash
    part.write_text("// 2\n")
    assert kernel.source_hash != before
    part.write_text("// 1\n")
    assert kernel.source_hash == before


def test_a_file_that_has_been_left_alone_is_read_once(kernel: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    age(kernel.source, 60)
    first = content(kernel.source)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: b"read again")
        assert content(kernel.source) == first
    kernel.source.write_text("// of the same length, or not\n")
    age(kernel.source, 30)
    assert content(kernel.source) == b"// of the same length, or not\n"


def test_a_file_that_was_just_written_is_always_read(kernel: Written) -> None:
    for text in (b"// 1\n", b"// 2\n"):
        kernel.source.write_bytes(text)  # the clock of a file system may not have moved between the two
        assert content(kernel.source) == text
