"""A tiny kernel, devices and rows that the store's tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.kernel import Argument, Kernel, Work
from tuner.space import Constraint, Param, Space
from tuner.store import Store
from tuner.types import CacheState, Config, Device, Environment, Kind, Launch, Measurement, Problem, Status, Value

ROOT = Path(__file__).parents[3]
"""Where a subprocess finds the packages."""

T4 = Device(
    name="Tesla T4",
    arch="sm_75",
    sm_count=40,
    shared_per_block=65536,
    shared_per_sm=65536,
    registers_per_sm=65536,
    threads_per_sm=1024,
    blocks_per_sm=16,
    l2_bytes=4 << 20,
    memory_bytes=16 << 30,
    memory_bandwidth=320e9,
    l2_bandwidth=1.27e12,
    tensor_flops=65e12,
    clock_hz=1.59e9,
)
RTX_2080_TI = replace(T4, name="RTX 2080 Ti", sm_count=68, memory_bytes=11 << 30, memory_bandwidth=616e9)
A100 = replace(T4, name="A100", arch="sm_80", sm_count=108, shared_per_block=166912, memory_bytes=80 << 30)
H200 = replace(T4, name="NVIDIA H200", arch="sm_90", sm_count=132, shared_per_block=232448, memory_bytes=141 << 30)
DEVICES = (T4, RTX_2080_TI, A100, H200)

ENVIRONMENT = Environment(host="bench", system="Linux", python="3.11", driver="580.1", nvrtc="13.0", compiler="g++ 12")


class Product(Kernel):
    """Declares a space and nothing to run; its source is whatever file it is given."""

    name = "product"
    dims = ("batch", "inputs", "outputs")
    options: Mapping[str, tuple[str, ...]] = {"activation": ("relu", "none")}

    def __init__(self, source: Path) -> None:
        self.source = source  # type: ignore[misc]

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(
            (Param("BLOCK_N", (16, 32, 64, 128, 256), 32), Param("STAGES", (1, 2, 3, 4), 2)),
            (
                Constraint(
                    "the stages do not fit into shared memory",
                    lambda config: (
                        config.integer("BLOCK_N") * config.integer("STAGES") * 128 <= device.shared_per_block
                    ),
                ),
                Constraint(
                    "the tile is wider than the matrix", lambda config: config.integer("BLOCK_N") <= problem["outputs"]
                ),
            ),
        )

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        raise AssertionError("a store launches nothing")

    def launch(self, problem: Problem, config: Config) -> Launch:
        raise AssertionError("a store launches nothing")

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        raise AssertionError("a store launches nothing")

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError("a store launches nothing")

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        raise AssertionError("a store launches nothing")

    def work(self, problem: Problem, config: Config) -> Work:
        raise AssertionError("a store launches nothing")


def config(block_n: int = 64, stages: int = 2) -> Config:
    return Config.of(BLOCK_N=block_n, STAGES=stages)


def measured(problem: Problem, setting: Config, median_us: float, **more: Any) -> Measurement:
    values: dict[str, Any] = {
        "status": Status.OK,
        "kind": Kind.MEASURED,
        "samples_us": (median_us - 0.5, median_us, median_us + 0.5),
        "median_us": median_us,
        "spread": 0.5 / median_us,
        "error": 1e-4,
        "tolerance": 1e-3,
        "cache": CacheState.HOT,
        "verified_by": "cuda",
    }
    return Measurement(problem, setting, **(values | more))


def predicted(problem: Problem, setting: Config, median_us: float, **more: Any) -> Measurement:
    return measured(problem, setting, median_us, kind=Kind.PREDICTED, samples_us=(median_us,), cache=None, **more)


def failed(problem: Problem, setting: Config, status: Status = Status.WRONG, **more: Any) -> Measurement:
    values: dict[str, Any] = {"kind": Kind.MEASURED, "message": "the error is 0.3, over 0.001"}
    return Measurement(problem, setting, status, **(values | more))


class Bench:
    """A store with a kernel: records and looks up with few words."""

    def __init__(self, store: Store, kernel: Product) -> None:
        self.store = store
        self.kernel = kernel

    def problem(self, batch: int = 32, inputs: int = 784, outputs: int = 128, activation: str = "relu") -> Problem:
        return self.kernel.problem(batch, inputs, outputs, activation=activation)

    def record(self, measurement: Measurement, device: Device = T4) -> str:
        return self.store.record(measurement, kernel=self.kernel, device=device, environment=ENVIRONMENT)

    def lookup(self, problem: Problem, device: Device = T4):
        return self.store.lookup(self.kernel, problem, device)


@pytest.fixture
def kernel(tmp_path: Path) -> Product:
    source = tmp_path / "product.cu"
    source.write_text('extern "C" __global__ void product() {}\n')
    return Product(source)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test's store is."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder / "tuning.db"


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without rows, made once: the migrations take longer than most tests."""
    file = tmp_path_factory.mktemp("empty") / "tuning.db"
    Store.open(file).close()
    return file


@pytest.fixture
def bench(file: Path, empty: Path, kernel: Product) -> Iterator[Bench]:
    shutil.copyfile(empty, file)
    with Store.open(file) as store:
        yield Bench(store, kernel)
