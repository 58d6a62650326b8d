"""The download, from a server of our own on the loopback."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainer.download import MD5, DownloadError, fetch, is_complete

CONTENT = {"a.gz": b"first" * 1000, "b.gz": b"second"}
CHECKSUMS = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in CONTENT.items()}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


def publish(folder: Path, content: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, payload in content.items():
        (folder / name).write_bytes(payload)


def test_files_arrive_checked(served, tmp_path):
    folder, address = served
    publish(folder, CONTENT)
    cache = tmp_path / "cache"
    assert not is_complete(cache, CHECKSUMS)
    assert fetch(cache, [address], CHECKSUMS) == address
    assert is_complete(cache, CHECKSUMS)
    assert (cache / "a.gz").read_bytes() == CONTENT["a.gz"]


def test_a_mirror_with_other_content_is_passed_over(served, tmp_path):
    folder, address = served
    publish(folder / "bad", {**CONTENT, "b.gz": b"tampered with"})
    publish(folder / "good", CONTENT)
    cache = tmp_path / "cache"
    assert fetch(cache, [address + "bad/", address + "good/"], CHECKSUMS) == address + "good/"
    assert is_complete(cache, CHECKSUMS)


def test_a_damaged_cache_is_mended(served, tmp_path):
    folder, address = served
    publish(folder, CONTENT)
    cache = tmp_path / "cache"
    publish(cache, {**CONTENT, "a.gz": b"cut off"})
    assert not is_complete(cache, CHECKSUMS)
    fetch(cache, [address], CHECKSUMS)
    assert is_complete(cache, CHECKSUMS)


def test_what_no_mirror_has_is_an_error(served, tmp_path):
    _, address = served
    with pytest.raises(DownloadError, match="404"):
        fetch(tmp_path / "cache", [address], CHECKSUMS)


def test_nobody_answers(tmp_path):
    # Port 9 (discard) of the loopback: refused at once.
    with pytest.raises(DownloadError, match="refused"):
        fetch(tmp_path / "cache", ["http://127.0.0.1:9/"], CHECKSUMS)


def test_the_published_checksums_are_of_four_files():
    assert len(set(MD5.values())) == 4
    assert all(len(md5) == 32 for md5 in MD5.values())
