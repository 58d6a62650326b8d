"""The page's plots: matplotlib draws, and the SVG is made fit to stand inside a page.

Colours leave as CSS variables (so that one picture serves the light and the dark page), text stays text in the page's
own font, and ids are made unique. Nothing in the SVG refers to anything outside it.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from trainer.report.model import OURS, Contender, Race
from trainer.report.text import number

_INK, _MUTED, _GRID = "#0a0a00", "#0a0a01", "#0a0a02"
_SERIES = tuple(f"#0a0a{index:02x}" for index in range(16, 25))
"""Stand-ins: colours that nothing else uses, replaced by CSS variables in `_svg`. The first series is ours, the last
one the lines that are too many to tell apart."""
_REST = len(_SERIES) - 1
_NAMES = {_INK: "--ink", _MUTED: "--muted", _GRID: "--line"} | {
    colour: f"--series-{index}" for index, colour in enumerate(_SERIES)
}

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h", ".")
_DASHES: tuple[object, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)))
_POINTS = 120
"""Most points of a drawn loss curve; longer ones are averaged over equal runs of steps."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mnist-tune",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "text.color": _INK,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "path.simplify": False,
}


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend: the series' number (CSS variable `--series-N`), its name, and the contenders drawn so."""

    index: int
    name: str
    contenders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn plot: inline SVG and what a reader who cannot see it is told."""

    svg: str
    keys: tuple[Key, ...]


def same_form(races: Sequence[Race]) -> tuple[Race, ...]:
    """The races that one line may join: those of the layers and batch that most widths were raced with."""
    forms = Counter((race.layers, race.batch) for race in races)
    (form, _), *_ = forms.most_common(1)
    return tuple(race for race in races if (race.layers, race.batch) == form)


def run_time(races: Sequence[Race], ident: str) -> Plot:
    """Run time per step against hidden width, both logarithmic: a line per contender, and ours."""
    races = same_form(races)
    keys = _keys(races)
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        for key, name in _lines(keys):
            points = [(race.width, found.us) for race in races if (found := race.contender(name)) and found.us]
            _line(axes, key, points)
        _widths(axes, races)
        _decades(axes, "us per step")
        return Plot(_svg(figure, ident, "Run time per training step against hidden width"), keys)


def relative_speed(races: Sequence[Race], ident: str) -> Plot:
    """How many times as fast as each contender's our step is, against hidden width; at 1 they are equal."""
    races = same_form(races)
    keys = _keys(races)
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        axes.axhline(1.0, color=_SERIES[0], linewidth=2.2)
        for key, name in _lines(keys[1:]):
            points = [
                (race.width, found.speedup) for race in races if (found := race.contender(name)) and found.speedup
            ]
            _line(axes, key, points)
        _widths(axes, races)
        _decades(axes, "times our run time", suffix="×")
        return Plot(_svg(figure, ident, "Relative speed against hidden width"), keys)


def losses(race: Race, ident: str, title: str) -> Plot | None:
    """Training loss against step, ours over the strongest PyTorch's; None where neither kept a curve.

    `title` is what a reader who cannot see the plot is told.
    """
    ours = race.ours
    curves: list[tuple[Key, Contender]] = []
    if ours is not None and ours.losses:
        curves.append((Key(0, ours.name, (ours.name,)), ours))
    # The strongest comes first among the others, so the first one with a curve is whom the headline speaks of.
    other = next((each for each in race.contenders if not each.ours and each.losses), None)
    if other is not None:
        curves.append((Key(1, other.name, (other.name,)), other))
    if not curves:
        return None
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(width=4.2, height=2.5)
        for key, contender in curves:
            steps, values = thin(contender.losses)
            # Ours lies on top and lets the other's thin line through: where only one shows, the two are not the same.
            width, alpha, order = (3.6, 0.7, 3) if contender.ours else (1.3, 1.0, 2)
            axes.plot(steps, values, color=_SERIES[key.index], linewidth=width, alpha=alpha, zorder=order)
        axes.set_xlabel("step")
        axes.set_ylabel("cross-entropy loss")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.02)
        axes.grid(axis="y")
        return Plot(_svg(figure, ident, f"Training loss: {title}"), tuple(key for key, _ in curves))


def thin(curve: Sequence[tuple[int, float]], points: int = _POINTS) -> tuple[list[float], list[float]]:
    """Steps and losses of `curve`, averaged over equal runs where it has more than `points` of them."""
    run = -(-len(curve) // points) or 1
    groups = [curve[start : start + run] for start in range(0, len(curve), run)]
    steps = [fmean(step for step, _ in group) for group in groups]
    return steps, [fmean(loss for _, loss in group) for group in groups]


def _keys(races: Sequence[Race]) -> tuple[Key, ...]:
    """Ours, then those that were timed, each in its colour. Where they are too many to tell apart, only the strongest
    at any width, the story's form and the slowest have their own; the rest share one."""
    timed = [contender.name for race in races for contender in race.contenders if contender.us and not contender.ours]
    slowest = [race.contenders[-1].name for race in races if race.contenders[-1].us]
    first = [race.strongest for race in races] + [race.story for race in races] + slowest
    # A dictionary keeps the order and drops the repetitions.
    names = [name for name in dict.fromkeys([*first, *timed]) if name is not None]
    count = len(names) if len(names) < _REST else min(_REST - 1, sum(name in first for name in names))
    shown, rest = names[:count], tuple(names[count:])
    keys = [Key(index, name, (name,)) for index, name in enumerate([OURS, *shown])]
    if rest:
        keys.append(Key(_REST, rest[0] if len(rest) == 1 else f"{len(rest)} others", rest))
    return tuple(keys)


def _lines(keys: Sequence[Key]) -> list[tuple[Key, str]]:
    """A line for each contender, with the key that it is drawn in."""
    return [(key, name) for key in keys for name in key.contenders]


def _axes(width: float = 4.6, height: float = 3.1) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _line(axes: Axes, key: Key, points: Sequence[tuple[float, float]]) -> None:
    ours = key.index == 0
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=_SERIES[key.index],
        linestyle=_DASHES[key.index % len(_DASHES)],
        linewidth=2.6 if ours else 1.4 if key.index < _REST else 0.8,
        marker=_MARKERS[key.index],
        markersize=5.5 if ours else 4 if key.index < _REST else 2.5,
        zorder=3 if ours else 2 if key.index < _REST else 1,
    )


def _widths(axes: Axes, races: Sequence[Race]) -> None:
    """A logarithmic axis that has a tick at every width raced, and at nothing else."""
    widths = [race.width for race in races]
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(widths) / 1.25, max(widths) * 1.25)
    axes.set_xlabel("hidden width")


def _decades(axes: Axes, label: str, suffix: str = "") -> None:
    """A logarithmic axis in plain numbers, with whole decades in view so that the slope can be judged."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 10:
        axes.set_ylim(low / 1.6, high * 1.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{_short(value)}{suffix}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)
    axes.grid(axis="y", which="major")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else number(value, 1)


def _svg(figure: Figure, ident: str, label: str) -> str:
    """The figure as an `<svg>` element for the page; `ident` keeps its ids apart from those of other plots."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    # The style sheet would reach the whole page; page.css says the same of plots alone.
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{ident}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{ident}-", svg)
    for colour, name in _NAMES.items():
        svg = svg.replace(colour, f"var({name})")
    svg = re.sub(r"font-family: [^;\"]+;? ?", "", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{label}">', svg)
    return svg.strip()
