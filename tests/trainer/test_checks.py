"""What has passed its check is remembered, as long as nothing changes that could change the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kernels
from tests.trainer.doubling import SOURCE, Doubling
from tests.trainer.plans import T4
from tests.trainer.report_rows import LAPTOP
from trainer.checks import Checker
from trainer.plan import Choice
from tuner.errors import UserError
from tuner.store import Rung
from tuner.types import Config, Environment, Failure, Status


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the kernel `doubling`, which the step seems to have; like no other, so the cache does not know it yet."""
    file = tmp_path / "doubling.cu"
    file.write_text(f"{SOURCE}// {tmp_path}\n")
    monkeypatch.setitem(kernels.ALL, "doubling", Doubling(file))
    return file


def choice(threads: int = 32, n: int = 70) -> Choice:
    return Choice(kernels.ALL["doubling"].problem(n), Config.of(THREADS=threads), Rung.DEFAULT, None)


def check(*choices: Choice, environment: Environment = LAPTOP) -> tuple[list[Failure | None], int]:
    """The answers of a new checker, and how many of them it had to work for."""
    with Checker(T4, environment, None) as checker:
        return [checker(item) for item in choices], checker.checked


def test_what_passed_is_not_run_again(source: Path) -> None:
    assert check(choice(), choice()) == ([None, None], 1)
    assert check(choice()) == ([None], 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda source: source.write_text(source.read_text() + "// faster\n"),
        lambda source: source.with_name("common.cuh").write_text("// included\n"),
    ],
    ids=["source", "header"],
)
def test_a_changed_source_is_checked_anew(source: Path, change: Callable[[Path], object]) -> None:
    source.write_text('#include "common.cuh"\n' + source.read_text())
    source.with_name("common.cuh").write_text("// empty\n")
    assert check(choice()) == ([None], 1)
    change(source)
    assert check(choice()) == ([None], 1)


def test_so_are_another_configuration_problem_and_compiler(source: Path) -> None:
    assert check(choice(), choice(threads=64), choice(n=71)) == ([None, None, None], 3)
    assert check(choice(), choice(threads=64), choice(n=71)) == ([None, None, None], 0)
    assert check(choice(), environment=replace(LAPTOP, compiler="g++ 99")) == ([None], 1)


def test_a_wrong_result_is_a_failure_and_is_not_remembered(source: Path) -> None:
    source.write_text(source.read_text().replace("2 *", "3 *"))
    for _ in range(2):
        [failure], worked = check(choice())
        assert failure is not None
        assert (failure.status, worked) == (Status.WRONG, 1)
        # 3 x against 2 x is off by half of the reference.
        assert "y" in failure.message


def test_a_source_that_does_not_compile_is_a_failure(source: Path) -> None:
    source.write_text(source.read_text().replace("float* y", "flout* y"))
    [failure], _ = check(choice())
    assert failure is not None
    assert failure.status is Status.COMPILE
    assert "flout" in failure.message


def test_a_write_outside_of_the_output_is_a_failure(source: Path) -> None:
    source.write_text(source.read_text().replace("if (i < N) ", ""))
    [failure], _ = check(choice())
    assert failure is not None
    assert failure.status in {Status.RUNTIME, Status.WRONG}


def test_without_gpp_it_says_what_to_do(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"g\+\+ was not found.*apt install g\+\+"):
        check(choice())


def test_an_unwritable_cache_says_what_to_do(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNIST_TUNE_CACHE", str(source / "cache"))
    with pytest.raises(UserError, match="set MNIST_TUNE_CACHE to a folder that can"):
        check(choice())
