"""Clusters are admitted through the driver: more than 8 blocks must be allowed, and must find a place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.backends import clusters
from tuner.backends.clusters import admit_cluster
from tuner.backends.overlap import LaunchError
from tuner.types import Launch

bindings = pytest.importorskip("cuda.bindings.driver")


class Driver:
    """NVIDIA's bindings, but for the two calls that need a GPU."""

    def __init__(self, refuses: str = "") -> None:
        self.calls: list[Any] = []
        self.refuses = refuses

    def __getattr__(self, name: str) -> Any:
        return getattr(bindings, name)

    def _status(self, name: str) -> Any:
        codes = bindings.CUresult
        return codes.CUDA_ERROR_INVALID_CLUSTER_SIZE if self.refuses == name else codes.CUDA_SUCCESS

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> Any:  # noqa: N802
        self.calls.append((int(function), attribute.name, value))
        return (self._status("set"),)

    def cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> Any:  # noqa: N802
        [attribute] = config.attrs
        size = attribute.value.clusterDim
        self.calls.append((config.gridDimX, config.blockDimX, config.sharedMemBytes, (size.x, size.y, size.z)))
        return self._status("ask"), 7


def admitted(monkeypatch: pytest.MonkeyPatch, blocks: int, refuses: str = "") -> SimpleNamespace:
    driver = Driver(refuses)
    monkeypatch.setattr(clusters, "driver", lambda: driver)
    launch = Launch((blocks, 1, 1), (256, 1, 1), 1000, cluster=blocks)
    return SimpleNamespace(count=admit_cluster(0x1234, launch), calls=driver.calls)


def test_a_portable_cluster_is_only_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = admitted(monkeypatch, 8)
    assert (seen.count, seen.calls) == (7, [(8, 256, 1000, (8, 1, 1))])


def test_a_larger_one_is_allowed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = admitted(monkeypatch, 16)
    allowed = (0x1234, "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    assert seen.calls == [allowed, (16, 256, 1000, (16, 1, 1))]


@pytest.mark.parametrize("refuses", ["set", "ask"])
def test_what_the_driver_refuses_is_named(monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_CLUSTER_SIZE"):
        admitted(monkeypatch, 16, refuses)
