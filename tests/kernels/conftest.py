"""What the kernel tests share: two GPUs, and a cache of their own."""

from __future__ import annotations

import pytest

import kernels
from tuner.devices import find
from tuner.types import Device


@pytest.fixture(scope="session")
def t4() -> Device:
    return find("Tesla T4")


@pytest.fixture(scope="session")
def h200() -> Device:
    return find("NVIDIA H200")


RESIDENT = [
    kernels.mlp_resident.problem(32, 784, 32, 3, 10, 3),
    kernels.mlp_resident.problem(20, 50, 33, 1, 7, 3),
    kernels.mlp_resident.problem(33, 77, 50, 4, 10, 2),
]
"""Small networks with one to four hidden layers; tails in every size."""
