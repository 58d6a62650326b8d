"""Where a store is: what `--db` and MNIST_TUNE_DB may say, and the place that is taken when they say nothing."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import platformdirs
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from tuner.errors import UserError

FILE_NAME = "tuning.db"


@dataclass(frozen=True, slots=True)
class Location:
    """A store's place: a SQLite file, SQLite in memory (`path` None), or another database server."""

    url: URL
    path: Path | None
    read_only: bool = False

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def label(self) -> str:
        """For people: the file's path, or the URL without its password."""
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)


def locate(text: str | Path | None) -> Location:
    """The store that `text` names: a path, or an SQLAlchemy URL; None means MNIST_TUNE_DB, else `default_path()`.

    `sqlite:///FILE?mode=ro` opens a file for reading only.

    Raises:
        UserError: not a URL, a folder that does not exist, or a path that is a folder.
    """
    text = text or os.environ.get("MNIST_TUNE_DB") or default_path()
    if isinstance(text, Path) or ("://" not in text and text != ":memory:"):
        return _file(_at_home(Path(text)), read_only=False)
    try:
        url = make_url("sqlite://" if text == ":memory:" else text)
    except (ArgumentError, ValueError) as error:
        raise UserError(
            f"{text!r} is neither a file nor a database URL; write a path, or a URL such as postgresql://host/name."
        ) from error
    if url.get_backend_name() != "sqlite":
        return Location(url, None)
    unknown = set(url.query) - {"mode", "immutable", "uri"}
    if unknown:
        raise UserError(f"The store's URL has the unknown option {min(unknown)!r}; a SQLite file takes only mode=ro.")
    if not url.database or url.database == ":memory:":
        return Location(url, None)
    file = Path(unquote(url.database.removeprefix("file:")) if "uri" in url.query else url.database)
    return _file(file, read_only=url.query.get("mode") == "ro" or "immutable" in url.query)


def default_path() -> Path:
    """The store's usual file.

    In a source checkout the repository's own tuning.db; for an installed package a file in the user's data folder,
    which starts as a copy of the packaged one.

    Raises:
        UserError: the user's data folder cannot be written.
    """
    package = Path(__file__).resolve().parent
    root = package.parents[1]
    if (root / FILE_NAME).is_file() or (root / "pyproject.toml").is_file():
        return root / FILE_NAME
    return seeded(Path(platformdirs.user_data_dir("mnist-tune")) / FILE_NAME, package / FILE_NAME)


def seeded(target: Path, source: Path) -> Path:
    """`target`, made as a copy of `source` where it is not there yet and `source` is.

    Raises:
        UserError: its folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file() and not target.exists():
            with tempfile.NamedTemporaryFile(dir=target.parent) as copy:
                shutil.copyfile(source, copy.name)
                Path(copy.name).chmod(0o644)
                # A link appears whole or not at all, and never replaces what another process put there meanwhile.
                with suppress(FileExistsError):
                    target.hardlink_to(copy.name)
    except OSError as error:
        raise UserError(
            f"The data folder {target.parent} cannot be written ({error.strerror}); name a store with --db."
        ) from error
    return target


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UserError(f"The home folder in {path} is nobody's; write the store's path in full.") from error


def _file(path: Path, *, read_only: bool) -> Location:
    path = path.absolute()
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; name the store's file in it, for example {path / FILE_NAME}.")
        if not path.parent.is_dir():
            raise UserError(f"The folder {path.parent} does not exist; make it, or name another store with --db.")
        exists = path.exists()
        if exists and not path.is_file():
            raise UserError(f"{path} is not a regular file, so it cannot hold a store; name another with --db.")
        read_only = read_only or not writable(path.parent) or (exists and not writable(path))
    except OSError as error:
        raise UserError(f"The store {path} cannot be reached ({error.strerror}); name another with --db.") from error
    if read_only and not exists:
        raise UserError(
            f"The store {path} does not exist and cannot be made, its folder is read-only; name another with --db."
        )
    return Location(URL.create("sqlite", database=str(path)), path, read_only)


def writable(path: Path) -> bool:
    """Whether `path` may be written. Root may write anything, but a file without write permission is meant to stay."""
    return bool(path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(path, os.W_OK)
