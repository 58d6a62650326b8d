"""A lookup's answer for people (`mnist-tune explain`) and for programs."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.store.ladder import Rung, distance
from tuner.store.lookup import Match


def explain(match: Match) -> RenderableType:
    """The ladder as a table: each rung, whether it held, and why it did not."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("rung", no_wrap=True)
    table.add_column("held", no_wrap=True)
    table.add_column("why")
    for rung, lines in _rungs(match):
        held = rung is match.rung
        table.add_row(rung.value, Text("yes", "green") if held else Text("no", "dim"), Text("\n".join(lines)))
    return Group(Text(_heading(match), "bold"), table, Text(f"config: {match.config.label}"))


def explain_lines(match: Match) -> list[str]:
    """The same as plain lines, for logs and pipes."""
    lines = [_heading(match)]
    for rung, why in _rungs(match):
        lines.append(f"  {rung.value}: {'held' if rung is match.rung else 'did not hold'}")
        lines += [f"    {line}" for line in why]
    return [*lines, f"  config: {match.config.label}"]


def as_json(match: Match) -> dict[str, Any]:
    """The same as plain JSON values."""
    row = match.observation
    return {
        "kernel": match.problem.kernel,
        "dims": dict(match.problem.dims),
        "options": dict(match.problem.options),
        "device": match.device.key,
        "source_hash": match.source_hash,
        "rung": match.rung.value,
        "config": dict(match.config),
        "expected_us": match.expected_us,
        "held": source_of(match),
        "reasons": [{"rung": rung.value, "reason": reason} for rung, reason in match.reasons],
        "observation": row
        and {
            "uuid": row.uuid,
            "dims": dict(row.measurement.problem.dims),
            "device": row.device.key,
            "kind": row.measurement.kind.value,
            "median_us": row.measurement.median_us,
            "spread": row.measurement.spread,
            "error": row.measurement.error,
            "verified_by": row.measurement.verified_by,
            "created_at": row.created_at.isoformat(),
        },
    }


def source_of(match: Match) -> str:
    """Where the configuration comes from, in one line: `measured at 12.30 us for 32x784x128 on Tesla T4 (...)`."""
    row = match.observation
    if row is None:
        return "the kernel's default; search this problem to do better"
    seen = row.measurement
    far = distance(match.problem, seen.problem)
    steps = f", {far:.2f} powers of two away" if far else ""
    return (
        f"{seen.kind.value} at {seen.median_us:.2f} us for {seen.problem.shape}{steps} on {row.device.name} "
        f"({row.created_at:%Y-%m-%d}, row {row.uuid[:8]})"
    )


def _rungs(match: Match) -> list[tuple[Rung, list[str]]]:
    above = [(rung, [reason for _, reason in group]) for rung, group in groupby(match.reasons, lambda item: item[0])]
    return [*above, (match.rung, [source_of(match)])]


def _heading(match: Match) -> str:
    return f"{match.problem.label} on {match.device.name} ({match.device.arch}), source {match.source_hash[:8]}"
