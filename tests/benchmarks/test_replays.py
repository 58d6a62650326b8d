"""Replays of what was measured: the tables, and how a search of one is judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import replays
from benchmarks.replays import Table, cost, searched, study, summary, tables
from tests.tuner.toy import ENVIRONMENT, TOY, WITH_LIBRARY, true_us
from tuner.devices import find
from tuner.store import Store
from tuner.types import CacheState, Config, Kind, Measurement, Status

DEVICE = find("h200")
PROBLEM = TOY.problem(4096)
VALID = list(TOY.space(PROBLEM, DEVICE))
SOME = [config for place, config in enumerate(VALID) if place % 8]
"""Seven of eight were measured."""


def row(config: Config, us: float | None, *, finalist: bool = False) -> Measurement:
    status = Status.OK if us is not None else Status.WRONG
    return Measurement(
        PROBLEM,
        config,
        status,
        Kind.MEASURED,
        samples_us=(us,) if us is not None else (),
        median_us=us,
        cache=CacheState.HOT,
        extra={"finalist": True} if finalist else {},
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "t.db"
    with Store.open(path) as store:
        for config in SOME:
            us = None if config == SOME[5] else true_us(config)
            store.record(row(config, us), kernel=TOY, device=DEVICE, environment=ENVIRONMENT)
        store.record(row(SOME[0], 50.0, finalist=True), kernel=TOY, device=DEVICE, environment=ENVIRONMENT)
        library = WITH_LIBRARY.only_config
        store.record(row(library, 1.0), kernel=WITH_LIBRARY, device=DEVICE, environment=ENVIRONMENT)
    return path


@pytest.fixture
def table(file: Path) -> Table:
    with Store.open(file) as store:
        [found] = tables(store, {"toy": TOY}, least=len(SOME) - 1)
    return found


def test_a_table_is_what_was_measured_with_the_later_time_as_the_true_one(table: Table, file: Path) -> None:
    assert set(table.rows) == set(SOME)
    assert table.rows[SOME[0]].median_us == true_us(SOME[0]), "the search sees the single timing"
    assert table.true_us[SOME[0]] == 50.0
    assert SOME[5] not in table.true_us
    assert table.best_us == min(table.true_us.values())
    assert list(table.space) == list(table.rows)
    assert not any(config in table.space for config in VALID if config not in SOME)
    with Store.open(file) as store:
        assert tables(store, {"toy": TOY}, least=len(SOME)) == []


@pytest.mark.parametrize("sampler", replays.SAMPLERS)
def test_a_search_stays_in_the_table_and_ends_with_it(table: Table, sampler: str) -> None:
    rows = searched(table, sampler, seed=1, trials=1000)
    assert sorted(row.config.key for row in rows) == sorted(config.key for config in SOME)
    assert cost(table, rows) == 0.0
    few = searched(table, sampler, seed=1, trials=20)
    assert len({row.config for row in few}) == 20
    assert few[0].config == TOY.space(PROBLEM, DEVICE).default() or few[0].config in SOME


def test_the_cost_is_that_of_the_best_finalist(table: Table) -> None:
    slow = sorted((row for row in table.rows.values() if row.ok), key=lambda row: row.median_us or 0.0)[-7:]
    assert cost(table, slow) == pytest.approx(min(table.true_us[row.config] for row in slow) / table.best_us - 1)


def test_a_summary_counts_winners_and_problems() -> None:
    studies = [{"over_best": {"gp": [0.0, 0.01], "tpe": [0.0, 0.05]}}, {"over_best": {"gp": [0.02, 0], "tpe": [0, 0]}}]
    found = summary(studies, ("gp", "tpe"), 0.03)
    assert found["gp"] == {"mean": 0.0075, "most": 0.02, "within": 1.0, "problems_with_all_within": 2}
    assert found["tpe"] == {"mean": 0.0125, "most": 0.05, "within": 0.75, "problems_with_all_within": 1}


def test_a_study_of_a_table(table: Table) -> None:
    found = study(table, ("gp", "random"), seeds=2, share=0.5)
    assert found["trials"] == round(len(SOME) / 2)
    assert {name: len(costs) for name, costs in found["over_best"].items()} == {"gp": 2, "random": 2}
    assert max(found["over_best"]["gp"]) <= 0.03


def test_the_command_writes_what_it_shows(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    monkeypatch.setattr(replays.kernels, "ALL", {"toy": TOY})
    monkeypatch.setattr(sys, "argv", ["x", "--db", str(file), "--out", str(out), "--seeds", "2", "--least", "40"])
    code = replays.main()
    document = json.loads(out.read_text())
    assert code == (document["summary"]["gp"]["most"] > 0.03)
    assert document["what"].startswith("replays")
    assert "every seed's of" in capsys.readouterr().out
