"""Every command, flag and make target that README.md shows exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def command_lines(markdown: str, program: str) -> list[str]:
    """Lines that start `program` in code blocks (a `$ ` or variables before it allowed) and in inline code."""
    blocks = re.findall(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", markdown, re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^(?: {4}|\t)(.+)$", markdown, re.MULTILINE)
    prose = re.sub(r"^[ \t]*```.*?^[ \t]*```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", prose)
    lines = [line for block in blocks for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines()]
    # A tool that a virtual environment holds is often shown with its path.
    start = re.compile(rf"^\s*(?:\$\s+)?(?:\w+=\S*\s+)*(?:\S*/)?{re.escape(program)}(?=\s|$)\s*")
    return [line[match.end() :] for line in [*lines, *indented, *inline] if (match := start.match(line))]


def words(line: str) -> list[str]:
    """The arguments of one command: what the shell would do afterwards, comments and columns of text are left out."""
    line = re.split(r"\s#|\s{3,}|[|&;>]", f" {line}")[0] if line.strip() else ""
    return shlex.split(line.replace("[", " ").replace("]", " ").replace("...", " ").replace("…", " "))


def mistakes(app: typer.Typer, arguments: list[str]) -> list[str]:
    """What `arguments` names that `app` does not have."""
    command: Any = typer.main.get_command(app)
    path = "mnist-tune"
    found = []
    rest = iter(arguments)
    for word in rest:
        if word.startswith("-"):
            options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
            # `--epochs/--steps` is short for one or the other.
            flags = [flag for flag in word.partition("=")[0].split("/") if flag]
            found += [f"{path} has no {flag}" for flag in flags if flag not in options and flag != "--help"]
            option = options.get(flags[0])
            if option is not None and not option.is_flag and "=" not in word:
                next(rest, None)
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return [*found, f"{path} has no command {word}"]
            command = command.commands[word]
            path = f"{path} {word}"
    return found


LINES = command_lines(README, "mnist-tune")


def test_the_readme_shows_the_main_path() -> None:
    shown = {arguments[0] for line in LINES if (arguments := words(line))}
    assert {"search", "train", "report"} <= shown


@pytest.mark.parametrize("line", sorted(set(LINES)))
def test_commands_and_flags_of_the_readme_exist(line: str) -> None:
    assert mistakes(cli.app, words(line)) == []


@pytest.mark.parametrize("line", sorted(set(command_lines(README, "make"))))
def test_make_targets_of_the_readme_exist(line: str) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for word in words(line) if "=" not in word and not word.startswith("-")} <= targets


def test_commands_are_found_wherever_they_stand() -> None:
    text = (
        "Run `mnist-tune doctor` first.\n\n"
        "```sh\n$ mnist-tune search \\\n    --trials 3   # a comment\n"
        "A=1 .venv/bin/mnist-tune report\nmnist-tuner no\n```\n\n"
        "    mnist-tune train --width 128     and what it does\n"
    )
    assert [words(line) for line in command_lines(text, "mnist-tune")] == [
        ["search", "--trials", "3"],
        ["report"],
        ["train", "--width", "128"],
        ["doctor"],
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fly", ["mnist-tune has no command fly"]),
        ("go --far", ["mnist-tune go has no --far"]),
        ("go --fast=1", ["mnist-tune go has no --fast"]),
        ("go --width 3 --help", []),
        ("go --fast/--width 3", ["mnist-tune go has no --fast"]),
        ("--db stay go --width 3", []),
        ("--loud go", []),
        ("--version", ["mnist-tune has no --version"]),
    ],
)
def test_a_command_or_flag_that_is_not_there_is_caught(line: str, expected: list[str]) -> None:
    app = typer.Typer()

    @app.callback()
    def everywhere(db: str = "", loud: bool = False) -> None: ...

    @app.command()
    def go(width: int = 1) -> None: ...

    @app.command()
    def stay() -> None: ...

    assert mistakes(app, words(line)) == expected
