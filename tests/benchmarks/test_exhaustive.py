"""A space measured in full: what the document holds, and what becomes of a run that is cut off."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernels
from benchmarks import exhaustive
from benchmarks.restricted import RESTRICTIONS, narrowed, parse_restriction, restricted
from tests.tuner.toy import ENVIRONMENT, TOY, InstantCompiler, Replayed, true_us
from tuner.devices import find
from tuner.errors import UserError
from tuner.judge import Job
from tuner.types import Config

DEVICE = find("h200")
PROBLEM = TOY.problem(4096)
HIDDEN = kernels.linear_forward.problem(32, 1024, 1024)


class Worker(Replayed):
    """A `Worker`'s stand-in, which is closed as it is. In company, everything takes a tenth more."""

    def __init__(self, **how: Any) -> None:
        super().__init__(final_us=lambda config: 1.1 * true_us(config), **how)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None: ...


Command = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs the script on the toy, with a worker in the GPU's place; its exit code and its document."""

    def run(worker: Worker, *arguments: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "exhaustive.json.gz"
        monkeypatch.setattr(exhaustive.kernels, "ALL", {"toy": TOY})
        monkeypatch.setattr(exhaustive, "one_problem", lambda _: PROBLEM)
        monkeypatch.setattr(exhaustive, "gpu", lambda *_: (DEVICE, ENVIRONMENT, worker))
        monkeypatch.setattr(exhaustive, "CompilePool", InstantCompiler)
        given = ["exhaustive", "--db", str(tmp_path / "own.db"), "--out", str(out), "--only", "MODE=vector"]
        monkeypatch.setattr("sys.argv", [*given, "--least", "10", "--again", "4", *arguments])
        return exhaustive.main(), json.loads(gzip.decompress(out.read_bytes()))

    return run


VECTORS = [config for config in TOY.space(PROBLEM, DEVICE) if config.choice("MODE") == "vector"]


def configs_of(document: dict[str, Any]) -> dict[Config, dict[str, Any]]:
    count = len(document["params"])
    return {
        Config.of(dict(zip(document["params"], row[:count], strict=True))): dict(
            zip(document["columns"], row[count:], strict=True)
        )
        for row in document["configs"]
    }


def test_every_configuration_is_measured_and_the_fastest_twice(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Worker(wrong=lambda config: config.integer("STAGES") == 3)
    code, document = command(worker)
    assert (code, document["missing"], document["valid"]) == (0, 0, len(VECTORS))
    found = configs_of(document)
    assert set(found) == set(VECTORS)
    for config, row in found.items():
        wrong = config.integer("STAGES") == 3
        assert row["status"] == ("wrong" if wrong else "ok")
        assert row["us"] == row["low_us"] == row["high_us"] == (None if wrong else true_us(config))
        assert (row["registers"], row["compile_s"]) == (32, 0.1)
    again = document["fastest"]
    assert len(again) == 4
    assert [entry["us"] for entry in again] == sorted(entry["us"] for entry in again)
    for entry in again:
        assert entry["us"] == pytest.approx(1.1 * entry["single_us"], abs=1e-3)
        assert entry["single_us"] == true_us(Config.of(entry["config"]))
    right = sorted(row["us"] for row in found.values() if row["us"])
    assert sorted(entry["single_us"] for entry in again) == right[:4]
    assert document["restriction"] == {"MODE": ["vector"]}
    assert document["products_us"] == 6.0
    printed = capsys.readouterr().out
    assert f"{len(VECTORS)} of {len(VECTORS)} configurations" in printed
    assert "STAGES=4 TILE=128" in printed  # the fixed tunable is left out


def test_what_was_cut_off_is_written_and_gone_on_with(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = command(Worker(patience=7))
    assert (code, document["interrupted"], document["missing"]) == (130, True, len(VECTORS) - 7)
    assert document["fastest"] == []
    assert f"{len(VECTORS) - 7} are missing" in capsys.readouterr().out
    worker = Worker()
    code, document = command(worker)
    assert (code, document["interrupted"], document["missing"]) == (0, False, 0)
    assert len(worker.measured) == len(VECTORS) - 7


def test_a_timeout_counts_what_is_missing_and_times_what_there_is(command: Command) -> None:
    command(Worker(patience=9))
    code, document = command(Worker(), "--timeout", "1e-9")
    assert (code, document["missing"], len(document["configs"])) == (1, len(VECTORS) - 9, 9)
    assert len(document["fastest"]) == 4


def test_a_space_that_is_too_small_is_refused_before_anything_is_measured(command: Command) -> None:
    worker = Worker()
    with pytest.raises(UserError, match=f"leaves {len(VECTORS)} valid configurations, fewer than 2000"):
        command(worker, "--least", "2000")
    assert worker.measured == []


def test_the_default_restriction_leaves_a_space_that_can_be_measured_and_holds_the_winner() -> None:
    space = narrowed(kernels.linear_forward, RESTRICTIONS["linear_forward"], HIDDEN, DEVICE)
    valid = list(space)
    assert 2000 <= len(valid) <= 2600
    full = kernels.linear_forward.space(HIDDEN, DEVICE)
    assert all(config in full for config in valid[::50])
    # The fastest of trials-h200.json.gz.
    fastest = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64, "WARP_N": 16, "WARPS_K": 2, "STAGES": 4, "SPLIT_K": 4}
    fixed = {name: values[0] for name, values in RESTRICTIONS["linear_forward"].items()}
    assert Config.of({**fastest, **fixed}, REDUCE="cluster") in space
    assert space.default() in space


def test_a_restricted_kernel_travels_to_other_processes() -> None:
    kernel = restricted(kernels.linear_forward, {"STAGES": (2, 4)})
    other = pickle.loads(pickle.dumps(Job(kernel, HIDDEN, Config.of(), None, None, 0))).kernel  # type: ignore[arg-type]
    assert other.space(HIDDEN, DEVICE).hash == kernel.space(HIDDEN, DEVICE).hash
    assert other.space(HIDDEN, DEVICE).hash != kernels.linear_forward.space(HIDDEN, DEVICE).hash
    assert (other.name, other.source_hash) == (kernels.linear_forward.name, kernels.linear_forward.source_hash)
    assert len(kernels.linear_forward.space(HIDDEN, DEVICE).params[7].values) == 5  # the original keeps its values


def test_restrictions_are_read_from_the_command_line() -> None:
    assert parse_restriction(["STAGES=2,4", "WMMA=16x16x16"]) == {"STAGES": (2, 4), "WMMA": ("16x16x16",)}


@pytest.mark.parametrize("text", ["STAGES", "STAGES=", "=2", "STAGES=2,,4"])
def test_a_restriction_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="write it as STAGES=2,4"):
        parse_restriction([text])


@pytest.mark.parametrize(
    ("restriction", "message"), [({"DEPTH": (1,)}, "no tunable DEPTH"), ({"STAGES": (2, 5)}, "STAGES has no value 5")]
)
def test_a_restriction_to_what_there_is_not_is_refused(restriction: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        restricted(kernels.linear_forward, restriction).space(HIDDEN, DEVICE)
