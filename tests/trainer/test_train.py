"""Training from end to end where there is no GPU: small, emulated, on the shipped sample."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.trainer.plans import T4
from trainer import train
from trainer.agreement import Verdict
from trainer.data import SAMPLE, load
from trainer.mlp import Network
from trainer.schedule import Schedule
from trainer.settings import TrainSettings
from trainer.startup import PARTS, Started
from trainer.train import run_train
from trainer.training import MOST_IMAGES, Pixels, Training, say, steps_of
from tuner.errors import UserError
from tuner.store import Store
from tuner.store.rows import OURS

TINY = TrainSettings(width=16, layers=1, steps=10, lr=0.1, data=SAMPLE, device="cpu")


@pytest.fixture(scope="module", autouse=True)
def argv() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/somewhere/mnist-tune", "train", "--data", "a folder"])
        yield


def printed(file: Path, settings: TrainSettings = TINY, *, as_json: bool = False) -> tuple[int, str]:
    paper = io.StringIO()
    code = run_train(str(file), settings, as_json=as_json, console=Console(file=paper, width=200))
    return code, paper.getvalue()


def test_it_learns_agrees_with_pytorch_and_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "tuning.db"
    code, text = printed(file)
    assert code == 0
    assert "No GPU is used: 784-16-10 is trained by emulation on the CPU" in text
    assert "10 steps: " in text
    assert "Losses agree with PyTorch in fp32" in text
    assert "No race was run: there is no GPU." in text
    with Store.open(file) as store:
        [row] = store.races()
    assert (row.width, row.layers, row.batch, row.steps, row.lr, row.seed) == (16, 1, 32, 10, 0.1, 0)
    assert row.device.name == "emulated Tesla T4", "never taken for a GPU's"
    assert row.strongest == ""
    assert row.command == "mnist-tune train --data 'a folder'"
    ours = row.contender(OURS)
    assert ours is not None
    assert (ours.us_per_step, ours.samples) == (None, ()), "an emulated time is no time"
    [theirs] = [contender for contender in row.contenders if contender.name != OURS]
    assert [step for step, _ in ours.losses] == list(range(10))
    assert [loss for _, loss in ours.losses] == pytest.approx([loss for _, loss in theirs.losses], abs=5e-3)
    assert ours.losses[0][1] == pytest.approx(np.log(10), abs=0.1)
    assert ours.losses[-1][1] < ours.losses[0][1]


def test_the_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(tmp_path / "tuning.db", as_json=True)
    assert (code, text) == (0, ""), "nothing beside the document"
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["network"] == "784-16-10"
    assert (document["width"], document["layers"], document["batch"], document["lr"]) == (16, 1, 32, 0.1)
    assert (document["device"], document["arch"]) == ("Tesla T4", "sm_75")
    assert document["agreement"]["agrees"] is True
    assert (document["strongest"], document["ratio_to_strongest"], document["contenders"]) == (None, None, {})
    training = document["training"]
    assert (training["steps"], training["us_per_step"]) == (10, None)
    assert [point["step"] for point in training["losses"]] == list(range(10))
    assert 0 <= training["test_accuracy"] <= 1
    assert [line["problem"].split()[0] for line in document["plan"]] == [
        "gather_rows",
        "linear_forward",
        "linear_forward",
        "softmax_cross_entropy",
        "linear_backward",
        "linear_backward",
    ]
    assert {line["rung"] for line in document["plan"]} == {"default"}
    assert document["expected_us"] is None
    startup = document["startup"]
    parts = [startup[f"{name}_s"] for name in PARTS]
    assert startup["total_s"] == pytest.approx(sum(parts), abs=1e-3)
    assert (startup["context_s"], startup["first_call_steps"]) == (0.0, 1)


def test_the_same_seed_gives_the_same_losses_and_another_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def losses(seed: int) -> list[float]:
        printed(tmp_path / "tuning.db", replace(TINY, seed=seed, steps=3), as_json=True)
        return [point["loss"] for point in json.loads(capsys.readouterr().out)["training"]["losses"]]

    assert losses(1) == losses(1) != losses(2)


def test_losses_that_do_not_agree_are_said_and_are_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "curves_agree", lambda *_: Verdict(False, 0, 9, 0.5, 0.1))
    code, text = printed(tmp_path / "tuning.db")
    assert code == 1
    assert "Losses DO NOT agree with PyTorch in fp32" in text


def test_without_a_race_nothing_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(tmp_path / "tuning.db", replace(TINY, race=False))
    assert code == 0
    assert "The losses were not compared with PyTorch's (--no-race)." in text
    assert "Losses agree" not in text
    printed(tmp_path / "tuning.db", replace(TINY, race=False), as_json=True)
    assert "agreement" not in json.loads(capsys.readouterr().out)


def test_a_training_that_diverges_is_said_and_is_strict_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = replace(TINY, lr=900.0, steps=6)
    code, text = printed(tmp_path / "tuning.db", wild)
    assert code == 1
    assert "The training diverged: the loss is not finite at step " in text
    assert printed(tmp_path / "tuning.db", wild, as_json=True)[0] == 1

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    document = json.loads(capsys.readouterr().out, parse_constant=no_constant)
    assert document["agreement"]["agrees"] is False
    assert None in [point["loss"] for point in document["training"]["losses"]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epochs": 1}, "Give --epochs or --steps, not both."),
        ({"steps": 0}, "--steps 0 trains nothing; give a whole number from 1."),
        ({"widths": (16, 32)}, "Give --width or --widths, not both."),
        ({"starts": 0}, "--starts 0 starts nothing; give a whole number from 1."),
        (
            {"width": None, "widths": (32, 2048)},
            "Without a GPU the training is emulated, which takes too long at width 2048; give --widths up to 512.",
        ),
        ({"steps": None, "epochs": -1}, "--epochs -1 trains nothing; give a whole number from 1."),
        ({"schedule": Schedule(repeats=0)}, "--repeats 0 trains nothing; give a whole number from 1."),
        ({"lr": float("nan")}, "--lr nan is not a learning rate; give a number above 0 and below 1000."),
        ({"lr": 0.0}, "--lr 0 is not a learning rate; give a number above 0 and below 1000."),
        ({"lr": float("inf")}, "--lr inf is not a learning rate; give a number above 0 and below 1000."),
        ({"seed": -1}, "--seed -1 is out of range; give a whole number from 0 to 4294967295."),
        ({"seed": 2**32}, "--seed 4294967296 is out of range; give a whole number from 0 to 4294967295."),
        (
            {"width": 513},
            "Without a GPU the training is emulated, which takes too long at width 513; give --width up to 512.",
        ),
        (
            {"batch": 4096, "steps": 10**12},
            f"{10**12} steps are more than one run can make at batch 4096; give --steps up to {MOST_IMAGES // 4096}, "
            f"or --epochs up to {MOST_IMAGES // 4096}.",  # an epoch of the sample is one such step
        ),
    ],
)
def test_settings_that_make_no_sense(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        printed(tmp_path / "tuning.db", replace(TINY, **change))
    assert str(caught.value) == sentence


def test_an_unknown_contender_is_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no contender 'nobody'"):
        printed(tmp_path / "tuning.db", replace(TINY, contenders=["nobody"]))
    assert not (tmp_path / "tuning.db").exists()


def test_a_read_only_store_is_refused_before_the_training(tmp_path: Path) -> None:
    file = tmp_path / "tuning.db"
    Store.open(file).close()
    with pytest.raises(UserError, match=r"is read-only; copy it to a folder that can be written"):
        run_train(f"sqlite:///{file}?mode=ro", TINY, as_json=False, console=Console(quiet=True))


@pytest.mark.parametrize(
    ("change", "default_images", "expected"),
    [
        ({"steps": 7}, 0, 7),
        ({"steps": None, "epochs": 2}, 0, 2 * (5000 // 32)),
        ({"steps": None, "batch": 64}, 300 * 64, 300),
        ({"steps": None}, 10 * 5000, 10 * 5000 // 32),
    ],
)
def test_how_many_steps_are_made(change: dict[str, Any], default_images: int, expected: int) -> None:
    settings = replace(TINY, **change)
    network = Network(16, 1, settings.batch)
    assert steps_of(settings, network, Pixels.of(load(SAMPLE)), default_images) == expected


def test_a_batch_larger_than_the_data_set(tmp_path: Path) -> None:
    small = load(SAMPLE)
    small = replace(small, train_images=small.train_images[:20], train_labels=small.train_labels[:20])
    with pytest.raises(UserError, match="A batch of 32 is more than the 20 training images; give a smaller --batch"):
        steps_of(TINY, Network(16), Pixels.of(small), 0)


def test_one_step_is_one_step() -> None:
    paper = io.StringIO()
    ours = Training(1, np.array([2.5], np.float32), 0.5, None, Started("the call", {"prepare": 1.0}, 1))
    say(Console(file=paper, width=200), ours, "at once")
    assert paper.getvalue().splitlines()[-2:] == [
        "1 step: at once; loss 2.5000 at first, 2.5000 at last (mean of 1 step), test accuracy 50.00%.",
        "First step done 1.00 s after the call, 1.00 s without reading the data and creating the CUDA context: "
        "upload and capture 1.00.",
    ]


def test_the_device_that_is_emulated_for_is_known() -> None:
    assert train.find(train.EMULATED_FOR) == T4
