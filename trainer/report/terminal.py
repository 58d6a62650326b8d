"""The report in a terminal: one pair of tables per device, drawn by rich."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trainer.report import text
from trainer.report.model import DeviceReport, ProblemRow, Report


def show(report: Report, console: Console) -> None:
    """Print `report` to `console`."""
    console.print(f"[bold]mnist-tune report[/bold]  [dim]{escape(text.summary(report))}[/dim]", highlight=False)
    if not report.devices:
        console.print(text.plain(text.EMPTY), markup=False, highlight=False)
    for device in report.devices:
        console.print()
        console.rule(f"[bold]{escape(text.title(device.device))}[/bold]", align="left", style="dim")
        facts = f"{text.limits(device.device)}. {text.counts(device)}."
        console.print(facts, style="dim", markup=False, highlight=False)
        if device.problems and not device.measured:
            console.print(f"[yellow]{text.ONLY_PREDICTED}[/yellow]")
        if device.problems:
            console.print(_problems(device))
            for kernel, rows in groupby(device.problems, key=lambda row: row.kernel):
                console.print(_configurations(kernel, list(rows)))
        if device.timed_races:
            console.print(_races(device))
            for race in device.timed_races:
                console.print(text.headline(race), markup=False, highlight=False)
        else:
            console.print(text.plain(text.no_race(device)), style="dim", markup=False, highlight=False)
        for versions in device.versions:
            span = f"{text.day(versions.first)} to {text.day(versions.last)}, {versions.rows} rows: "
            console.print(span + text.environment(versions.environment), style="dim", markup=False, highlight=False)


def _problems(device: DeviceReport) -> Table:
    table = _table("Problems")
    table.add_column("problem", no_wrap=True)
    for name in ("us", "spread", "of floor", "vs library", "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("verified by", no_wrap=True)
    table.add_column("failed", overflow="fold")
    for kernel, rows in groupby(device.problems, key=lambda row: row.kernel):
        table.add_row(Text(kernel, style="bold"))
        for row in rows:
            table.add_row(
                _name(row),
                text.time_us(row),
                text.fraction(row.spread),
                text.percent(row.floor_percent),
                text.ratio(row.library_ratio),
                str(row.trials),
                Text(text.kind(row), style="" if row.kind == "measured" else "yellow"),
                row.verified_by or text.NONE,
                Text(text.failures(row), style="dim"),
            )
    return table


def _configurations(kernel: str, rows: Sequence[ProblemRow]) -> Table:
    """A column per parameter: what differs between the problems can then be seen."""
    table = _table(f"Best configurations of {kernel}")
    table.add_column("problem", no_wrap=True)
    names = sorted({name for row in rows for name in row.config or {}})
    for name in names:
        # A long macro breaks at its underscores, so that a dozen of them fit.
        table.add_column(name.replace("_", "_\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(_name(row), *(str((row.config or {}).get(name, text.NONE)) for name in names))
    return table


def _name(row: ProblemRow) -> Text:
    return Text(f"  {row.shape}").append(f" {row.options}", style="dim")


def _races(device: DeviceReport) -> Table:
    table = _table("Races")
    table.add_column("width", justify="right")
    table.add_column("contender")
    for name in ("us/step", "spread", "speed-up", "start s", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for race in device.timed_races:
        for contender in race.contenders:
            note = text.outcome(contender)
            if contender.name == race.strongest:
                note = "strongest"
            elif contender.name == race.story:
                note = "the story's form"
            table.add_row(
                str(race.width) if contender is race.contenders[0] else "",
                Text(contender.name, style="bold green" if contender.ours else ""),
                text.number(contender.us),
                text.fraction(contender.spread),
                "" if contender.ours else text.ratio(contender.speedup),
                text.seconds(contender.start_s),
                text.fraction(contender.accuracy, 2),
                Text(note, style="red" if contender.us is None else "dim"),
            )
        table.add_section()
    return table


def _table(title: str) -> Table:
    heading = Text(f"\n{title}", style="bold not italic")
    return Table(title=heading, title_justify="left", pad_edge=False, box=None, header_style="dim")
