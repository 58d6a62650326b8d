"""A race for people: the table, and the one sentence that counts. Both are made from the stored row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trainer.contenders import PYTORCH
from tuner.store import ContenderRow, RaceRow
from tuner.store.rows import OURS


def ratios(row: RaceRow, name: str) -> tuple[float, ...]:
    """For each repeat the time of `name` over ours: above 1 we are faster. Empty where one of the two has no time."""
    ours, theirs = row.ours, row.contender(name)
    if ours is None or theirs is None or ours.us_per_step is None or theirs.us_per_step is None:
        return ()
    return tuple(their / our for our, their in zip(ours.samples, theirs.samples, strict=True))


def strongest_of(raced: int, most: int | None = None) -> str:
    """Whom a headline compares with. "The strongest" of how many has to be said, or it claims more than was raced.

    `raced` counts the PyTorch contenders that have a time; `most` is the largest such number where several races
    with `raced` at the least are spoken of.
    """
    most = raced if most is None else most
    if most == 1:
        whom = "the only PyTorch form that raced"
    else:
        count = f"{most}" if raced == most else f"{raced} to {most}"
        whom = f"the strongest of the {count} PyTorch forms that raced"
    return f"{whom} ({len(PYTORCH)} exist)" if raced < len(PYTORCH) else whom


def headline(row: RaceRow) -> str:
    """How we compare with the strongest PyTorch step, in one sentence; why not, where there is no comparison."""
    ours = row.ours
    if ours is None or ours.us_per_step is None:
        return f"Our own step has no time, so there is no comparison ({(ours and ours.error) or 'it did not run'})."
    theirs = row.contender(row.strongest)
    pairs = ratios(row, row.strongest)
    if theirs is None or theirs.us_per_step is None or not pairs:
        return f"Our step takes {ours.us_per_step:.2f} us; no PyTorch contender has a time, so there is no comparison."
    raced = sum(contender.name != OURS and contender.us_per_step is not None for contender in row.contenders)
    ratio = statistics.median(pairs)
    relation = f"{ratio:.2f}x as fast as" if ratio >= 1 else f"slower ({ratio:.2f}x) than"
    return (
        f"784-{'-'.join([str(row.width)] * row.layers)}-10, batch {row.batch}: {ours.us_per_step:.2f} us per step, "
        f"{relation} {strongest_of(raced)}: {row.strongest}, {theirs.us_per_step:.2f} us; "
        f"median of {len(pairs)} pairs, {min(pairs):.2f} to {max(pairs):.2f}."
    )


def render_race(
    row: RaceRow,
    details: Mapping[str, str] | None = None,
    *,
    note: str = "",
    cold: Mapping[str, float] | None = None,
) -> RenderableType:
    """The table of all contenders, fastest first and failures last, then `details` by name, then the headline.

    `note` says how the times to start are to be read; `cold` has those with empty caches, in seconds, by name.
    """
    table = Table(title=f"Race on {escape(row.device.name)}, {row.steps} steps, lr {row.lr:g}", title_justify="left")
    table.add_column("contender", overflow="fold")
    starts = ("start s", "cold s") if cold else ("start s",)
    for column in ("us/step", "spread", "vs ours", *starts, "peak MiB", "accuracy"):
        table.add_column(column, justify="right", no_wrap=True)
    failed = [contender for contender in row.contenders if contender.us_per_step is None]
    timed = [contender for contender in row.contenders if contender.us_per_step is not None]
    for contender in sorted(timed, key=lambda contender: contender.us_per_step or 0.0):
        style = "bold green" if contender.name == OURS else "bold" if contender.name == row.strongest else ""
        table.add_row(*_cells(row, contender, cold), style=style)
    for contender in failed:
        table.add_row(*_cells(row, contender, cold), style="dim")
    lines: list[RenderableType] = [table]
    lines += [Text(f"{contender.name}: {contender.error or 'no time'}", style="red") for contender in failed]
    lines += [Text(f"{name}: {detail}", style="dim") for name, detail in (details or {}).items() if detail]
    lines += [Text(note, style="dim")] if note else []
    return Group(*lines, Text(headline(row), style="bold"))


def _cells(row: RaceRow, contender: ContenderRow, cold: Mapping[str, float] | None) -> list[str]:
    pairs = ratios(row, contender.name)

    def cell(value: float | None, form: str, scale: float = 1.0) -> str:
        return "-" if value is None else format(value * scale, form)

    return [
        escape(contender.name),
        cell(contender.us_per_step, ".2f"),
        cell(contender.spread, ".1f", 100) + ("%" if contender.spread is not None else ""),
        f"{statistics.median(pairs):.2f}x" if pairs else "-",
        cell(contender.start_s, ".1f"),
        *([cell(cold.get(contender.name), ".1f")] if cold else []),
        cell(contender.peak_bytes, ".0f", 1 / 2**20),
        cell(contender.accuracy, ".2f", 100) + ("%" if contender.accuracy is not None else ""),
    ]
