"""`mnist-tune report`: what was tuned, how fast, against what."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from rich.console import Console

import kernels
from trainer.report import markdown as markdown_form
from trainer.report import terminal
from trainer.report.collect import collect
from trainer.report.model import Report
from tuner.errors import UserError
from tuner.store import Store
from tuner.store.location import locate
from tuner.types import Device

__all__ = ["run_report"]


def run_report(
    store_url: str | None,
    *,
    device: str | None = None,
    html: Path | None,
    as_json: bool,
    markdown: bool,
    console: Console,
    model: bool = False,
) -> int:
    """Print the report of the store at `store_url` and, where `html` names a file, write it as a page too.

    With `model`, only how well the model ranks what was measured is printed; the page has all either way.

    `device` limits the report to the store's devices that have it in their name or architecture. Needs no GPU, no
    CuPy and no PyTorch, and writes nothing to the store.

    Raises:
        UserError: both JSON and Markdown were asked for, the store cannot be read or has no such device, or the page
            cannot be written.
    """
    if as_json and markdown:
        raise UserError("Choose --json or --md: both print to the same place.")
    report = read(store_url, device)
    if html is not None:
        # Imported here: matplotlib takes a second that the other forms need not wait for.
        from trainer.report import html as page

        _write(html, page.render(report))
    if as_json:
        document = report.as_json()
        if model:
            kept = [{key: each[key] for key in ("device", "rankings")} for each in document["devices"]]
            document = {**document, "devices": kept}
        console.out(json.dumps(document, indent=2), highlight=False)
    elif markdown:
        form = markdown_form.render_rankings if model else markdown_form.render
        console.out(form(report), end="", highlight=False)
    else:
        (terminal.show_rankings if model else terminal.show)(report, console)
        if html is not None:
            console.print(f"\nWrote {html}", markup=False, highlight=False, soft_wrap=True)
    return 0


def read(store_url: str | None, device: str | None = None) -> Report:
    """The report's data from the store at `store_url`, which is opened for reading only.

    Raises:
        UserError: there is no such store, it cannot be read, or it has no such device.
    """
    location = locate(store_url)
    if location.path is None:
        label, url = location.label, store_url
    elif location.path.is_file():
        label, url = location.path.name, f"sqlite:///{location.path}?mode=ro"
    else:
        raise UserError(f"There is no store at {location.path}; run mnist-tune search, or name one with --db.")
    with Store.open(url) as store:
        return collect(store, kernels.ALL, label=label, devices=_devices(store, device))


def _devices(store: Store, wanted: str | None) -> list[Device]:
    devices: list[Device] = store.devices()
    if wanted is None:
        return devices
    found = [each for each in devices if wanted.lower() in f"{each.name} {each.arch}".lower()]
    if not found:
        names = ", ".join(each.name for each in devices) or "none"
        raise UserError(f"The store has no device {wanted!r}; it has: {names}.")
    return found


def _write(path: Path, page: str) -> None:
    """Whole or not at all: a page that is being looked at is never half a page."""
    written: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            written = Path(file.name)
            file.write(page)
        written.chmod(0o644)
        written.replace(path)
    except OSError as error:
        if written is not None:
            written.unlink(missing_ok=True)
        raise UserError(
            f"The page {path} cannot be written ({error.strerror}); name a file in a folder that exists with --html."
        ) from error
