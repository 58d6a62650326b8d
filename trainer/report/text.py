"""Numbers and sentences as people read them; shared by the terminal, Markdown and HTML forms."""

from __future__ import annotations

from datetime import datetime

from trainer.race_table import strongest_of
from trainer.report.model import Contender, DeviceReport, ProblemRow, Race, Report, Versions
from tuner.types import Device, Environment

NONE = "–"

EMPTY = "The store has no results yet. Run `mnist-tune search`, then `mnist-tune train`."
ONLY_PREDICTED = (
    "Predictions only: this GPU was not there. A model ranked configurations that compiled and whose results were "
    "verified; no time below was measured."
)
NO_RACE_YET = "No race against PyTorch is stored for this device yet; `mnist-tune train` runs one."
NO_RACE_WITHOUT_GPU = (
    "No race was run: racing PyTorch needs the GPU itself. Where it is there, `mnist-tune train` runs one."
)


def number(value: float | None, digits: int = 3) -> str:
    """`value` to `digits` significant digits, never in scientific form."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    decimals = max(digits - whole, 0) if whole else digits
    return f"{value:,.{decimals}f}"


def percent(value: float | None, decimals: int = 0) -> str:
    """`value`, which is in percent already."""
    if value is None:
        return NONE
    least = 10.0**-decimals
    return f"<{least:g}%" if 0 < value < least / 2 else f"{value:.{decimals}f}%"


def fraction(value: float | None, decimals: int = 1) -> str:
    """A fraction of 1 as a percentage."""
    return NONE if value is None else percent(100 * value, decimals)


def ratio(value: float | None) -> str:
    """`2.31x`."""
    return NONE if value is None else f"{number(value)}×"


def accuracy_of(row: ProblemRow) -> str:
    """The relative error and the limit that it was held to: `2.1e-04 ≤ 7e-04`."""
    if row.error is None or row.tolerance is None:
        return ""
    return "exact" if row.error == 0 else f"{row.error:.1e} ≤ {row.tolerance:.0e}"


def seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def mebibytes(value: int | None) -> str:
    return NONE if value is None else f"{value / 2**20:,.0f}"


def moment(when: datetime | None) -> str:
    return NONE if when is None else when.strftime("%Y-%m-%d %H:%M UTC")


def day(when: datetime | None) -> str:
    return NONE if when is None else when.strftime("%Y-%m-%d")


def time_us(row: ProblemRow) -> str:
    """A predicted time is never written as if it had been measured."""
    return f"≈{number(row.us)}" if row.kind == "predicted" and row.us is not None else number(row.us)


def config(row: ProblemRow) -> str:
    return NONE if row.config is None else " ".join(f"{name}={value}" for name, value in row.config.items())


def trials(row: ProblemRow, separator: str = " ") -> str:
    """`48`; `3 of 16` where 16 configurations were ranked and 3 of them have a row.

    Several searches of one problem may leave more rows than any of them had candidates; then the rows stand alone.
    """
    if row.candidates is None or row.candidates < row.trials:
        return f"{row.trials:,}"
    return f"{row.trials:,}{separator}of {row.candidates:,}"


def failures(row: ProblemRow, separator: str = ", ") -> str:
    """`3 compile, 1 wrong`."""
    return separator.join(f"{count} {status}" for status, count in row.failures.items()) or "none"


def kind(row: ProblemRow) -> str:
    """The kind of the time and the rung that a lookup takes, in one cell; never `measured` for anything else."""
    if row.kind is None:
        return row.rung
    return row.kind if row.rung in {row.kind, "exact"} else f"{row.kind}, {row.rung}"


def title(device: Device) -> str:
    return f"{device.name} ({device.arch})"


def limits(device: Device) -> str:
    """The device's figures that the report reckons with."""
    parts = [
        f"{device.sm_count} SMs",
        f"{device.memory_bandwidth / 1e9:,.0f} GB/s memory",
        f"{device.l2_bandwidth / 1e9:,.0f} GB/s L2",
        f"{device.l2_bytes / 2**20:,.0f} MB L2",
    ]
    return ", ".join(parts)


def outcome(contender: Contender) -> str:
    """Why a contender has no time; empty where it has one."""
    if contender.us is not None:
        return ""
    return f"failed: {contender.error}" if contender.error else "not timed"


def headline(race: Race) -> str:
    """One sentence about one race, against the strongest contender."""
    ours, strongest = race.ours, race.contender(race.strongest)
    if ours is None or strongest is None or strongest.speedup is None:
        return f"Width {race.width}: no race was run."
    verdict = (
        f"{ratio(strongest.speedup)} as fast as"
        if strongest.speedup >= 1
        else f"slower ({ratio(strongest.speedup)}) than"
    )
    return (
        f"Width {race.width}: {number(ours.us)} us a step, {verdict} {strongest_of(race.raced)}: "
        f"{strongest.name}, {number(strongest.us)} us."
    )


def environment(versions: Environment) -> str:
    """The software versions that are known."""
    named = [
        ("driver", versions.driver),
        ("NVRTC", versions.nvrtc),
        ("CuPy", versions.cupy),
        ("PyTorch", versions.torch),
        ("compiler", versions.compiler),
        ("Python", versions.python),
        ("", versions.system),
    ]
    return ", ".join(f"{name} {value}".strip() for name, value in named if value)


def made_with(versions: Versions) -> str:
    """`2026-05-01 to 2026-05-02, 340 rows: driver 580.1, NVRTC 13.0, ...`."""
    first, last = day(versions.first), day(versions.last)
    dates = first if first == last else f"{first} to {last}"
    return f"{dates}, {_plural(versions.rows, 'row')}: {environment(versions.environment)}"


def counts(device: DeviceReport) -> str:
    """`12 problems, 340 trials (28 failed), 3 races`; what there is none of is left out."""
    rows = sum(row.trials for row in device.problems)
    tried = _plural(rows, "trial")
    if any(row.candidates is not None for row in device.problems):
        # Where a row does not say how many there were, there were no fewer than its trials.
        most = sum(max(row.candidates or 0, row.trials) for row in device.problems)
        tried = f"{rows:,} of {_plural(most, 'trial')} kept"
    failed = sum(sum(row.failures.values()) for row in device.problems)
    stale = sum(row.stale for row in device.problems)
    parts = []
    if device.problems:
        parts += [_plural(len(device.problems), "problem"), f"{tried} ({failed:,} failed)"]
    if device.races:
        parts.append(_plural(len(device.races), "race"))
    if device.runs:
        parts.append(f"{_plural(len(device.runs), 'run')} without a race")
    if stale:
        parts.append(f"{_plural(stale, 'row')} of an older kernel source left out")
    return ", ".join(parts)


def no_race(device: DeviceReport) -> str:
    """Why there is no race to show; with backticks around commands."""
    return NO_RACE_YET if device.measured else NO_RACE_WITHOUT_GPU


def run_cells(run: Race) -> tuple[str, ...]:
    """Width, steps, us per step, our last loss, PyTorch's, accuracy."""
    ours = run.ours
    other = next((each.last_loss for each in run.contenders if not each.ours and each.losses), None)
    return (
        str(run.width),
        f"{run.steps:,}",
        number(ours.us if ours else None),
        number(ours.last_loss if ours else None, 4),
        number(other, 4),
        fraction(ours.accuracy if ours else None, 2),
    )


def how(run: Race) -> str:
    """How a run without a race was made, or why it came to nothing."""
    if run.ours is not None and run.ours.error:
        return f"failed: {run.ours.error}"
    return "by emulation, so without a time" if run.emulated else "on the GPU, without a race"


def plain(markdown: str) -> str:
    """Without the backticks."""
    return markdown.replace("`", "")


def summary(report: Report) -> str:
    return f"{report.store}, {moment(report.created)}, mnist-tune {report.version}"


NO_RANKING = (
    "The store has no kernel with ten measurements or more of one problem, so the model cannot be judged; run "
    "`mnist-tune search` on a GPU."
)
RANKING = (
    "Spearman's rank correlation of predicted with measured times: 1 is the same order, 0 none. Pooled over problems "
    "it flatters (larger ones take longer), so each problem's own is given too. Top 10: the fastest of the model's ten "
    "best guesses over the fastest of all. Predicted: the median of predicted over measured time."
)
RANKING_HEAD = ("kernel, problem", "rows", "pooled", "Spearman", "top 10", "predicted")


def ranking_rows(device: DeviceReport) -> list[tuple[bool, tuple[str, ...]]]:
    """Cells for each kernel (True) and, below it, for each of its problems."""
    found: list[tuple[bool, tuple[str, ...]]] = []
    for kernel in device.rankings:
        each = f"mean {kernel.mean:.2f}, least {kernel.least:.2f}"
        found.append((True, (kernel.kernel, str(kernel.rows), f"{kernel.pooled:.2f}", each, "", "")))
        for row in kernel.problems:
            name = f"{row.shape} {row.options}".strip()
            cells = (name, str(row.rows), "", f"{row.spearman:.2f}", ratio(row.top_over_best))
            found.append((False, (*cells, ratio(row.predicted_over_measured))))
    return found


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
