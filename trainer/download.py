"""The four files of MNIST, fetched into the user's cache and checked."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)

MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
"""The files as they have been published since 1998."""

CONNECT_S = 4.0
"""How long a machine without network waits before it is told so."""
STALL_S = 8.0
"""Longest silence of a mirror while it sends."""


class DownloadError(Exception):
    """No mirror gave the files. The message says why."""


def is_complete(folder: Path, checksums: Mapping[str, str] = MD5) -> bool:
    """Whether `folder` holds all files with the right content."""
    return all((folder / name).is_file() and _md5(folder / name) == md5 for name, md5 in checksums.items())


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def fetch(folder: Path, mirrors: Sequence[str] = MIRRORS, checksums: Mapping[str, str] = MD5) -> str:
    """Bring every file into `folder`, from the first mirror that answers and has them right.

    Files that are there and right are kept. Shows a progress bar. Returns the mirror that gave the last file.

    Raises:
        DownloadError: no mirror answers within `CONNECT_S`, or none has the files.
    """
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    probe = next(iter(checksums))
    failures: list[str] = []
    for mirror in _reachable(mirrors, probe, failures):
        try:
            with _Bar() as bar:
                for name, md5 in checksums.items():
                    downloader = pooch.HTTPDownloader(progressbar=bar.named(name), timeout=(CONNECT_S, STALL_S))
                    pooch.retrieve(mirror + name, f"md5:{md5}", fname=name, path=str(folder), downloader=downloader)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            failures.append(f"{mirror}: {str(error).splitlines()[0]}")
            continue
        return mirror
    raise DownloadError("; ".join(dict.fromkeys(failures)) or "no mirror was given")


def _reachable(mirrors: Sequence[str], probe: str, failures: list[str]) -> list[str]:
    """The mirrors that answer, soonest first.

    All are asked at once, from daemon threads: a name server that does not answer blocks for longer than anybody
    should wait, and Python cannot interrupt that call.
    """
    answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def ask(mirror: str) -> None:
        request = urllib.request.Request(mirror + probe, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=CONNECT_S):
                answers.put((mirror, ""))
        except urllib.error.HTTPError:
            answers.put((mirror, ""))  # it answers; whether it has the files, the download will say
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)  # what a URLError wraps says more than it does
            answers.put((mirror, getattr(reason, "strerror", None) or str(reason)))

    for mirror in mirrors:
        threading.Thread(target=ask, args=(mirror,), daemon=True).start()
    found: list[str] = []
    waiting = list(mirrors)
    try:
        while waiting:
            mirror, error = answers.get(timeout=0.5 if found else CONNECT_S + 1.0)
            waiting.remove(mirror)
            if error:
                failures.append(error)  # most often the same for all: no network
            else:
                found.append(mirror)
    except queue.Empty:
        failures.append("no mirror answered in time")
    return found


class _Bar:
    """pooch's idea of a progress bar (`total`, `reset`, `update`, `close`), drawn by rich."""

    def __init__(self) -> None:
        self.total = 0
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), transient=True
        )
        self._task: TaskID = self._progress.add_task("MNIST")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def named(self, name: str) -> _Bar:
        self._progress.reset(self._task, description=name)
        return self

    def update(self, amount: int) -> None:
        self._progress.update(self._task, total=self.total, advance=amount)

    def reset(self) -> None:
        """pooch calls this once the file is there, before a last `update(total)`."""
        self._progress.reset(self._task, total=self.total)

    def close(self) -> None:
        """Nothing to do: the next file takes the bar over."""
