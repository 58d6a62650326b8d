"""Headers that are parsed once change no machine code and no message."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path

import pytest

import kernels
from tuner import compile as module
from tuner.compile import CompilePool, compile_source
from tuner.devices import find
from tuner.headers import kept, plain, precompiled
from tuner.types import Binary, Failure, Status

PROBLEM = kernels.linear_forward.problem(32, 784, 128)


def compiled(kernel: str, arch: str, kept: Path | None, patch: pytest.MonkeyPatch, cache: Path) -> Binary:
    with patch.context() as here:
        here.setenv("MNIST_TUNE_CACHE", str(cache))
        here.setattr(module, "_parsed", kept)
        declared = kernels.ALL[kernel]
        problem = PROBLEM if kernel == "linear_forward" else declared.problem(32, 10)
        config = declared.space(problem, find("h200" if arch == "sm_90" else "t4")).default()
        built = compile_source(declared.source, declared.name, declared.defines(problem, config), arch)
        assert isinstance(built, Binary), built
        return built


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_the_machine_code_is_the_same(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for kernel in ("linear_forward", "softmax_cross_entropy", "linear_forward"):
        quick = compiled(kernel, arch, kept, monkeypatch, tmp_path / "quick")
        usual = compiled(kernel, arch, None, monkeypatch, tmp_path / "usual")
        assert quick.path.read_bytes() == usual.path.read_bytes()
        assert (quick.registers, quick.static_shared_bytes) == (usual.registers, usual.static_shared_bytes)
    assert len(list(kept.iterdir())) <= 2, "what was parsed for one kernel serves the next"


@pytest.mark.parametrize("parsed", [False, True])
def test_an_error_is_at_its_place_in_the_source(parsed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "bad.cu"
    source.write_text('#include <cuda_fp16.h>\nextern "C" __global__ void bad() {\n    undeclared = TILE;\n}\n')
    monkeypatch.setattr(module, "_parsed", tmp_path if parsed else None)
    seen = compile_source(source, "bad", {"TILE": 16}, "sm_75")
    assert isinstance(seen, Failure)
    assert seen.status is Status.COMPILE
    assert seen.message.startswith('bad.cu(3): error: identifier "undeclared" is undefined')


def test_a_source_without_these_headers_stays_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "own.cu"
    source.write_text("#include <mma_of_mine.h>\n// #include <mma.h> is in a comment\n")
    assert precompiled(source, {"TILE": 16}, tmp_path) is None
    assert plain(source, {"TILE": 16}) == (source.read_text(), ("-DTILE=16",))


@pytest.mark.parametrize("name", ["CUDA_NO_HALF", "__CUDA_NO_HALF_OPERATORS__"])
def test_a_macro_that_a_header_may_look_at_comes_before_it(name: str, tmp_path: Path) -> None:
    source = tmp_path / "own.cu"
    source.write_text("#include <cuda_fp16.h>\n")
    assert precompiled(source, {"TILE": 16}, tmp_path) is not None
    assert precompiled(source, {"TILE": 16, name: 1}, tmp_path) is None


def test_a_pool_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNIST_TUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = kernels.linear_forward.space(PROBLEM, find("t4")).default()
    with CompilePool(1) as pool:
        wait([pool.submit(kernels.linear_forward, PROBLEM, config, "sm_75")])
        assert list(tmp_path.glob("mnist-tune-headers-*/*/*.pch"))
    assert not list(tmp_path.glob("mnist-tune-headers-*"))


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    names = [
        f"mnist-tune-headers-{int(gone.stdout)}-a",
        f"mnist-tune-headers-{os.getpid()}-b",
        "mnist-tune-headers-x-y",
    ]
    for name in names:
        (tmp_path / name / "1").mkdir(parents=True)
    with kept() as own:
        assert {path.name for path in tmp_path.iterdir()} == {*names[1:], Path(own).name}
