"""What the kernel tests share: two GPUs, and a cache of their own."""

from __future__ import annotations

import pytest

from tuner.devices import find
from tuner.types import Device


@pytest.fixture(scope="session")
def t4() -> Device:
    return find("Tesla T4")


@pytest.fixture(scope="session")
def h200() -> Device:
    return find("NVIDIA H200")
