"""The doctor: what it finds, what it calls missing, and that it mends nothing by itself."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.trainer.report_rows import fill
from trainer import doctor
from trainer.data import SAMPLE
from trainer.doctor import run_doctor
from tuner import compile as compiler
from tuner.errors import UserError
from tuner.store import Store
from tuner.types import Failure, Status

NO_GPU: dict[str, Any] = {"reason": "cudaErrorNoDevice"}
GPU: dict[str, Any] = {"names": ["NVIDIA H200 (sm_90)"], "serves": 13000, "runtime": 13000}
TORCH: dict[str, Any] = {"version": "2.13.0", "cuda": None, "gpu": False}
CHILD = doctor._child
"""The real one: `give` replaces it in the module."""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU where everything else is in order."""
    monkeypatch.setenv("MNIST_TUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MNIST_TUNE_OFFLINE", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    give(monkeypatch)


def give(
    monkeypatch: pytest.MonkeyPatch,
    *,
    gpu: dict[str, Any] | str = NO_GPU,
    torch: dict[str, Any] | str = TORCH,
    driver: str | None = None,
) -> None:
    monkeypatch.setattr(doctor, "_child", lambda code: gpu if "cupy" in code else torch)
    monkeypatch.setattr(doctor, "_driver_version", lambda: driver)


def look(db: Path, data: Path | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the checks by name."""
    out = io.StringIO()
    code = run_doctor(str(db), data, as_json=True, console=Console(file=out, width=100))
    document = json.loads(out.getvalue())
    assert document["healthy"] is (code == 0)
    return code, {check["name"]: check for check in document["checks"]}


def test_a_machine_without_a_gpu_is_healthy(tmp_path: Path) -> None:
    code, checks = look(tmp_path / "tuning.db")
    assert code == 0
    assert {name: check["state"] for name, check in checks.items()} == {
        "GPU": "note",
        "driver": "note",
        "NVRTC": "ok",
        "CUDA headers": "ok",
        "g++": "ok",
        "cache": "ok",
        "store": "note",
        "data": "note",
        "PyTorch": "ok",
    }


def test_nvrtc_really_compiles_tensor_core_code(tmp_path: Path) -> None:
    _, checks = look(tmp_path / "tuning.db")
    assert checks["NVRTC"]["found"] == f"{compiler.nvrtc_version()}, compiles WMMA for sm_75"
    assert list((tmp_path / "cache" / "cubin").glob("probe-sm_75-*.cubin"))


def test_looking_makes_no_store(tmp_path: Path) -> None:
    _, checks = look(tmp_path / "tuning.db")
    assert checks["store"]["mend"] == "mnist-tune search"
    assert not (tmp_path / "tuning.db").exists()


def test_a_store_with_its_rows_and_devices(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        fill(store)
    _, checks = look(tmp_path / "tuning.db")
    assert checks["store"]["state"] == "ok"
    assert "5 rows (NVIDIA H200, Tesla T4)" in checks["store"]["found"]


def test_a_store_that_is_none_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tuning.db").write_text("not a database, whatever its name says " * 50)
    code, checks = look(tmp_path / "tuning.db")
    assert code == 1
    assert checks["store"]["state"] == "missing"
    assert "is not a SQLite database" in checks["store"]["found"]


def test_a_gpu_with_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, gpu=GPU, driver="580.159", torch=TORCH | {"cuda": "13.0", "gpu": True})
    code, checks = look(tmp_path / "tuning.db")
    assert code == 0
    assert checks["GPU"] == {"name": "GPU", "state": "ok", "found": "NVIDIA H200 (sm_90)", "mend": ""}
    assert checks["driver"]["found"] == "NVIDIA 580.159"
    assert checks["PyTorch"]["found"] == "2.13.0 (CUDA 13.0)"


def test_a_driver_that_is_too_old_for_cupy_asks_for_the_other_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, gpu=GPU | {"serves": 12080}, driver="570.1")
    code, checks = look(tmp_path / "tuning.db")
    assert code == 1
    assert checks["GPU"]["mend"].endswith("[cuda12]'")


def test_a_driver_whose_gpu_cannot_be_used_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, driver="580.159")
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["GPU"]["state"]) == (0, "note")
    assert "cudaErrorNoDevice" in checks["GPU"]["found"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _, checks = look(tmp_path / "tuning.db")
    assert checks["GPU"]["mend"] == "unset CUDA_VISIBLE_DEVICES"


def test_pytorch_that_does_not_see_the_gpu_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, gpu=GPU, driver="580.159")
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["PyTorch"]["state"]) == (0, "note")
    assert "does not see the GPU" in checks["PyTorch"]["found"]


def test_broken_cupy_and_pytorch_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, gpu="ModuleNotFoundError: No module named 'cupy'", torch="ImportError: libfoo.so")
    code, checks = look(tmp_path / "tuning.db")
    assert code == 1
    assert checks["GPU"]["mend"].endswith("[cuda13]'")
    assert checks["PyTorch"]["mend"] == f"{sys.executable} -m pip install torch"


def test_without_nvrtc_and_without_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> str:
        raise UserError("NVRTC was not found; install them with: pip install something.")

    monkeypatch.setattr(compiler, "include_dir", nothing)
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["NVRTC"]["state"], checks["CUDA headers"]["state"]) == (1, "ok", "missing")
    monkeypatch.setattr(compiler, "nvrtc_version", nothing)
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["NVRTC"]["found"]) == (1, "NVRTC was not found")
    assert checks["NVRTC"]["mend"].endswith("[cuda13]'")


def test_nvrtc_that_cannot_compile_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Failure(Status.COMPILE, "probe.cu(1): catastrophic error")
    monkeypatch.setattr(compiler, "compile_source", lambda *_: broken)
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["NVRTC"]["state"]) == (1, "missing")
    assert "catastrophic error" in checks["NVRTC"]["found"]


def test_gpp_is_needed_only_where_nothing_else_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "g++" else which(name))
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["g++"]["state"], checks["g++"]["mend"]) == (1, "missing", "apt-get install g++")
    give(monkeypatch, gpu=GPU, driver="580.159")
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["g++"]["state"]) == (0, "note")


def test_gpp_that_does_not_compile_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "g++"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'cc1plus: error: not installed' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["g++"]["state"]) == (1, "missing")
    assert "cc1plus: error: not installed" in checks["g++"]["found"]


def test_an_unwritable_cache_is_missing_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MNIST_TUNE_CACHE", str(tmp_path / "file"))
    code, checks = look(tmp_path / "tuning.db")
    assert (code, checks["cache"]["state"]) == (1, "missing")
    assert checks["cache"]["mend"].startswith("export MNIST_TUNE_CACHE=")
    assert (checks["NVRTC"]["state"], checks["data"]["state"]) == ("note", "note")


def test_data_that_train_would_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, checks = look(tmp_path / "tuning.db")
    assert checks["data"]["found"] == "downloads are off: the shipped sample of MNIST"
    monkeypatch.delenv("MNIST_TUNE_OFFLINE")
    _, checks = look(tmp_path / "tuning.db")
    assert "train downloads it" in checks["data"]["found"]
    assert checks["data"]["mend"] == "mnist-tune train --data DIR"


def test_a_data_folder(tmp_path: Path) -> None:
    _, checks = look(tmp_path / "tuning.db", SAMPLE)
    assert checks["data"]["state"] == "ok"
    assert "5,000 images to train, 1,000 to test" in checks["data"]["found"]
    code, checks = look(tmp_path / "tuning.db", tmp_path)
    assert (code, checks["data"]["state"]) == (1, "missing")


def test_the_table_shows_each_mark_and_each_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, torch="ImportError: [libfoo.so]")
    out = io.StringIO()
    assert run_doctor(str(tmp_path / "tuning.db"), None, as_json=False, console=Console(file=out, width=200)) == 1
    lines = out.getvalue().splitlines()
    assert any(line.split()[:2] == ["note", "GPU"] for line in lines)
    assert any(line.split()[:2] == ["ok", "NVRTC"] for line in lines)
    (torch,) = [index for index, line in enumerate(lines) if "does not work: ImportError: [libfoo.so]" in line]
    assert lines[torch].startswith("missing")
    assert lines[torch + 1].split() == [sys.executable, "-m", "pip", "install", "torch"]
    assert lines[-1] == "Something needed is missing: see above."


def test_a_child_that_fails_gives_its_last_line() -> None:
    assert CHILD("print('noise'); print('{\"a\": 1}')") == {"a": 1}
    assert CHILD("raise ValueError('no')") == "ValueError: no"
    assert CHILD("import os; os._exit(3)") == "ended with code 3"


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_CHILD_S", 0.2)
    assert CHILD("import time; time.sleep(60)") == "no answer within 0.2 s"
