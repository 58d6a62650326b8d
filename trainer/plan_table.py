"""A plan for people: one line per kernel of the step."""

from __future__ import annotations

from rich.table import Table

from trainer.plan import Plan


def render_plan(plan: Plan) -> Table:
    """Kernel, sizes, configuration, how the store came to it, and the time that it is expected to take."""
    total = plan.expected_us
    caption = None if total is None else f"expected: {total:.2f} us per step ({plan.network.label})"
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
    table.add_column("kernel")
    table.add_column("shape")
    table.add_column("found", no_wrap=True)
    table.add_column("us", justify="right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    for choice in plan.choices:
        expected = "-" if choice.expected_us is None else f"{choice.expected_us:.2f}"
        table.add_row(choice.problem.kernel, choice.problem.shape, choice.rung.value, expected, choice.config.label)
    return table
