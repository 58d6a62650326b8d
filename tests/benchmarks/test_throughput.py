"""Candidates a second, without a GPU: what is written and when, and what Kernel Tuner is given."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernels
from benchmarks import throughput
from tuner.devices import find
from tuner.kernel import Kernel
from tuner.task import ProblemResult, Settings
from tuner.types import Device, Environment, Kind

H200 = find("h200")

NAMES = {
    "float16": ("half",),
    "float32": ("float",),
    "int32": ("int", "int32_t"),
    "uint32": ("uint", "unsigned int", "uint32_t"),
}
"""By NumPy's type: the names that Kernel Tuner 1.5 looks for in a parameter; it warns where it finds none."""


def ours(kernel: Kernel, settings: Settings) -> tuple[ProblemResult, Device, Environment]:
    problem = kernel.problem(*throughput.SHAPE)
    spent = {
        "parent": dict.fromkeys(throughput.PARENT, 0.1),
        "compilers": dict.fromkeys(throughput.COMPILERS, 3.0),
        "gpu": {**dict.fromkeys(("period", "busy", "starved", *throughput.CHILD), 0.5), "share": 0.9},
    }
    result = ProblemResult(
        problem, Kind.MEASURED, None, 4.0, 3.5, settings.trials, settings.trials, {}, "trials", 10.0, spent
    )
    return result, H200, Environment(host="h", system="s", python="3")


class KernelTuner(ModuleType):
    """Takes note of what it is given."""

    given: tuple[Any, ...]
    options: dict[str, Any]

    def tune_kernel(self, *given: Any, **options: Any) -> Any:
        self.given, self.options = given, options
        return [{"time": 0.004}, {"time": "failed"}], {}


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> KernelTuner:
    made = KernelTuner("kernel_tuner")
    made.__spec__ = importlib.util.spec_from_loader("kernel_tuner", None)
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=0))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernel_tuner", made)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.5")
    return made


def run(out: Path, patch: pytest.MonkeyPatch, *arguments: str) -> int:
    patch.setattr(throughput, "ours", ours)
    patch.setattr(sys, "argv", ["throughput.py", "--out", str(out), *arguments])
    return throughput.main()


def test_the_search_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "t.json", monkeypatch) == 0
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["ours"]["per_second"] == 40.0
    assert (document["sampler"], document["device"]) == (Settings().sampler, "NVIDIA H200")
    assert "kernel_tuner" not in document
    assert "40.0 candidates a second" in capsys.readouterr().out


def test_what_is_done_is_written_though_kernel_tuner_fails(
    tuner: KernelTuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(throughput, "theirs", fails)
    with pytest.raises(RuntimeError):
        run(tmp_path / "t.json", monkeypatch, "--against-kernel-tuner", "--kernel-tuner-trials", "7")
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["ours_restricted"]["candidates"] == 7


def test_kernel_tuner_is_bounded_in_number_and_time(
    tuner: KernelTuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--against-kernel-tuner", "--kernel-tuner-trials", "7", "--kernel-tuner-limit", "30")
    assert run(tmp_path / "t.json", monkeypatch, *arguments) == 0
    assert tuner.options["strategy_options"] == {"max_fevals": 7, "time_limit": 30.0}
    theirs = json.loads((tmp_path / "t.json").read_text())["kernel_tuner"]
    assert (theirs["candidates"], theirs["right"], theirs["best_us"], theirs["limit_s"]) == (2, 1, 4.0, 30.0)


def test_kernel_tuner_knows_the_type_of_every_argument(tuner: KernelTuner) -> None:
    throughput.theirs(throughput.Restricted(), H200, 5, 10.0, 0)
    name, source, _, arguments, *_ = tuner.given
    found = re.search(rf"\b{name}\(([^)]*)\)", source)
    assert found is not None
    parameters = found.group(1).split(",")
    assert len(parameters) == len(arguments) == 7
    for parameter, argument in zip(parameters, arguments, strict=True):
        kind = str(np.asarray(argument).dtype)
        assert any(each in parameter for each in NAMES[kind]), f"{kind} for {parameter.strip()}"
    assert source.replace("unsigned int*", "unsigned*") == kernels.linear_forward.source.read_text()
