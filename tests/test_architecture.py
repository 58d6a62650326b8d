"""The house has four floors, and an import never points up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {"tuner": 0, "kernels": 1, "trainer": 2, "cli": 3}
HEAVY = {"cupy", "cupyx", "cupy_backends", "torch"}
"""Imported where they are used, so that `--help` and `report` work without a GPU's software."""


def sources() -> list[Path]:
    found = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    return [*found, ROOT / "cli.py"] if (ROOT / "cli.py").exists() else found


def package_of(path: Path, root: Path = ROOT) -> list[str]:
    """Dotted package that relative imports in `path` start from."""
    return list(path.relative_to(root).parts[:-1])


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that `tree` imports, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import x` at the top of the tree names floors only in its aliases.
            yield from ((node.lineno, f"{module}.{alias.name}".lstrip(".")) for alias in node.names)


def at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported: not those in functions, nor those for type checkers alone."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from at_import(statement.orelse)
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from at_import(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from at_import(handler.body)


def climbs(text: str, floor: str, package: list[str]) -> list[str]:
    """Imports in the source `text` of `floor` that point to a higher floor."""
    return [
        f"line {line}: {name}"
        for line, name in imported(ast.parse(text), package)
        if FLOORS.get(name.partition(".")[0], -1) > FLOORS[floor]
    ]


def heavy(text: str) -> list[str]:
    """Imports of CuPy or PyTorch that run with the import of the source `text`."""
    return [
        f"line {line}: {name}"
        for statement in at_import(ast.parse(text).body)
        for line, name in imported(statement, [])
        if name.partition(".")[0] in HEAVY
    ]


def test_there_are_sources_on_every_floor() -> None:
    seen = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in sources()}
    assert seen == set(FLOORS)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_points_up(path: Path) -> None:
    floor = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert climbs(path.read_text(), floor, package_of(path)) == []


@pytest.mark.parametrize(
    "path",
    [path for path in sources() if path.relative_to(ROOT).parts[0] != "trainer"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_cupy_and_torch_are_imported_where_they_are_used(path: Path) -> None:
    assert heavy(path.read_text()) == []


def test_the_command_line_starts_without_cupy_and_torch() -> None:
    program = f"import sys, cli; sys.exit(' '.join(sorted({HEAVY!r} & set(sys.modules))) or 0)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "floor", "package"),
    [
        ("import trainer.mlp", "kernels", ["kernels"]),
        ("from kernels import ALL", "tuner", ["tuner"]),
        ("def f():\n    from cli import app", "trainer", ["trainer"]),
        ("from .. import kernels", "tuner", ["tuner"]),
        ("try:\n    import os\nexcept ImportError:\n    import trainer", "tuner", ["tuner", "store"]),
    ],
)
def test_an_import_that_points_up_is_caught(text: str, floor: str, package: list[str]) -> None:
    assert len(climbs(text, floor, package)) == 1


@pytest.mark.parametrize(
    ("text", "floor", "package"),
    [
        ("from tuner.types import Config", "kernels", ["kernels"]),
        ("from . import store", "tuner", ["tuner"]),
        ("import kernelspec, trainers", "tuner", ["tuner"]),
    ],
)
def test_an_import_on_its_own_floor_or_below_is_none_that_points_up(text: str, floor: str, package: list[str]) -> None:
    assert climbs(text, floor, package) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import torch", 1),
        ("class A:\n    import cupy", 1),
        ("if True:\n    pass\nelse:\n    from torch import nn", 1),
        ("try:\n    import cupy\nexcept ImportError:\n    import torch", 2),
        ("def f():\n    import torch", 0),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cupy", 0),
        ("import torchinfo", 0),
    ],
)
def test_imports_at_module_level_are_told_from_others(text: str, count: int) -> None:
    assert len(heavy(text)) == count
