"""A plan for people: one line per kernel of the step, its configuration beneath."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from trainer.plan import Choice, Plan, WholeStepPlan
from tuner.store import Rung

_HEADER = ("kernel", "shape", "found", "expected us")


def render_plan(plan: Plan | WholeStepPlan) -> Group:
    """Kernel, sizes, how the store came to the configuration, and the time that it is expected to take.

    The configuration stands beneath, broken between its parameters where the terminal is narrow; where a line has the
    same problem as the one before, so that it has the same configuration, it is not repeated.
    """
    cells = [_HEADER, *(_cells(choice) for choice in plan.choices)]
    *left, right = ([len(cell) for cell in column] for column in zip(*cells, strict=True))
    widths = [max(lengths) for lengths in left]

    def line(row: tuple[str, ...], style: str = "") -> Text:
        text = "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1].rjust(max(right))]
        )
        return Text(text, style=style, no_wrap=True)

    lines: list[RenderableType] = [line(_HEADER, "bold")]
    before: Choice | None = None
    for choice, row in zip(plan.choices, cells[1:], strict=True):
        lines.append(line(row))
        if choice != before:
            lines.append(Padding(Text(choice.config.label, style="dim"), (0, 0, 0, 4)))
        before = choice
    caption = _caption(plan)
    return Group(*lines, Text(caption)) if caption else Group(*lines)


def _cells(choice: Choice) -> tuple[str, ...]:
    expected = "-" if choice.expected_us is None else f"{choice.expected_us:.2f}"
    return choice.problem.kernel, choice.problem.shape, choice.rung.value, expected


def _caption(plan: Plan | WholeStepPlan) -> str:
    """The whole step's time, and whether anybody ever measured it; empty where there is none."""
    total = plan.expected_us
    if total is None:
        return ""
    step = f"{total:.2f} us per step of {plan.network.label}"
    predicted = [choice.rung is Rung.PREDICTED for choice in plan.choices]
    if all(predicted):
        return f"Predicted, not measured: {step}."
    return f"Expected: {step}{', predicted in part' if any(predicted) else ''}."
