"""Winners of several seeds, compared as the benchmark does it; the GPU is a replayed source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import seeds
from tests.tuner.toy import ENVIRONMENT, TOY, InstantCompiler, Replayed, true_us
from tuner.devices import find
from tuner.errors import UserError
from tuner.judge import FinalsJob
from tuner.measure import Timing
from tuner.types import CacheState, Config

DEVICE = find("h200")


def timing(*samples: float) -> Timing:
    return Timing(samples, CacheState.HOT, 20)


def test_winners_agree_within_three_percent_or_their_intervals() -> None:
    close, noisy, far = timing(1.02, 1.02, 1.02), timing(0.99, 1.2, 1.4), timing(1.04, 1.04, 1.04)
    assert seeds.apart([timing(1.0, 1.0, 1.0), close, noisy], 0.03) == []
    assert seeds.apart([timing(1.0, 1.0, 1.0), close, noisy, far], 0.03) == [(0, 3)]
    # 3% of the fastest of all, not of the pair.
    assert seeds.apart([timing(1.0), timing(2.0), timing(2.05)], 0.03) == [(0, 1), (0, 2), (1, 2)]


class Worker(Replayed):
    """A `Worker`'s stand-in, which is closed as it is."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the script on the toy, with a worker in the GPU's place; its exit code and its document."""

    def run(worker: Worker, *arguments: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "seeds.json"
        monkeypatch.setattr(seeds.kernels, "ALL", {"toy": TOY})
        monkeypatch.setattr(seeds, "one_problem", lambda _: TOY.problem(4096))
        monkeypatch.setattr(seeds, "gpu", lambda *_: (DEVICE, ENVIRONMENT, worker))
        monkeypatch.setattr(seeds, "CompilePool", InstantCompiler)
        monkeypatch.setattr("sys.argv", ["seeds", "--out", str(out), *arguments])
        return seeds.main(), json.loads(out.read_text())

    return run


def test_each_seed_searches_on_its_own_and_the_winners_are_timed_in_turns(
    command: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Worker()
    code, document = command(worker, "--seeds", "3", "--trials", "60")
    assert code == 0
    assert document["agree"] is True
    assert [run["seed"] for run in document["runs"]] == [0, 1, 2]
    assert all(run["trials"] > 30 for run in document["runs"])  # nobody was answered by another's store
    winners = [Config.of(run["config"]) for run in document["runs"]]
    assert worker.finals[-1] == winners
    assert [run["stated_us"] for run in document["runs"]] == [true_us(winner) for winner in winners]
    assert (document["device"], document["versions"]["host"]) == ("NVIDIA H200", "toy")
    assert document["command"].startswith("python -m benchmarks.seeds --out ")
    assert "All 3 winners are within" in capsys.readouterr().out


class Unlike(Worker):
    """The second of those timed at last takes twice its time."""

    def call(self, request: Any, *, limit_s: float | None = None) -> Any:
        answer = super().call(request, limit_s=limit_s)
        if isinstance(request, FinalsJob) and len(self.finals) == 3:
            return (answer[0], Timing((20.0,) * 3, request.cache, 20))
        return answer


def test_winners_that_do_not_agree_fail_and_are_named(
    command: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = command(Unlike(), "--seeds", "2")
    assert (code, document["agree"], document["seeds_apart"]) == (1, False, [[0, 1]])
    assert document["runs"][1]["over_fastest"] > 1
    assert "seeds 0 and 1" in capsys.readouterr().out


def test_a_search_without_a_winner_is_said(command: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    with pytest.raises(UserError, match="2 of 2 searches found nothing right"):
        command(Worker(wrong=lambda _: True), "--seeds", "2")


def test_one_seed_compares_nothing(command: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    with pytest.raises(UserError, match="from 2"):
        command(Worker(), "--seeds", "1")
