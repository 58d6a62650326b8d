"""`run_search`: what a user sees. The first test is the real path without a GPU: NVRTC, the model, the emulation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernels import ALL
from tests.tuner.toy import ENVIRONMENT, TOY, InstantCompiler, Replayed
from tuner import run, tune
from tuner.devices import find
from tuner.errors import UserError
from tuner.judge import Describe
from tuner.run import INTERRUPTED, NOT_ALL_FOUND, run_search
from tuner.store import Store
from tuner.task import Settings
from tuner.types import Kind, Status

PROBLEM = TOY.problem(4096)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def printed(store: Store, **options: Any) -> tuple[int, str]:
    paper = StringIO()
    console = Console(file=paper, width=120)
    options = {"problems": [PROBLEM], "kernels": {"toy": TOY}, "settings": Settings(trials=12), **options}
    return run_search(options.pop("problems"), store=store, console=console, **options), paper.getvalue()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """A machine that seems to have an H200."""

    class Found(Replayed):
        def call(self, request: Any, *, limit_s: float | None = None) -> Any:
            if isinstance(request, Describe):
                return find("h200"), ENVIRONMENT
            return super().call(request, limit_s=limit_s)

        def close(self) -> None: ...

        def __enter__(self) -> Found:
            return self

        def __exit__(self, *_: object) -> None: ...

    found = Found()
    monkeypatch.setattr(run, "Worker", lambda *_, **__: found)
    monkeypatch.setattr(tune, "CompilePool", lambda _: InstantCompiler())
    return found


def test_without_a_gpu_candidates_are_compiled_predicted_and_verified(store: Store) -> None:
    kernel = ALL["softmax_cross_entropy"]
    problem = kernel.problem(32, 10)
    options: dict[str, Any] = {"problems": [problem], "kernels": ALL, "device": "cpu"}
    options["settings"] = Settings(trials=3, verify=1, workers=1)
    code, text = printed(store, **options)
    assert code == 0
    assert "No GPU is used" in text
    assert "predicted us" in text
    [row] = [observation.measurement for observation in store.observations()]
    assert (row.status, row.kind, row.verified_by) == (Status.OK, Kind.PREDICTED, "emulation")
    assert [device.name for device in store.devices()] == ["Tesla T4"]
    code, again = printed(store, **options)
    assert code == 0
    assert len(store.observations()) == 1
    assert row.config.label in again


def test_with_a_gpu_the_table_has_times_and_ratios(store: Store, gpu: Replayed) -> None:
    code, text = printed(store)
    assert code == 0
    assert "Tuning on NVIDIA H200 (sm_90, 132 SMs)." in text
    assert "vs cuBLAS" in text
    best = min(store.observations(), key=lambda observation: observation.measurement.median_us or 0).measurement
    assert f"toy 4096: {best.config.label}" in text
    assert f"{6.0 / (best.median_us or 0):.2f}x" in text


def test_json_is_all_that_is_printed(store: Store, gpu: Replayed, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(store, as_json=True)
    assert (code, text) == (0, "")
    data = json.loads(capsys.readouterr().out)
    assert data["device"]["name"] == "NVIDIA H200"
    assert data["kind"] == "measured"
    assert data["interrupted"] is False
    [problem] = data["problems"]
    assert problem["trials"] == 12
    assert problem["us"] > 0


def test_ctrl_c_keeps_what_is_recorded_and_says_so(store: Store, gpu: Replayed) -> None:
    gpu._patience = 5
    code, text = printed(store)
    assert code == INTERRUPTED
    assert "Everything recorded so far is stored" in text
    assert len(store.observations()) == 5


def test_no_right_configuration_is_said_and_is_no_success(store: Store, gpu: Replayed) -> None:
    gpu._wrong = lambda _: True
    code, text = printed(store)
    assert code == NOT_ALL_FOUND
    assert "No right configuration was found for: toy 4096." in text
    assert "wrong:12" in text


def test_a_kernel_that_does_not_fit_the_device_is_skipped_and_no_failure(store: Store, gpu: Replayed) -> None:
    resident = ALL["mlp_resident"]
    problem = resident.problem(32, 784, 4096, 3, 10, 64)
    kernels = {"toy": TOY, "mlp_resident": resident}
    code, text = printed(store, problems=[PROBLEM, problem], kernels=kernels)
    assert code == 0
    assert "Skipped, as no configuration fits this device: mlp_resident 32x784x4096x3x10x64." in text
    assert "No right configuration" not in text
    code, _ = printed(store, problems=[problem], kernels=kernels)
    assert code == NOT_ALL_FOUND


def test_what_no_emulation_can_verify_is_skipped_without_a_gpu(store: Store) -> None:
    problem = ALL["mlp_streaming"].problem(32, 784, 512, 3, 10, 64)
    code, text = printed(store, device="cpu", problems=[problem], kernels=ALL)
    assert code == NOT_ALL_FOUND
    assert "Skipped, as it takes a GPU to verify what is this large: mlp_streaming 32x784x512x3x10x64." in text


def test_a_space_that_ended_early_is_said(store: Store, gpu: Replayed) -> None:
    _, text = printed(store, settings=Settings(trials=500, sampler="grid"))
    assert "every valid configuration having been tried: 1" in text


def test_a_search_that_settled_is_said(store: Store, gpu: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.stopping.LEAST", 3)
    monkeypatch.setattr("tuner.stopping.SHARE", 0.0)
    _, text = printed(store, settings=Settings(trials=50, sampler="random"))
    assert "as more would not gain more than the noise: 1; --no-early-stop goes on" in text


def test_a_tie_is_said(store: Store, gpu: Replayed) -> None:
    gpu._final_us = lambda _: 1.0
    _, text = printed(store)
    assert "(the simplest of 5 that cannot be told apart)" in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(trials=0), "--trials 0"),
        (Settings(timeout_s=0.0), "--timeout 0"),
        (Settings(timeout_s=float("nan")), "--timeout nan"),
        (Settings(seed=-1), "--seed -1"),
        (Settings(sampler="guess"), "choose one of: gp, tpe, random, grid, cmaes"),
        (Settings(arch="turing"), "write it as sm_75"),
        (Settings(arch="sm_999"), r"NVRTC [\d.]+ does not compile for sm_999; it knows sm_75, sm_80, "),
        (Settings(predict_for="voodoo"), "No GPU called 'voodoo'"),
    ],
)
def test_settings_that_make_no_sense(settings: Settings, words: str, store: Store) -> None:
    with pytest.raises(UserError, match=words):
        printed(store, settings=settings, device="cpu")


def test_nothing_to_tune(store: Store) -> None:
    with pytest.raises(UserError, match="nothing to tune"):
        printed(store, problems=[])


def test_an_architecture_that_the_gpu_does_not_run(store: Store, gpu: Replayed) -> None:
    with pytest.raises(UserError, match="runs sm_90, not sm_75"):
        printed(store, settings=Settings(arch="sm_75"))


def test_a_device_that_is_not_understood_is_told_by_the_child(store: Store) -> None:
    with pytest.raises(UserError, match="--device tpu is not understood"):
        printed(store, device="tpu")
