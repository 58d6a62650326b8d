"""The report as Markdown: GitHub's tables, for a pull request or a results file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainer.report import text
from trainer.report.model import DeviceReport, Race, Report


def render(report: Report) -> str:
    """The whole report; ends with a newline."""
    blocks = ["# mnist-tune report", text.summary(report)]
    if not report.devices:
        blocks.append(text.EMPTY)
    for device in report.devices:
        blocks += _device(device)
    return "\n\n".join(blocks) + "\n"


def render_rankings(report: Report) -> str:
    """Only how well the model ranks what was measured; ends with a newline."""
    blocks = ["# mnist-tune report: the model", text.summary(report)]
    shown = [device for device in report.devices if device.rankings]
    blocks.append(text.RANKING if shown else text.NO_RANKING)
    for device in shown:
        rows = [(f"**{cells[0]}**", *cells[1:]) if bold else cells for bold, cells in text.ranking_rows(device)]
        blocks += [f"## {text.title(device.device)}", _table(text.RANKING_HEAD, rows)]
    return "\n\n".join(blocks) + "\n"


def _device(device: DeviceReport) -> Iterable[str]:
    yield f"## {text.title(device.device)}"
    yield f"{text.limits(device.device)}. {text.counts(device)}."
    if device.problems and not device.measured:
        yield f"**{text.ONLY_PREDICTED}**"
    if device.races:
        yield "### Races"
        yield "\n".join(f"- {text.headline(race)}" for race in device.races)
        yield _races(device.races)
    else:
        yield text.no_race(device)
    if device.runs:
        yield "### Training without a race"
        head = ("width", "steps", "us/step", "last loss", "PyTorch's", "accuracy", "note")
        yield _table(head, [(*text.run_cells(run), text.how(run)) for run in device.runs])
    if device.problems:
        yield "### Problems"
        yield _problems(device)
    yield "### Environment"
    yield "\n".join(f"- {_cell(text.made_with(versions))}" for versions in device.versions)


def _problems(device: DeviceReport) -> str:
    head = ("kernel", "shape", "options", "us", "spread", "% of floor", "library / ours", "trials", "failed", "kind")
    rows = [
        (
            row.kernel,
            row.shape,
            row.options,
            text.time_us(row),
            text.fraction(row.spread),
            text.percent(row.floor_percent),
            text.ratio(row.library_ratio),
            text.trials(row),
            text.failures(row),
            text.kind(row),
            row.verified_by or text.NONE,
            f"`{text.config(row)}`",
        )
        for row in device.problems
    ]
    return _table((*head, "verified by", "configuration"), rows)


def _races(races: Sequence[Race]) -> str:
    head = ("network", "contender", "us/step", "spread", "contender / ours", "start s", "peak MiB", "accuracy", "note")
    rows = []
    for race in races:
        for contender in race.contenders:
            marks = {race.strongest: "strongest", race.story: "the story's form"}
            note = "ours" if contender.ours else marks.get(contender.name) or text.outcome(contender)
            rows.append(
                (
                    race.form,
                    contender.name,
                    text.number(contender.us),
                    text.fraction(contender.spread),
                    text.NONE if contender.ours else text.ratio(contender.speedup),
                    text.seconds(contender.start_s),
                    text.mebibytes(contender.peak_bytes),
                    text.fraction(contender.accuracy, 2),
                    note,
                )
            )
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: str) -> str:
    """A pipe or a line break inside a cell would end it."""
    return value.replace("|", "\\|").replace("\n", " ")
