"""The report in a terminal: one pair of tables per device, drawn by rich."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainer.report import text
from trainer.report.model import DeviceReport, ProblemRow, Report

_PROBLEM_HEAD = ("problem", "us", "spread", "of\nfloor", "vs\nlibrary", "trials", "kind", "verified\nby", "failed")


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
            _heading("Problems", console)
            console.print(_problems(device, console.width))
            for kernel, rows in groupby(device.problems, key=lambda row: row.kernel):
                _heading(f"Best configurations of {kernel}", console)
                _show_configurations(list(rows), console)
        if device.races:
            _heading("Races", console)
            console.print(_races(device))
            for race in device.races:
                console.print(text.headline(race), markup=False, highlight=False)
        else:
            console.print()
            console.print(text.plain(text.no_race(device)), style="dim", markup=False, highlight=False)
        if device.runs:
            _heading("Training without a race", console)
            console.print(_runs(device))
        for versions in device.versions:
            console.print(text.made_with(versions), style="dim", markup=False, highlight=False)


def show_rankings(report: Report, console: Console) -> None:
    """Print only how well the model ranks what was measured."""
    shown = [device for device in report.devices if device.rankings]
    for device in shown:
        console.rule(f"[bold]{escape(text.title(device.device))}[/bold]", align="left", style="dim")
        table = _table()
        table.add_column(text.RANKING_HEAD[0], overflow="fold")
        for name in text.RANKING_HEAD[1:]:
            table.add_column(name, justify="right")
        for bold, cells in text.ranking_rows(device):
            table.add_row(*cells, style="bold" if bold else "")
        console.print(table)
        console.print()
    console.print(text.RANKING if shown else text.plain(text.NO_RANKING), style="dim", markup=False, highlight=False)


def _problems(device: DeviceReport, width: int) -> Group:
    """A table in which a kernel's name stands across all columns, which rich has no cell for: a table per kernel, all
    with the same widths, below one that has the head alone."""
    wide = width >= 110
    gap = 2 if wide else 1
    lines = [(row.kernel, _problem_cells(row, wide)) for row in device.problems]
    widths = [
        max(cell_len(line) for cell in column for line in cell.plain.split("\n"))
        for column in zip(tuple(map(Text, _PROBLEM_HEAD)), *(cells for _, cells in lines), strict=True)
    ]
    # On 80 columns the options wrap below the shape, and everything still fits. Then the words of two other columns do.
    for name, least in (("problem", 15), ("failed", 12), ("kind", 10)):
        index, over = _PROBLEM_HEAD.index(name), sum(widths) + gap * len(widths) - width
        widths[index] = min(widths[index], max(least, widths[index] - over))

    def table(head: bool) -> Table:
        made = _table(gap, head)
        for name, size in zip(_PROBLEM_HEAD, widths, strict=True):
            folds = name in ("problem", "kind", "failed")
            right = name not in ("problem", "kind", "verified\nby", "failed")
            made.add_column(name, justify="right" if right else "left", width=size, no_wrap=not folds, overflow="fold")
        return made

    parts: list[Table | Text] = [table(True)]
    for kernel, rows in groupby(lines, key=lambda line: line[0]):
        body = table(False)
        for _, cells in rows:
            body.add_row(*cells)
        parts += [Text(kernel, style="bold"), body]
    return Group(*parts)


def _problem_cells(row: ProblemRow, wide: bool) -> tuple[Text, ...]:
    return (
        _name(row),
        Text(text.time_us(row)),
        Text(text.fraction(row.spread)),
        Text(text.percent(row.floor_percent)),
        Text(text.ratio(row.library_ratio)),
        Text(text.trials(row, " " if wide else "\n")),
        Text(text.kind(row), style="" if row.kind == "measured" else "yellow"),
        Text(row.verified_by or text.NONE),
        Text(text.failures(row, ", " if wide else "\n"), style="dim"),
    )


def _show_configurations(rows: Sequence[ProblemRow], console: Console) -> None:
    """A column per parameter, so that what differs between the problems can be seen; or lines, where it is too wide."""
    table = _table()
    table.add_column("problem", no_wrap=True)
    names = sorted({name for row in rows for name in row.config or {}})
    for name in names:
        # A long macro breaks at its underscores, so that a dozen of them fit.
        table.add_column(name.replace("_", "_\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(_name(row), *(str((row.config or {}).get(name, text.NONE)) for name in names))
    if console.measure(table, options=console.options.update(width=1000)).maximum <= console.width:
        console.print(table)
        return
    for row in rows:
        console.print(Padding(Text.assemble(_name(row), ": ", (text.config(row), "dim")), (0, 0, 0, 2)))


def _name(row: ProblemRow) -> Text:
    return Text(row.shape).append(f" {row.options}" if row.options else "", style="dim")


def _races(device: DeviceReport) -> Table:
    table = _table()
    table.add_column("width", justify="right")
    table.add_column("contender")
    for name in ("us/step", "spread", "speed-up", "start s", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for race in device.races:
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


def _runs(device: DeviceReport) -> Table:
    table = _table()
    for name in ("width", "steps", "us/step", "last loss", "PyTorch's", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for run in device.runs:
        table.add_row(*text.run_cells(run), Text(text.how(run), style="dim"))
    return table


def _heading(title: str, console: Console) -> None:
    console.print(Text(f"\n{title}", style="bold"))


def _table(gap: int = 2, head: bool = True) -> Table:
    return Table(pad_edge=False, box=None, header_style="dim", padding=(0, gap, 0, 0), show_header=head)
