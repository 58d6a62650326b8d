"""What goes wrong with an emulated kernel: it does not compile, or it misbehaves."""

from __future__ import annotations

from collections.abc import Sequence


class EmulationBuildError(Exception):
    """g++ rejected the kernel. The message is the compiler's first error."""


class EmulationFault(Exception):  # noqa: N818  (it is the kernel's fault, not an error of the emulation)
    """A launch did what a kernel must not do.

    `reports` has one line per fault, each beginning with its kind and a colon: race, uninitialised, poison,
    out-of-bounds, misaligned, null-pointer, divergent-barrier, exit-before-barrier, divergent-warp, grid-sync,
    cluster-barrier, memory-barrier, exited-block, deadlock, timeout, trap, stack-overflow, launch, argument.
    """

    def __init__(self, reports: Sequence[str]) -> None:
        super().__init__("\n".join(reports))
        self.reports = list(reports)

    def __reduce__(self) -> tuple[type[EmulationFault], tuple[list[str]]]:
        """Travels between processes with its reports (the default would hand on the joined message)."""
        return EmulationFault, (self.reports,)

    @property
    def kinds(self) -> list[str]:
        """The kind of each report."""
        return [report.split(":", 1)[0] for report in self.reports]
