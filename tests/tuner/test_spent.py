"""Where the time went. Exact seconds, as the child's clock would give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.spent import Spent, sentence
from tuner.types import Binary
from tuner.worker import Answer


def test_the_gpu_starves_only_while_something_is_queued() -> None:
    spent = Spent()
    # Compiled long before the first: the child's first trial begins the period.
    spent.judged(Answer(None, 10.0, 11.0, {"verify": 0.6, "time": 0.4}), [1.0, 2.0])
    # Idle from 11.0 to 11.5, with another one compiled all the time.
    spent.judged(Answer(None, 11.5, 12.0, {"verify": 0.2}), [2.0, 11.4])
    # Idle from 12 to 15; the first that it could have begun with was compiled at 14.75.
    spent.judged(Answer(None, 15.0, 16.0), [14.75, 15.5])
    # Idle until the very moment.
    spent.judged(Answer(None, 19.0, 20.0), [19.0])
    gpu = spent.summary()["gpu"]
    assert gpu == {
        "period": 10.0,
        "busy": 3.5,
        "starved": 0.75,
        "load": 0.0,
        "verify": 0.8,
        "time": 0.4,
        "share": 0.925,
    }


def test_the_period_begins_when_the_child_is_warm() -> None:
    spent = Spent()
    spent.warmed_up()
    assert spent.period == 0.0
    assert spent.summary()["gpu"]["share"] is None


def test_phases() -> None:
    spent = Spent()
    with pytest.raises(KeyError), spent.during("ask"):
        raise KeyError
    spent.compiled(Binary(Path("x"), "x", "sm_90", 1, 0, 0, seconds=2.0), asked_at=1.0, ready_at=3.5)
    spent.compiled(Binary(Path("x"), "x", "sm_90", 1, 0, 0, seconds=2.0), asked_at=1.0, ready_at=2.9)
    summary = spent.summary()
    assert summary["parent"]["ask"] >= 0
    assert summary["compilers"] == {"compile": 4.0, "queue": 0.5}


def test_the_sentence_adds_problems_up() -> None:
    spent = Spent()
    spent.judged(Answer(None, 1.0, 2.0, {"load": 0.1, "verify": 0.5, "time": 0.4}), [])
    spent.judged(Answer(None, 2.5, 3.0), [0.0])
    text = sentence([spent.summary(), spent.summary()], 40, 10.0)
    assert text == (
        "40 new candidates in 10.0 s, 4.0 a second. Seconds: search begin 0.0, warm_up 0.0, ask 0.0, tell 0.0, "
        "record 0.0, wait 0.0, finals 0.0; compilers 0.0; GPU's process 3.0 of 4.0 (load 0.2, verify 1.0, time 0.8), "
        "and 75% of that time it was busy or nothing was queued for it."
    )
