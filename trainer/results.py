"""The file of `train --out`: the documents of several widths, kept up to date while they are raced.

It is rewritten as a whole after every width, so that whatever ends the run costs only the width at hand. The same
command again goes on: a width is kept whose document was made by the same settings, on the same kind of GPU, by the
same sources and versions, with what the store serves now. What the file holds of other networks stays.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tuner.errors import UserError

Document = dict[str, Any]

_SAME = ("device", "arch", "settings", "sources", "data_hash", "plan")
"""Fields that must not differ for a document to be kept."""


class Results:
    """The documents in `path`, by network; none where `path` is None: then nothing is kept or written."""

    def __init__(self, path: Path | None) -> None:
        """Read what is there.

        Raises:
            UserError: `path` cannot be written, or holds something else.
        """
        self.path = path
        self._documents: dict[tuple[int, int, int], Document] = {}
        if path is None:
            return
        if not path.resolve().parent.is_dir():
            raise UserError(f"The folder of --out {path} does not exist; make it, or name another file.")
        if not os.access(path.resolve().parent, os.W_OK):
            raise UserError(f"The folder of --out {path} cannot be written; name a file in another.")
        if path.exists():
            for document in _read(path):
                self._documents[_network(document)] = document

    def kept(self, described: Document) -> Document | None:
        """The finished document of the network that `described` describes, where it would be made again just so."""
        found = self._documents.get(_network(described))
        if found is None or found.get("error") is not None:
            return None
        described = json.loads(json.dumps(described))
        same = all(found.get(name) == described.get(name) for name in _SAME)
        return found if same and _software(found) == _software(described) else None

    def add(self, document: Document) -> None:
        """Put `document` in the place of its network's, and write the file."""
        if self.path is None:
            return
        self._documents[_network(document)] = document
        text = json.dumps([self._documents[key] for key in sorted(self._documents)], indent=2) + "\n"
        replace_file(self.path, text)


def _network(document: Document) -> tuple[int, int, int]:
    return document["width"], document["layers"], document["batch"]


def _software(document: Document) -> Document:
    """Its versions; the host may be another one of the same kind."""
    return {name: version for name, version in document["versions"].items() if name != "host"}


def _read(path: Path) -> list[Document]:
    refusal = UserError(f"{path} holds something else than the results of train --out; name another file.")
    try:
        documents = json.loads(path.read_text())
    except ValueError as error:
        raise refusal from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name another file with --out.") from error
    needed = {"width", "layers", "batch", "versions", "contenders"}
    if not isinstance(documents, list) or not all(isinstance(each, dict) and needed <= set(each) for each in documents):
        raise refusal
    return documents


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all: a reader, or a kill, must not find half of it."""
    handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
