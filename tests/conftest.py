"""What every test is kept from: the network, the user's cache, and the repository's store."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import end_all

# Before NumPy is imported, as in cli.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell starts background jobs with SIGINT ignored, and a process that ignores it hands that on to its children:
# Ctrl-C could then not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


HEAVY = (
    "test_kill.py",
    "test_exhaustive_replay.py",
    "test_compile.py",
    "test_engines.py",
    "test_durability.py",
    "test_selftest.py",
    "test_emulation.py",
    "test_ladder.py",
    "test_cli.py",
    "test_agreement.py",
)
"""Files that take longest, the longest first: begun last, one of them would keep a single process busy at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    weights = {name: place for place, name in enumerate(HEAVY)}
    items.sort(key=lambda item: weights.get(item.path.name, len(HEAVY)))


@pytest.fixture(autouse=True, scope="session")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What compiles in this process parses CUDA's headers once, as the processes of a pool do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.compile._parsed", tmp_path_factory.mktemp("headers"))
        yield


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(autouse=True, scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the session's own: what one test compiles, in whichever process, the others find there.

    The store that is used when a test names none is in a folder that does not exist, so such a test fails.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    cache = shared / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MNIST_TUNE_CACHE", str(cache))
        patch.setenv("MNIST_TUNE_DB", str(shared / "no such folder" / "tuning.db"))
        patch.setenv("MNIST_TUNE_OFFLINE", "1")
        yield cache
