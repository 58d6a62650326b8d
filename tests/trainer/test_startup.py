"""Where the time to the first step goes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import ROOT
from trainer.startup import PARTS, Started, Startup, process_age


class Clock:
    """In the place of `time.monotonic`: time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> str:
        self.now += seconds
        return "done"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("trainer.startup.time.monotonic", clock)
    return clock


def test_every_moment_counts_for_the_innermost_part(clock: Clock) -> None:
    startup = Startup("now", {}, _last=clock())
    clock.pass_by(2.0)
    with startup.part("lookup"):
        clock.pass_by(3.0)
        assert startup.within("check", clock.pass_by)(5.0) == "done"
        clock.pass_by(4.0)
    with startup.part("prepare"):
        clock.pass_by(1.0)
    clock.pass_by(0.5)
    started = startup.done(50)
    assert started.parts == {"other": 2.5, "lookup": 7.0, "check": 5.0, "prepare": 1.0}
    assert started.total_s == 15.5
    assert started.first_steps == 50


def test_a_part_that_fails_is_counted_too() -> None:
    startup = Startup.from_here("now")

    def fail() -> None:
        time.sleep(0.02)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        startup.within("context", fail)()
    assert startup.done(1).parts["context"] >= 0.02


def test_an_unknown_part_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no part 'lunch'"), Startup.from_here("now").part("lunch"):
        pass


def test_the_line_and_the_document() -> None:
    started = Started("the start of the process", {"imports": 0.4, "data": 1.0, "context": 0.25, "check": 0.001}, 50)
    assert str(started) == (
        "First 50 steps done 1.65 s after the start of the process, 0.40 s without reading the data and creating the "
        "CUDA context: imports 0.40, reading the data 1.00, CUDA context 0.25."
    )
    document = started.document()
    assert [key for key in document if key.removesuffix("_s") in PARTS] == [f"{name}_s" for name in PARTS]
    assert document["total_s"] == pytest.approx(1.651)
    assert document["without_data_and_context_s"] == pytest.approx(0.401)
    assert (document["compile_s"], document["first_call_steps"]) == (0.0, 50)


def test_a_process_knows_its_age() -> None:
    program = (
        "import time; time.sleep(0.2); from trainer.startup import Startup, process_age; print(process_age()[0]);"
        "s = Startup.of_process(); time.sleep(0.1); s.imported(); print(s.done(1).parts['imports'])"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    whole = time.monotonic() - began
    age, imports = map(float, done.stdout.split())
    assert 0.2 <= age <= whole + 0.02  # the kernel counts in ticks
    assert 0.3 <= imports <= whole + 0.02


@pytest.mark.parametrize("content", [None, "", "1 (a) b", "1 (python) " + "x " * 50])
def test_where_the_kernel_tells_nothing_it_is_said(content: str | None, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    if content is not None:
        stat.write_text(content)
    age_s, since = process_age(stat)
    assert age_s <= time.process_time()
    assert "no /proc/self/stat" in since


def test_training_alone_imports_neither_pytorch_nor_what_a_search_needs(tmp_path: Path) -> None:
    """Each of these takes a large part of a second, or more."""
    arguments = ["train", "--width", "16", "--layers", "1", "--steps", "3", "--device", "cpu", "--no-race", "--json"]
    program = (
        f"import sys; sys.argv = ['mnist-tune', *{arguments!r}, '--db', {str(tmp_path / 't.db')!r}]\n"
        "from cli import app\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'optuna', 'scipy', 'matplotlib', 'jinja2', 'pooch', 'cmaes', 'fastapi'}\n"
        "print('imported:', *sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"
