"""The report as one self-contained page: inline CSS, inline SVG, no script, nothing from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from trainer.race_table import strongest_of
from trainer.report import plots, text
from trainer.report.model import OURS, DeviceReport, Race, Report

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class _View:
    """A device's section: its data and the plots that it has data for."""

    ident: str
    report: DeviceReport
    run_time: plots.Plot | None
    relative_speed: plots.Plot | None
    losses: tuple[tuple[Race, str, plots.Plot], ...]
    """With their titles, no two of which are the same."""
    left_out: str
    """Races that the plots do not show, in words; empty where they show all."""


def render(report: Report) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["prose"] = _prose
    views = [_view(device, f"device-{index}") for index, device in enumerate(report.devices)]
    page = environment.get_template("page.html.j2").render(
        report=report, views=views, claim=claim(report), text=text, ours=OURS
    )
    return re.sub(r"\n{2,}", "\n", page).strip() + "\n"


def claim(report: Report) -> str:
    """The page's headline: what the races of the first raced device say, or plainly that there are none."""
    for device in report.devices:
        found = [
            (race, rival.speedup)
            for race in device.races
            if (rival := race.contender(race.strongest)) and rival.speedup
        ]
        if not found:
            continue
        speedups = [speedup for _, speedup in found]
        low, high = text.ratio(min(speedups)), text.ratio(max(speedups))
        span = high if low == high else f"{low} to {high}"
        widths = sorted({race.width for race, _ in found})
        at = f"width {widths[0]}" if len(widths) == 1 else f"widths {widths[0]} to {widths[-1]}"
        raced = [race.raced for race, _ in found]
        rivals = strongest_of(min(raced), max(raced))
        return f"{span} as fast as {rivals}, at {at}, on {_article(device.device.name)}"
    if any(device.measured for device in report.devices):
        return "Kernels measured; no race against PyTorch yet"
    predicted = ", ".join(device.device.name for device in report.devices if device.problems)
    if predicted:
        return f"Predicted for {predicted}: nothing was measured, no race was run"
    if report.devices:
        return "Trained by emulation: nothing was measured, no race was run"
    return "Nothing has been tuned yet"


def _prose(markdown: str) -> Markup:
    """Text whose commands stand between backticks."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(markdown))))


def _article(name: str) -> str:
    # Letters that are read by their own name with a vowel in front: "an NVIDIA H200", "an RTX 4090".
    return f"{'an' if name[:1] in 'AEFHILMNORSX' else 'a'} {name}"


def _titles(races: Sequence[Race]) -> list[tuple[Race, str]]:
    """The races with titles that tell them apart: by width and kind, by depth and batch where that is not enough."""

    def short(race: Race) -> str:
        kind = "with a race" if race.timed else "by emulation" if race.emulated else "without a race"
        return f"Width {race.width}, {kind}"

    count = Counter(map(short, races))
    forms = [f", {race.layers} layers, batch {race.batch}" if count[short(race)] > 1 else "" for race in races]
    return [(race, short(race) + form) for race, form in zip(races, forms, strict=True)]


def _view(report: DeviceReport, ident: str) -> _View:
    raced = report.races
    curves = [
        (race, title, plots.losses(race, f"{ident}-loss-{index}", title))
        for index, (race, title) in enumerate(_titles((*report.races, *report.runs)))
    ]
    left_out = len(raced) - len(plots.same_form(raced)) if raced else 0
    return _View(
        ident=ident,
        report=report,
        run_time=plots.run_time(raced, f"{ident}-time") if raced else None,
        relative_speed=plots.relative_speed(raced, f"{ident}-speed") if raced else None,
        losses=tuple((race, title, plot) for race, title, plot in curves if plot is not None),
        left_out=f"{left_out} race{'s' if left_out > 1 else ''}" if left_out else "",
    )
