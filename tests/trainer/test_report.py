"""`run_report` end to end, on a real store: what is printed, what is written, what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import kernels
from tests.trainer.report_rows import GPU_HOST, H200, LAPTOP, T4, TOY, fill, measured, predicted, race
from trainer.contenders import PYTORCH
from trainer.race_table import strongest_of
from trainer.report import run_report, text
from tuner.errors import UserError
from tuner.store import ContenderRow, Store
from tuner.types import Status

ROOT = Path(__file__).parents[2]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(kernels.ALL, "toy", TOY)
    with Store.open(tmp_path / "tuning.db") as store:
        fill(store)
    return tmp_path / "tuning.db"


def run(
    db: Path, *, device: str | None = None, html: Path | None = None, as_json: bool = False, markdown: bool = False
) -> str:
    out = io.StringIO()
    console = Console(file=out, width=160)
    code = run_report(str(db), device=device, html=html, as_json=as_json, markdown=markdown, console=console)
    assert code == 0
    return out.getvalue()


def test_the_terminal_shows_problems_configurations_and_races(db: Path) -> None:
    shown = run(db)
    (problem,) = [line.split() for line in shown.splitlines() if "1000x1000 mode=plain" in line and "cuda" in line]
    assert problem[2:] == ["2.00", "2.0%", "50%", "2.50×", "4", "measured", "cuda", "1", "compile,", "1", "wrong"]
    assert (
        f"Width 128: 5.00 us a step, 8.00× as fast as the strongest of the 2 PyTorch forms that raced "
        f"({len(PYTORCH)} exist): written_out, 40.0 us."
    ) in shown
    assert "failed: out of <memory> | at last" in shown
    assert "driver 580.1, NVRTC 13.0, CuPy 14.1, PyTorch 2.11, Python 3.12.1" in shown


def test_the_terminal_calls_predictions_predictions(db: Path) -> None:
    shown = run(db, device="t4")
    assert "≈12.5" in shown
    assert "measured" not in shown.replace("was measured", "")
    assert text.ONLY_PREDICTED.split(".", maxsplit=1)[0] in shown
    assert "No race was run" in shown


def test_json_holds_the_same_figures(db: Path) -> None:
    document = json.loads(run(db, as_json=True))
    gpu, predicted = document["devices"]
    assert document["format"] == 1
    assert gpu["problems"][0]["config"] == {"TILE": 16}
    assert gpu["problems"][0]["library_ratio"] == 2.5
    assert gpu["problems"][0]["failures"] == {"compile": 1, "wrong": 1}
    assert [race["width"] for race in gpu["races"]] == [128, 1024, 4096]
    assert gpu["races"][0]["contenders"][1]["speedup"] == 8.0
    assert gpu["races"][0]["contenders"][0]["losses"][0] == [0, 2.3]
    assert predicted["problems"][0]["kind"] == "predicted"


def test_markdown_tables_are_whole(db: Path) -> None:
    shown = run(db, markdown=True)
    tables = [block for block in shown.split("\n\n") if block.startswith("|")]
    for table in tables:
        cells = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert len(cells) == 1
    assert len(tables) == 3
    assert "| toy | 1000x1000 | mode=plain | 2.00 | 2.0% | 50% | 2.50× | 4 | 1 compile, 1 wrong | measured |" in shown
    assert "out of <memory> \\| at last" in shown


def test_the_trials_of_a_prediction_are_the_same_in_every_form(db: Path, tmp_path: Path) -> None:
    with Store.open(db) as store:
        for tile in (8, 16):
            seen = predicted(tile, 13.0, extra={"candidates": 16, "all": False})
            store.record(seen, kernel=TOY, device=T4, environment=LAPTOP)
    assert "3 of 16  predicted" in run(db, device="t4")
    assert "| 3 of 16 | none | predicted |" in run(db, device="t4", markdown=True)
    document = json.loads(run(db, device="t4", as_json=True, html=tmp_path / "page.html"))
    problem = document["devices"][0]["problems"][0]
    assert (problem["trials"], problem["candidates"]) == (3, 16)
    assert "3 of 16" in (tmp_path / "page.html").read_text()


def test_the_page_is_written_whole_and_over_an_older_one(db: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("older")
    assert f"Wrote {page}" in run(db, html=page)
    assert page.read_text().startswith("<!doctype html>")
    assert page.read_text().endswith("</html>\n")
    assert page.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "tuning.db"]


def test_json_stays_json_when_a_page_is_written_too(db: Path, tmp_path: Path) -> None:
    assert json.loads(run(db, as_json=True, html=tmp_path / "page.html"))["devices"]


def test_a_report_changes_no_byte_of_the_store(db: Path) -> None:
    before = hashlib.sha256(db.read_bytes()).digest()
    run(db)
    assert hashlib.sha256(db.read_bytes()).digest() == before
    assert [path.name for path in db.parent.iterdir()] == ["tuning.db"]


def test_a_report_while_a_search_is_writing(db: Path) -> None:
    with Store.open(db) as store:
        store.record(measured(64, 1.0), kernel=TOY, device=H200, environment=GPU_HOST)
        document = json.loads(run(db, as_json=True))
    assert document["devices"][0]["problems"][0]["config"] == {"TILE": 64}


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    Store.open(tmp_path / "tuning.db").close()
    assert "mnist-tune search" in run(tmp_path / "tuning.db")
    assert json.loads(run(tmp_path / "tuning.db", as_json=True))["devices"] == []
    assert "no results yet" in run(tmp_path / "tuning.db", markdown=True)


def test_devices_are_chosen_by_part_of_their_name_or_architecture(db: Path) -> None:
    for wanted, name in (("h200", "NVIDIA H200"), ("sm_75", "Tesla T4")):
        document = json.loads(run(db, device=wanted, as_json=True))
        assert [each["device"]["name"] for each in document["devices"]] == [name]


def test_wrong_inputs_get_one_sentence(db: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no device 'A100'; it has: NVIDIA H200, Tesla T4"):
        run(db, device="A100")
    with pytest.raises(UserError, match="Choose --json or --md"):
        run(db, as_json=True, markdown=True)
    with pytest.raises(UserError, match="There is no store at"):
        run(tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()
    (tmp_path / "text.db").write_text("This is no database, but it is long enough to be looked at." * 20)
    with pytest.raises(UserError, match="is not a SQLite database"):
        run(tmp_path / "text.db")
    with pytest.raises(UserError, match=r"cannot be written .* name a file in a folder that exists"):
        run(db, html=tmp_path / "no" / "page.html")
    folder = tmp_path / "pages"
    folder.mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="cannot be written"):
        run(db, html=folder)
    assert sorted(tmp_path.iterdir()) == before


def test_the_report_needs_neither_cupy_nor_torch(db: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('cupy', 'cupyx', 'cupy_backends', 'torch'): sys.modules[name] = None\n"
        "from pathlib import Path\nfrom rich.console import Console\nfrom trainer.report import run_report\n"
        "run_report(sys.argv[1], html=Path(sys.argv[2]), as_json=False, markdown=False, console=Console())\n"
    )
    command = [sys.executable, "-c", program, str(db), str(tmp_path / "page.html")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (0, "0"),
        (0.01234, "0.012"),
        (0.96, "0.960"),
        (5, "5.00"),
        (45.84, "45.8"),
        (236.6, "237"),
        (1961.4, "1,961"),
    ],
)
def test_numbers_keep_three_digits(value: float | None, expected: str) -> None:
    assert text.number(value) == expected


def test_on_eighty_columns_no_figure_is_lost(db: Path) -> None:
    out = io.StringIO()
    run_report(str(db), html=None, as_json=False, markdown=False, console=Console(file=out, width=80))
    shown = out.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "…" not in shown
    for figure in ("1000x1000", "2.00", "2.0%", "50%", "2.50×", "measured", "1 compile", "1 wrong", "≈12.5", "8.00×"):
        assert figure in shown


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_kernels_name_is_never_broken_and_columns_stand_below_each_other(db: Path, width: int) -> None:
    long = kernels.softmax_cross_entropy
    with Store.open(db) as store:
        problem = long.problem(32, 10)
        seen = measured(8, 3.0, problem=problem, config=next(iter(long.space(problem, H200))))
        store.record(seen, kernel=long, device=H200, environment=GPU_HOST)
        for tile, status in ((8, Status.TIMEOUT), (32, Status.RUNTIME), (64, Status.LAUNCH)):
            store.record(measured(tile, None, status=status), kernel=TOY, device=H200, environment=GPU_HOST)
    out = io.StringIO()
    console = Console(file=out, width=width)
    run_report(str(db), device="h200", html=None, as_json=False, markdown=False, console=console)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "softmax_cross_entropy" in [line.strip() for line in lines]
    rows = [line for line in lines if "measured cuda" in " ".join(line.split())]
    assert len(rows) == 2
    assert len({line.index("measured") for line in rows}) == 1
    assert "…" not in out.getvalue()
    words = out.getvalue().replace(",", " ").split()
    assert {"1000x1000", "8.00×", "2.50×", "timeout", "runtime", "launch", "wrong", "compile"} <= set(words)


@pytest.mark.parametrize(("value", "expected"), [(None, "–"), (0, "0%"), (0.2, "<1%"), (0.6, "1%"), (49.6, "50%")])
def test_a_small_share_is_not_nothing(value: float | None, expected: str) -> None:
    assert text.percent(value) == expected


def test_a_slower_step_is_called_slower(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.record_race(race(128, contenders=(ContenderRow("tuned", 80.0), ContenderRow("eager", 40.0))))
    for markdown in (False, True):
        assert (
            f"Width 128: 80.0 us a step, slower (0.500×) than the only PyTorch form that raced ({len(PYTORCH)} exist): "
            "eager, 40.0 us."
        ) in run(tmp_path / "tuning.db", markdown=markdown)


def test_a_headline_says_among_how_many_the_strongest_is() -> None:
    every = len(PYTORCH)
    assert strongest_of(every) == f"the strongest of the {every} PyTorch forms that raced"
    assert strongest_of(every - 1) == f"the strongest of the {every - 1} PyTorch forms that raced ({every} exist)"
    assert strongest_of(1) == f"the only PyTorch form that raced ({every} exist)"
    assert strongest_of(1, 3) == f"the strongest of the 1 to 3 PyTorch forms that raced ({every} exist)"
