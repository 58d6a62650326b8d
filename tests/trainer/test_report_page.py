"""The page: self-contained, well-formed, honest about what is missing; and its plots."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.trainer.report_rows import GPU_HOST, H200, KERNELS, LAPTOP, T4, TOY, fill, losses, measured, predicted, race
from trainer.contenders import PYTORCH
from trainer.report import html, plots
from trainer.report.collect import collect
from trainer.report.model import Race, Report
from tuner.store import ContenderRow, Store

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Reads a page strictly: unclosed and crossing elements fail."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def report_of(path: Path, *, empty: bool = False) -> Report:
    with Store.open(path / "tuning.db") as store:
        if not empty:
            fill(store)
        return collect(store, KERNELS, label="tuning.db", devices=store.devices())


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return report_of(tmp_path)


@pytest.fixture
def races(report: Report) -> tuple[Race, ...]:
    return report.devices[0].races


def series(svg: str, index: int) -> list[str]:
    """Paths of a plot that are drawn in the colour of series `index`, markers aside."""
    return re.findall(rf'<path d="([^"]+)"[^>]*style="fill: none;[^"]*stroke: var\(--series-{index}\)', svg)


def test_nothing_comes_from_elsewhere(report: Report) -> None:
    page = html.render(report)
    assert "<script" not in page
    assert re.findall(r"https?:|//[a-z]|@import|<link|<img|<iframe", page) == []
    assert set(re.findall(r"(?:href|src)=\"([^\"#][^\"]*)\"", page)) == set()


def test_the_page_is_well_formed_and_its_ids_are_unique(report: Report) -> None:
    page = Page(html.render(report))
    assert len(page.ids) == len(set(page.ids))


def test_every_reference_inside_the_plots_is_answered(report: Report) -> None:
    page = html.render(report)
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert wanted
    assert wanted <= set(Page(page).ids)


def test_what_a_phone_and_a_dark_room_need(report: Report) -> None:
    page = html.render(report)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "prefers-color-scheme: dark" in page
    # Every table scrolls inside its own container, never the page.
    assert page.count("<table") == len(re.findall(r'class="scroll"[^>]*><table[ >]', page)) > 0


def test_on_a_narrow_screen_the_last_cell_goes_below_its_row(report: Report) -> None:
    page = html.render(report)
    tables = re.findall(r'<table class="folds" style="--columns: (\d+)">(.*?)</table>', page, re.DOTALL)
    assert len(tables) == 3
    for columns, table in tables:
        for row in re.findall(r"<tr[ >].*?</tr>", table, re.DOTALL):
            cells = re.findall(r"<t[hd]\b[^>]*>", row)
            if "rowgroup" in row:
                assert f'colspan="{int(columns) + 1}"' in cells[0]
            else:
                assert len(cells) == int(columns) + 1
                assert [' class="below' in cell for cell in cells] == [False] * int(columns) + [True]


def test_headline_figures_and_tables(report: Report) -> None:
    page = Page(html.render(report))
    assert (
        f"8.00× as fast as the strongest of the 2 PyTorch forms that raced ({len(PYTORCH)} exist), at widths "
        "128 to 4096, on an NVIDIA H200"
    ) in page.text
    assert "128 5.00 written_out 40.0 8.00× 1,000 200× 1.5 / 20.0 97.60% / 97.50%" in page.text
    assert "failed: out of <memory> | at last" in page.text
    assert "driver 580.1, NVRTC 13.0" in page.text
    assert "1000x1000 mode=plain 2.00 2.0% 50% 2.50× cuBLAS 5.00 us measured hot cache cuda" in page.text


def test_no_number_of_an_absent_gpu_is_shown_as_measured(report: Report) -> None:
    page = html.render(report)
    section = page[page.index("Tesla T4 (sm_75)</h2>") :]
    section = section[: section.index("</section>")]
    assert "Predictions only: this GPU was not there." in section
    assert "No race was run" in section
    assert "≈12.5" in section
    assert ">measured" not in section
    assert "<svg" not in section


def test_without_races_there_is_no_empty_plot(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.record(measured(16, 2.0), kernel=TOY, device=H200, environment=GPU_HOST)
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    page = html.render(report)
    assert "<svg" not in page
    assert "No race against PyTorch is stored for this device yet" in page
    assert html.claim(report) == "Kernels measured; no race against PyTorch yet"


def test_a_store_of_predictions_says_so_first(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.record(predicted(16, 2.0), kernel=TOY, device=T4, environment=LAPTOP)
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    assert html.claim(report) == "Predicted for Tesla T4: nothing was measured, no race was run"


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    page = Page(html.render(report_of(tmp_path, empty=True)))
    assert "Nothing has been tuned yet" in page.text
    assert "Run mnist-tune search , then mnist-tune train ." in page.text


def test_a_slower_step_is_not_called_faster(tmp_path: Path) -> None:
    slow = (ContenderRow("tuned", 80.0, losses=losses(9)), ContenderRow("eager", 40.0, losses=losses(9)))
    with Store.open(tmp_path / "tuning.db") as store:
        store.record_race(race(128, contenders=slow))
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    claim = f"0.500× as fast as the only PyTorch form that raced ({len(PYTORCH)} exist), at width 128, "
    claim += "on an NVIDIA H200"
    assert html.claim(report) == claim


def test_names_from_the_store_are_escaped(tmp_path: Path) -> None:
    nasty = (ContenderRow("tuned", 5.0), ContenderRow("<script>alert(1)</script>", 9.0))
    with Store.open(tmp_path / "tuning.db") as store:
        store.record_race(race(128, contenders=nasty, command="<b>&"))
        report = collect(store, KERNELS, label="<i>.db", devices=store.devices())
    page = html.render(report)
    assert "<script" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "&lt;i&gt;.db" in page


def test_plots_are_svg_with_text_and_without_fixed_colours(races: tuple[Race, ...]) -> None:
    for plot in (plots.run_time(races, "a"), plots.relative_speed(races, "b"), plots.losses(races[0], "c", "a title")):
        assert plot is not None
        root = ElementTree.fromstring(plot.svg.replace("xlink:href", "href"))
        assert root.get("viewBox", "").startswith("0 0 ")
        assert root.get("width") is None
        assert re.findall(r"#[0-9a-f]{6}", plot.svg) == []
        labels = {"".join(text.itertext()).strip() for text in root.iter("text")}
        assert labels & {"hidden width", "step"}


def test_run_time_has_a_line_per_contender_that_was_timed(races: tuple[Race, ...]) -> None:
    plot = plots.run_time(races, "a")
    assert [key.name for key in plot.keys] == ["tuned", "written_out", "max_autotune"]
    ticks = re.findall(r">(\d+)</text>", plot.svg)
    assert {"128", "1024", "4096"} <= set(ticks)
    for key in plot.keys:
        (line,) = [path for path in series(plot.svg, key.index) if path.count("L") == 2]
        heights = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", line)]
        # Each contender takes the same time at each width here.
        assert heights == pytest.approx([heights[0]] * 3)


def test_relative_speed_draws_ours_at_one(races: tuple[Race, ...]) -> None:
    plot = plots.relative_speed(races, "b")
    assert "1×" in re.findall(r">([^<]+)</text>", plot.svg)
    (ours,) = series(plot.svg, 0)
    (strongest,) = [path for path in series(plot.svg, 1) if path.count("L") == 2]
    height = [float(re.findall(r"M [\d.]+ ([\d.]+)", path)[0]) for path in (ours, strongest)]
    # SVG counts down from the top.
    assert height[1] < height[0]


def test_one_race_alone_can_be_plotted(races: tuple[Race, ...]) -> None:
    assert "<use" in plots.run_time(races[:1], "a").svg
    assert "<use" in plots.relative_speed(races[:1], "b").svg


def test_plots_join_only_races_of_one_form(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        for row in (race(128), race(1024), race(512, layers=5)):
            store.record_race(row)
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    assert [each.width for each in plots.same_form(report.devices[0].races)] == [128, 1024]
    assert "1 race of other depths or batches" in Page(html.render(report)).text


def test_of_many_contenders_the_last_share_a_colour_and_all_are_drawn(tmp_path: Path) -> None:
    many = (ContenderRow("tuned", 5.0), *(ContenderRow(f"form {index}", 9.0 + index) for index in range(12)))
    with Store.open(tmp_path / "tuning.db") as store:
        store.record_race(race(128, contenders=many))
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    plot = plots.run_time(report.devices[0].races, "a")
    # The strongest and the slowest always have a colour of their own.
    assert [key.name for key in plot.keys] == ["tuned", "form 0", "form 11", "10 others"]
    assert [key.index for key in plot.keys] == [0, 1, 2, 8]
    assert plot.keys[-1].contenders == tuple(f"form {n}" for n in range(1, 11))
    assert plot.svg.count("fill: var(--series-8)") >= 10


def test_loss_curves_are_ours_and_the_strongest_pytorch(races: tuple[Race, ...]) -> None:
    plot = plots.losses(races[0], "c", "a title")
    assert plot is not None
    assert [key.name for key in plot.keys] == ["tuned", "written_out"]
    drawn = re.findall(r"stroke: var\(--series-([01])\)(?:; stroke-opacity: [\d.]+)?; stroke-width: ([\d.]+)", plot.svg)
    # The later one lies on top: ours, and wider.
    assert [index for index, _ in drawn] == ["1", "0"]
    assert float(drawn[1][1]) > float(drawn[0][1])


def test_no_two_loss_curves_have_the_same_title(tmp_path: Path) -> None:
    alone = (ContenderRow("tuned", 6.0, losses=losses(100)),)
    with Store.open(tmp_path / "tuning.db") as store:
        for row in (race(128), race(128, strongest="", contenders=alone), race(256), race(256, batch=64)):
            store.record_race(row)
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    page = html.render(report)
    assert set(re.findall(r"<h4>(Width [^<]*)</h4>", page)) == {
        "Width 128, with a race",
        "Width 128, without a race",
        "Width 256, with a race, 3 layers, batch 32",
        "Width 256, with a race, 3 layers, batch 64",
    }
    assert 'aria-label="Training loss: Width 128, without a race"' in page


def test_no_curve_no_plot(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.record_race(race(128, contenders=(ContenderRow("tuned", 5.0), ContenderRow("eager", 9.0))))
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    assert plots.losses(report.devices[0].races[0], "c", "a title") is None
    assert "Loss curves" not in html.render(report)


def test_long_curves_are_averaged_over_equal_runs() -> None:
    curve = [(step, float(step)) for step in range(10)]
    assert plots.thin(curve, points=5) == ([0.5, 2.5, 4.5, 6.5, 8.5], [0.5, 2.5, 4.5, 6.5, 8.5])
    assert plots.thin(curve, points=10) == ([float(step) for step in range(10)], [float(step) for step in range(10)])
    assert plots.thin([], points=5) == ([], [])


def test_the_same_races_draw_the_same_picture(races: tuple[Race, ...]) -> None:
    assert plots.run_time(races, "a").svg == plots.run_time(races, "a").svg


def test_a_run_by_emulation_shows_both_curves_and_no_time(tmp_path: Path) -> None:
    both = (
        ContenderRow("tuned", None, losses=losses(300), accuracy=0.91),
        ContenderRow("reference", None, losses=losses(300, 1e-5)),
    )
    with Store.open(tmp_path / "tuning.db") as store:
        store.record_race(race(32, device=T4, environment=LAPTOP, strongest="", contenders=both))
        report = collect(store, KERNELS, label="tuning.db", devices=store.devices())
    page = Page(html.render(report))
    assert html.claim(report) == "Trained by emulation: nothing was measured, no race was run"
    assert "Width 32, by emulation" in page.text
    assert "32 400 – 0.1342 0.1342 91.00% by emulation, so without a time" in page.text
    assert html.render(report).count("<svg") == 1
