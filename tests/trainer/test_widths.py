"""Several widths in one command: by emulation, and on a GPU that is put in place by a stand-in."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.trainer.fakes import Fake, Slow
from tests.trainer.plans import T4
from tests.trainer.report_rows import H200
from trainer import race as race_module
from trainer import train
from trainer.data import SAMPLE
from trainer.documents import describe_race, starts_note
from trainer.mlp import Network
from trainer.race import Race
from trainer.results import Results
from trainer.schedule import Schedule
from trainer.settings import TrainSettings
from trainer.startup import Startup
from trainer.train import run_train
from trainer.widths_table import render_widths
from tuner.errors import UserError
from tuner.store import ContenderRow, RaceRow, Store
from tuner.types import Environment

TINY = TrainSettings(widths=(8, 16), layers=1, steps=4, lr=0.1, data=SAMPLE, device="cpu")

KEYS = {
    "width",
    "batch",
    "layers",
    "device",
    "versions",
    "command",
    "date",
    "strongest",
    "ratio_to_strongest",
    "contenders",
}
"""That a reader of a width may count on."""


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/mnist-tune", "train", "--widths", "8,16"])


def run(folder: Path, settings: TrainSettings, *, as_json: bool = False) -> tuple[int, str]:
    paper = io.StringIO()
    code = run_train(str(folder / "tuning.db"), settings, as_json=as_json, console=Console(file=paper, width=200))
    return code, paper.getvalue()


class TestByEmulation:
    def test_each_width_is_an_object_and_a_race_in_the_store(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, text = run(tmp_path, TINY, as_json=True)
        assert (code, text) == (0, "")
        documents = json.loads(capsys.readouterr().out)
        assert [document["width"] for document in documents] == [8, 16]
        assert all(set(document) >= KEYS for document in documents)
        assert [document["startup"]["since"] for document in documents] == ["the call", "the turn of width 16"]
        with Store.open(tmp_path / "tuning.db") as store:
            assert [row.width for row in store.races()] == [8, 16]

    def test_the_file_is_there_after_every_width(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "races.json"
        seen: list[list[int]] = []
        add = Results.add

        def noting(self: Results, document: dict[str, Any]) -> None:
            add(self, document)
            seen.append([each["width"] for each in json.loads(out.read_text())])

        monkeypatch.setattr(Results, "add", noting)
        assert run(tmp_path, replace(TINY, out=out))[0] == 0
        assert seen == [[8], [8, 16]]
        assert [path.name for path in tmp_path.glob(".races*")] == [], "nothing half written is left"

    def test_the_same_command_goes_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "races.json"
        run(tmp_path, replace(TINY, widths=(8,), out=out))
        first = json.loads(out.read_text())
        code, text = run(tmp_path, replace(TINY, out=out))
        assert code == 0
        assert f"Width 8 is kept from {out}: the same command made it on {first[0]['date']}." in text
        second = json.loads(out.read_text())
        assert second[0] == first[0]
        assert second[1]["width"] == 16
        code, text = run(tmp_path, replace(TINY, out=out, seed=1, widths=(16,)))
        assert "is kept" not in text
        third = json.loads(out.read_text())
        assert third[0] == first[0], "what is not asked for stays"
        assert third[1]["seed"] == 1

    def test_one_width_may_have_a_file_too(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "race.json"
        run(tmp_path, replace(TINY, widths=None, width=8, out=out), as_json=True)
        assert [json.loads(capsys.readouterr().out)] == json.loads(out.read_text())

    def test_what_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        other = tmp_path / "other.json"
        other.write_text('{"a": 1}')
        for out, words in (
            (tmp_path / "nowhere" / "x.json", "does not exist"),
            (other, "holds something else than the results of train --out"),
            (tmp_path, "cannot be read"),
        ):
            with pytest.raises(UserError, match=words):
                run(tmp_path, replace(TINY, out=out))
        assert other.read_text() == '{"a": 1}'
        assert not (tmp_path / "tuning.db").exists()


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, Exception]], None]:
    """Widths whose look-up ends in an error."""
    choose = train.choose

    def arm(errors: dict[int, Exception]) -> None:
        def failing(store: Store, network: Network, *arguments: Any, **options: Any) -> Any:
            if network.width in errors:
                raise errors[network.width]
            return choose(store, network, *arguments, **options)

        monkeypatch.setattr(train, "choose", failing)

    return arm


@pytest.mark.parametrize("error", [UserError("No kernel works."), RuntimeError("no image"), MemoryError()])
def test_a_width_that_fails_costs_only_itself(
    tmp_path: Path, fails: Callable[[dict[int, Exception]], None], error: Exception
) -> None:
    out = tmp_path / "races.json"
    fails({8: error})
    code, text = run(tmp_path, replace(TINY, out=out))
    said = str(error) or "MemoryError"
    assert code == 1
    assert f"Width 8 failed: {said}" in text
    assert f"8: {said}" in text.splitlines()[-1]
    failed, done = json.loads(out.read_text())
    assert failed["error"] == said
    assert set(failed) >= KEYS
    assert (failed["contenders"], failed["strongest"]) == ({}, None)
    assert (done["width"], done["error"]) == (16, None)
    fails({})
    code, text = run(tmp_path, replace(TINY, out=out))
    assert code == 0
    assert "Width 8 is kept" not in text, "a failure is not kept"
    assert "Width 16 is kept" in text


def test_where_all_fail_alike_it_is_one_sentence(tmp_path: Path, fails: Callable[[dict[int, Exception]], None]) -> None:
    fails({8: UserError("There is no compiler."), 16: UserError("There is no compiler.")})
    with pytest.raises(UserError, match=r"^There is no compiler\.$"):
        run(tmp_path, TINY)


def test_a_mistake_of_ours_is_not_hidden(tmp_path: Path, fails: Callable[[dict[int, Exception]], None]) -> None:
    fails({8: KeyError("b")})
    with pytest.raises(KeyError):
        run(tmp_path, TINY)


def row(width: int, ours: tuple[float, ...], theirs: tuple[float, ...]) -> RaceRow:
    def contender(name: str, samples: tuple[float, ...]) -> ContenderRow:
        return ContenderRow(name, sorted(samples)[len(samples) // 2], samples, 0.01, start_s=30.0, peak_bytes=1 << 20)

    contenders = (contender("tuned", ours), contender("library", theirs), ContenderRow("eager", None, error="no"))
    return RaceRow(
        H200, Environment("h", "s", "3"), width, 3, 32, 26500, 0.003, 0, "mnist-tune train", "library", contenders
    )


def race_of(starts: int = 1, cold: dict[str, float] | None = None) -> Race:
    return Race(None, None, (), "library", {"library": "50 steps"}, starts, cold or {})  # type: ignore[arg-type]


def test_the_document_of_a_race() -> None:
    result = row(128, (5.0, 5.0, 4.0, 5.0, 5.0), (25.0, 30.0, 20.0, 26.0, 24.0))
    document = describe_race(result, race_of(4, {"library": 80.0}), {"library": "by hand"})
    assert (document["strongest"], document["ratio_to_strongest"]) == ("library", 5.0)
    assert document["ratio_pairs"] == [5.0, 6.0, 5.0, 5.2, 4.8]
    assert document["ratio_quartiles"] == [5.0, 5.2]
    assert document["starts"] == 4
    assert document["starts_note"].startswith("Up to 4 PyTorch contenders started at once")
    assert "Each started twice" in document["starts_note"]
    library = document["contenders"]["library"]
    assert set(library) >= {"us_per_step", "samples", "start_s", "peak_bytes"}
    assert (library["start_s"], library["start_cold_s"], library["description"]) == (30.0, 80.0, "by hand")
    assert document["contenders"]["eager"]["error"] == "no"
    assert document["contenders"]["tuned"]["start_cold_s"] is None
    assert starts_note(race_of()) == ""


def test_the_table_of_all_widths() -> None:
    raced = {"width": 128, "device": "NVIDIA H200", "error": None} | describe_race(
        row(128, (5.0,) * 3, (25.0, 26.0, 30.0)), race_of(4), {}
    )
    trained = {**raced, "width": 512, "contenders": {}, "strongest": None, "ratio_to_strongest": None}
    trained |= {"ratio_quartiles": None, "training": {"us_per_step": 12.5}, "starts_note": ""}
    failed = {**trained, "width": 4096, "error": "no kernel works", "training": None}
    paper = io.StringIO()
    Console(file=paper, width=100).print(render_widths([raced, trained, failed]))
    lines = [line.strip("│").split("│") for line in paper.getvalue().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["128", "5.00", "library", "26.00", "5.20x", "5.10 to 5.60"],
        ["512", "12.50", "-", "-", "-", "-"],
        ["4096", "-", "-", "-", "-", "-"],
    ]
    assert "3 widths on NVIDIA H200" in paper.getvalue()
    assert "4096: no kernel works" in paper.getvalue()
    assert "Up to 4 PyTorch contenders started at once" in paper.getvalue()


class TestKept:
    DOCUMENT: dict[str, Any] = {  # noqa: RUF012
        "width": 8,
        "layers": 1,
        "batch": 32,
        "device": "T4",
        "arch": "sm_75",
        "settings": {"lr": 0.1, "contenders": ["eager"]},
        "sources": "abc",
        "data_hash": "123",
        "plan": [{"config": {"A": 1}}],
        "versions": {"host": "one", "torch": "2.11"},
        "contenders": {},
        "error": None,
    }

    @pytest.fixture
    def results(self, tmp_path: Path) -> Results:
        first = Results(tmp_path / "x.json")
        first.add(self.DOCUMENT)
        return Results(tmp_path / "x.json")

    def test_by_the_same_on_another_host(self, results: Results) -> None:
        again = {**self.DOCUMENT, "versions": {"host": "two", "torch": "2.11"}, "date": "later"}
        assert results.kept(again) == self.DOCUMENT

    @pytest.mark.parametrize(
        "change",
        [
            {"width": 16},
            {"batch": 64},
            {"device": "H200"},
            {"sources": "abd"},
            {"data_hash": "124"},
            {"settings": {"lr": 0.2, "contenders": ["eager"]}},
            {"plan": [{"config": {"A": 2}}]},
            {"versions": {"host": "one", "torch": "2.12"}},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_not_by_anything_else(self, results: Results, change: dict[str, Any]) -> None:
        assert results.kept({**self.DOCUMENT, **change}) is None

    def test_a_file_is_whole_or_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        results = Results(tmp_path / "x.json")
        results.add(self.DOCUMENT)
        before = (tmp_path / "x.json").read_text()
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            results.add({**self.DOCUMENT, "width": 16})
        assert (tmp_path / "x.json").read_text() == before
        assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_the_t4_is_what_is_emulated() -> None:
    assert train.find(train.EMULATED_FOR) == T4


def test_a_start_is_handed_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_train(
        str(tmp_path / "t.db"),
        replace(TINY, widths=(8,)),
        as_json=True,
        console=Console(quiet=True),
        startup=Startup.from_here("the command"),
    )
    assert json.loads(capsys.readouterr().out)[0]["startup"]["since"] == "the command"


class _Passes:
    """In the `Checker`'s place."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, choice: object) -> None: ...

    def __enter__(self) -> _Passes:
        return self

    def __exit__(self, *_: object) -> None: ...


SHORT = Schedule(steps=100, repeats=3, warmup=100, lead_in=0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU as far as `train` sees it: engines and contenders are fakes, but race in processes of their own."""
    asked: list[int] = []
    cupy = SimpleNamespace(
        asarray=np.asarray,
        cuda=SimpleNamespace(
            Device=lambda _: SimpleNamespace(use=lambda: None), runtime=SimpleNamespace(free=asked.append)
        ),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(train, "environment", lambda: Environment("h", "s", "3"))
    monkeypatch.setattr(train, "resolve", lambda _: H200)
    monkeypatch.setattr(train, "Checker", _Passes)
    monkeypatch.setattr(train, "compile_kernel", lambda *_: None)
    monkeypatch.setattr(train, "engine_of", lambda *_: Fake)
    monkeypatch.setattr(train, "chosen", lambda _: [Slow])
    ones = np.ones(SHORT.total, np.float32)
    monkeypatch.setattr(race_module, "_yardstick", lambda *_: (ones, ones))


def test_a_race_over_widths_on_a_gpu(tmp_path: Path, gpu: None) -> None:
    out = tmp_path / "races.json"
    settings = replace(TINY, device="cuda", steps=120, out=out, schedule=SHORT, starts=2)
    code, text = run(tmp_path, settings)
    assert code == 0
    documents = json.loads(out.read_text())
    for document in documents:
        assert set(document) >= KEYS
        assert document["strongest"] == "fake"
        assert document["ratio_to_strongest"] == pytest.approx(4.0, rel=0.02)
        assert len(document["contenders"]["tuned"]["samples"]) == 3
        assert document["contenders"]["tuned"]["description"] == "for tests"
        assert document["training"]["steps"] == 120
        assert document["startup"]["first_call_steps"] == 50
        assert document["startup"]["context_s"] >= 0
    assert "2 widths on NVIDIA H200" in text
    assert "Up to 2 PyTorch contenders started at once" in text
    with Store.open(tmp_path / "tuning.db") as store:
        # Our training, then the race, for each.
        assert [(row.width, row.strongest) for row in store.races()] == [(8, ""), (8, "fake"), (16, ""), (16, "fake")]
    code, text = run(tmp_path, settings)
    assert code == 0
    assert text.count("is kept from") == 2
    assert "2 widths on NVIDIA H200" in text


def test_a_step_that_fails_on_a_gpu_gives_its_memory_back(
    tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Fails(Fake):
        def weights(self) -> Any:
            raise RuntimeError("a block did not answer")

        def close(self) -> None:
            closed.append("closed")

    monkeypatch.setattr(train, "engine_of", lambda *_: Fails)
    code, text = run(tmp_path, replace(TINY, device="cuda", schedule=SHORT))
    assert code == 1
    assert closed == ["closed"] * 2
    assert "16: a block did not answer" in text
