"""The catalogue, and what `--device` means. Figures are NVIDIA's."""

from __future__ import annotations

import pytest

from tuner import devices
from tuner.devices import KNOWN, current, device_index, environment, find, resolve
from tuner.errors import UserError


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("Tesla T4", "Tesla T4"),
        ("t4", "Tesla T4"),
        ("2080 ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("a10", "NVIDIA A10"),
        ("A100", "NVIDIA A100-SXM4-40GB"),
        ("a100-80gb", "NVIDIA A100-SXM4-80GB"),
        ("l4", "NVIDIA L4"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("h100 pcie", "NVIDIA H100 PCIe"),
        ("H200", "NVIDIA H200"),
        ("b200", "NVIDIA B200"),
    ],
)
def test_short_names(name: str, full: str) -> None:
    assert find(name).name == full


@pytest.mark.parametrize("name", ["", "voodoo", "-"])
def test_an_unknown_name_lists_those_that_are_known(name: str) -> None:
    with pytest.raises(UserError, match="Tesla T4"):
        find(name)


def test_datasheet_of_the_t4() -> None:
    t4 = find("t4")
    assert (t4.arch, t4.sm_count, t4.threads_per_sm, t4.blocks_per_sm) == ("sm_75", 40, 1024, 16)
    assert t4.shared_per_block == 64 << 10
    assert t4.memory_bandwidth == 320e9
    assert t4.tensor_flops == 65e12
    assert t4.key == "Tesla T4/sm_75/40"


@pytest.mark.parametrize("device", KNOWN.values(), ids=lambda device: device.name)
def test_every_entry_is_plausible(device: devices.Device) -> None:
    assert device.shared_per_block <= device.shared_per_sm
    assert device.l2_bandwidth >= device.memory_bandwidth
    # Tensor rate = SMs x clock x FLOPs per SM and clock: a typing error would show here.
    per_clock = device.tensor_flops / (device.sm_count * device.clock_hz)
    assert 400 < per_clock < 8500
    assert device.memory_bytes > device.l2_bytes


@pytest.mark.parametrize(("spec", "index"), [(None, 0), ("cuda", 0), ("cuda:0", 0), ("cuda:7", 7), ("cpu", None)])
def test_device_index(spec: str | None, index: int | None) -> None:
    assert device_index(spec) == index


@pytest.mark.parametrize("spec", ["gpu", "cuda:", "cuda:x", "cuda:-1", "", "CUDA 0"])
def test_a_spec_that_is_not_understood(spec: str) -> None:
    with pytest.raises(UserError, match="use cuda"):
        device_index(spec)


def test_cpu_forces_the_path_without_a_gpu() -> None:
    assert resolve("cpu") is None
    assert resolve("none") is None


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_count", lambda: 0)
    assert current() is None
    assert resolve(None) is None
    with pytest.raises(UserError, match="no GPU is visible"):
        resolve("cuda:7")


@pytest.mark.parametrize(("count", "words"), [(1, "only cuda:0 is there"), (4, "cuda:0 to cuda:3 are there")])
def test_a_gpu_that_is_not_there(count: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_count", lambda: count)
    with pytest.raises(UserError, match=words):
        resolve("cuda:7")


def test_a_slice_of_a_known_gpu_has_its_share_of_the_peaks() -> None:
    peaks = devices._catalogue_peaks("NVIDIA H200", 66)
    assert peaks is not None
    assert peaks["memory_bandwidth"] == pytest.approx(2.4e12)
    assert devices._catalogue_peaks("GeForce 256", 1) is None


def test_peaks_from_clocks() -> None:
    class Runtime:
        """A Tesla T4: 5 GHz GDDR6 on 256 bits, 1.59 GHz."""

        cudaDevAttrClockRate, cudaDevAttrMemoryClockRate, cudaDevAttrGlobalMemoryBusWidth = "core", "memory", "bus"  # noqa: N815

        def deviceGetAttribute(self, attribute: str, index: int) -> int:  # noqa: N802
            return {"core": 1_590_000, "memory": 5_001_000, "bus": 256}[attribute]

    peaks = devices._computed_peaks(Runtime(), 0, "sm_75", 40)
    assert peaks["memory_bandwidth"] == pytest.approx(320e9, rel=0.01)
    assert peaks["tensor_flops"] == pytest.approx(65e12, rel=0.01)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNIST_TUNE_HOST", "nobody")
    here = environment()
    assert here.host == "nobody"
    assert here.python.startswith("3.")
