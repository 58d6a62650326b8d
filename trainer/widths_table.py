"""Several widths side by side, from their documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tuner.store.rows import OURS


def render_widths(documents: Sequence[dict[str, Any]]) -> RenderableType:
    """A line per width: our time, the strongest PyTorch's, the median of their pairwise ratios and its quartiles."""
    table = Table(title=f"{len(documents)} widths on {escape(documents[0]['device'])}", title_justify="left")
    for column in ("width", "ours us/step", "strongest", "us/step", "ratio", "quartiles"):
        table.add_column(column, justify="left" if column == "strongest" else "right", no_wrap=True)
    for document in documents:
        table.add_row(*_cells(document))
    failed = [f"{each['width']}: {why}" for each in documents if (why := each["error"] or _ours(each).get("error"))]
    notes = dict.fromkeys(note for each in documents if (note := each.get("starts_note")))
    lines: list[RenderableType] = [table]
    lines += [Text(text, style="red") for text in failed]
    lines += [Text(text, style="dim") for text in notes]
    return Group(*lines)


def _ours(document: dict[str, Any]) -> dict[str, Any]:
    """Our own contender; our training alone where no race was run; empty where neither came about."""
    ours: dict[str, Any] = document["contenders"].get(OURS) or document.get("training") or {}
    return ours


def _cells(document: dict[str, Any]) -> list[str]:
    def us(contender: dict[str, Any]) -> str:
        us_per_step = contender.get("us_per_step")
        return f"{us_per_step:.2f}" if us_per_step is not None else "-"

    quartiles, ratio = document.get("ratio_quartiles"), document["ratio_to_strongest"]
    return [
        str(document["width"]),
        us(_ours(document)),
        escape(document["strongest"] or "-"),
        us(document["contenders"].get(document["strongest"], {})),
        f"{ratio:.2f}x" if ratio is not None else "-",
        f"{quartiles[0]:.2f} to {quartiles[1]:.2f}" if quartiles else "-",
    ]
