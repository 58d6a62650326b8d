"""A document that grows entry by entry, so that a run may be cut off: the same command goes on where it was.

A GPU is often there for minutes at a time. Every entry is written as soon as it is there, and `Slice` says when to
begin no other.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainer.results import replace_file
from tuner.errors import UserError

LEFT = 3
"""Exit code where entries are left to be made."""

_SAME = ("device_key", "sources", "data_hash")
"""Of the head: what all entries of a file have in common."""


class Entries:
    """The entries in `path`, each found by its key (plain JSON). `head` is the document's."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        """Read what is there.

        Raises:
            UserError: the folder does not exist, or the file was made elsewhere, by other sources or versions.
        """
        if not path.resolve().parent.is_dir():
            raise UserError(f"The folder of --out {path} does not exist; make it, or name another file.")
        self._path = path
        self._head = head
        self.entries: list[dict[str, Any]] = []
        if path.exists():
            self._take(path)

    def _take(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text())
            self.entries = list(found["entries"])
            same = all(found[name] == self._head[name] for name in _SAME)
            same = same and _software(found) == _software(self._head)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no document of this benchmark; name another file.") from error
        if not same:
            raise UserError(
                f"{path} was made on another device, with other data, or by other sources or versions; "
                "name another file, or move it away."
            )

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The entry of `key`, where it was made already, and not in vain."""
        wanted = json.loads(json.dumps(key))
        return next((entry for entry in self.entries if entry["key"] == wanted and not entry.get("error")), None)

    def add(self, key: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Keep `result` for `key`, write the file, and return the entry."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        entry: dict[str, Any] = json.loads(json.dumps({"key": key, "date": date, **result}))
        self.entries = [each for each in self.entries if each["key"] != entry["key"]] + [entry]
        replace_file(self._path, json.dumps({**self._head, "entries": self.entries}, indent=2) + "\n")
        return entry


def _software(head: dict[str, Any]) -> dict[str, Any]:
    return {name: version for name, version in head["versions"].items() if name != "host"}


class Slice:
    """How long a run may begin new entries; `seconds` None: as long as there are any."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end
