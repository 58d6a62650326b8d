"""benchmarks/whole_steps.py: what it profiles, and how it says what it found; the GPU's part is faked."""

from __future__ import annotations

from typing import Any

import kernels
from benchmarks.whole_steps import LongRun, LongTimes, fastest, profiles, table
from kernels.problems import streaming_problem
from tests.trainer.plans import add
from trainer.mlp import Network
from tuner.devices import find
from tuner.store import Store
from tuner.types import Config, Failure, Status

H200 = find("H200")
NETWORK = Network(512)
PROBLEM = streaming_problem(512, 3, 32)
FAST = Config.of(CLUSTER=1, GRID_N=16, GRID_K=8, WARPS=8, SLOTS=4, ROUNDS=1)
SLOW = Config.of(FAST, SLOTS=1)


class Faked:
    """The child that owns the GPU."""

    def __init__(self, answer: LongTimes | Failure) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def call(self, request: Any, *, limit_s: float | None = None) -> Any:
        self.asked.append(request)
        return self.answer


def profiled(answer: LongTimes | Failure) -> tuple[list[dict[str, Any]], Faked]:
    worker = Faked(answer)
    with Store.open("sqlite://") as store:
        for config, us in ((SLOW, 900.0), (FAST, 640.0)):
            add(store, kernels.mlp_streaming, PROBLEM, config, us, device=H200)
        assert fastest(store, PROBLEM, H200, 2) == [FAST, SLOW]
        return list(profiles([NETWORK], 100, 1, store, H200, worker)), worker  # type: ignore[arg-type]


def test_the_fastest_stored_configuration_is_run_over_a_long_launch_and_with_counters() -> None:
    cycles = dict.fromkeys(kernels.mlp_streaming.parts, 0.0) | {"product h": 1000.0, "sums h": 250.0}
    [row], worker = profiled(LongTimes((10.0, 11.0, 12.0), cycles))
    [request] = worker.asked
    assert isinstance(request, LongRun)
    assert (request.config, request.problem["steps"]) == (FAST, 100)
    assert request.binary.path != request.profiled.path
    assert row["status"] == "ok"
    said = table([row])
    assert "mlp_streaming H=512" in said
    assert "11.000 us per step" in said
    assert "product h 1000, sums h 250 = 1250" in said


def test_what_fails_is_said() -> None:
    [row], _ = profiled(Failure(Status.RUNTIME, "a block did not answer"))
    assert "runtime a block did not answer" in table([row])


def test_what_was_not_measured_is_not_profiled() -> None:
    with Store.open("sqlite://") as store:
        assert fastest(store, PROBLEM, H200, 2) == []
