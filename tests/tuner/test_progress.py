"""What the progress displays show."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tests.tuner.toy import TOY
from tuner.progress import Live, Plain, Progress, Silent, standing
from tuner.types import Config, Kind, Measurement, Status

PROBLEM = TOY.problem(1000)
BEST = Measurement(PROBLEM, Config.of(TILE=16), Status.OK, Kind.MEASURED, median_us=4.0)


def shown(progress: Progress) -> None:
    with progress:
        progress.begin(1, 2, PROBLEM, 10)
        progress.note("a note")
        progress.library(6.0)
        progress.trial(BEST, BEST, 1)
        progress.end(BEST)
        progress.begin(2, 2, PROBLEM, 10)
        progress.trial(BEST, None, 1)
        progress.end(None)


def test_standing() -> None:
    assert standing(None, 6.0) == "none right so far"
    assert standing(BEST, None) == "best 4.00 us"
    assert standing(BEST, 6.0) == "best 4.00 us, 1.50x cuBLAS"


def test_plain_lines() -> None:
    paper = StringIO()
    shown(Plain(Console(file=paper), every_s=0.0))
    assert paper.getvalue().splitlines() == [
        "[1/2] toy 1000",
        "  a note",
        "[1/2] toy 1000: 1 of 10, best 4.00 us, 1.50x cuBLAS",
        "[1/2] toy 1000: done, best 4.00 us, 1.50x cuBLAS",
        "[2/2] toy 1000",
        "[2/2] toy 1000: 1 of 10, none right so far",
        "[2/2] toy 1000: done, none right so far",
    ]


def test_plain_lines_are_now_and_then() -> None:
    paper = StringIO()
    shown(Plain(Console(file=paper), every_s=3600.0))
    assert "1 of 10" not in paper.getvalue()


def test_live_bars_name_the_problem_and_give_the_terminal_back() -> None:
    paper = StringIO()
    live = Live(Console(file=paper, force_terminal=True, width=160))
    with live:
        live.begin(1, 2, PROBLEM, 10)
        live.library(6.0)
        live.trial(BEST, BEST, 3)
        live._bars.refresh()
        live.note("verifying")
        live._bars.refresh()
        live.end(BEST)
    text = paper.getvalue()
    assert "toy 1000" in text
    assert "best 4.00 us, 1.50x cuBLAS" in text
    assert "verifying" in text
    assert "\x1b[?25h" in text  # the cursor is shown again


def test_silence() -> None:
    shown(Silent())
