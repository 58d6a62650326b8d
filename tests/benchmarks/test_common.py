"""What the scripts share: exit codes, and what is refused before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.common import check_writable, gpu, one_problem, script, timed_together
from tests.tuner.toy import TOY, InstantCompiler, Replayed
from tuner.devices import find
from tuner.errors import UserError
from tuner.judge import FinalsJob
from tuner.types import CacheState, Failure, Status

DEVICE = find("h200")
PROBLEM = TOY.problem(4096)


def refused() -> int:
    raise UserError("There is no GPU.")


def stopped() -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("main", "code", "said"),
    [
        (lambda: 0, 0, ""),
        (lambda: 1, 1, ""),
        (refused, 2, "benchmarks.it: There is no GPU.\n"),
        (stopped, 130, "benchmarks.it: stopped.\n"),
    ],
)
def test_a_script_ends_with_its_code_and_one_sentence(
    main: Callable[[], int], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        script("benchmarks.it", main)
    assert end.value.code == code
    assert capsys.readouterr().err == said


def test_without_a_gpu_it_is_said() -> None:
    with pytest.raises(UserError, match="no GPU is used here"):
        gpu("cpu", 1.0)


def test_a_mere_shape_is_two_problems() -> None:
    with pytest.raises(UserError, match="means 2 problems"):
        one_problem("32x10x10")
    assert one_problem("linear_forward 32x10x10 activation=none").option("activation") == "none"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.json")
    with pytest.raises(UserError, match="does not exist"):
        check_writable(tmp_path / "no such folder" / "new.json")


def together(worker: Replayed, compiler: InstantCompiler) -> object:
    configs = list(TOY.space(PROBLEM, DEVICE))[:3]
    return timed_together(
        TOY,
        PROBLEM,
        configs,
        device=DEVICE,
        cache=CacheState.HOT,
        seed=0,
        worker=worker,
        pool=lambda: compiler,
    )


def test_configurations_that_do_not_compile_any_more_are_said() -> None:
    worker = Replayed()
    with pytest.raises(UserError, match=r"does not compile now \(error: no such thing\)"):
        together(worker, InstantCompiler(broken=lambda _: True))
    assert worker.finals == []


def test_a_child_that_dies_while_it_times_them_is_said() -> None:
    class Dying(Replayed):
        def call(self, request: object, *, limit_s: float | None = None) -> object:
            assert isinstance(request, FinalsJob)
            return Failure(Status.RUNTIME, "the process was ended by SIGSEGV")

    with pytest.raises(UserError, match=r"3 configurations could not be timed together \(the process was ended"):
        together(Dying(), InstantCompiler())
