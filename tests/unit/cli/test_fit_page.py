"""The pages on fitting and proving: their commands can be given, and what they show printed is what is printed."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

from cascade.cli.main import loaded

DOCS = Path(__file__).parents[3] / "docs"
CALLED: dict[str, Callable[..., None]] = {name: loaded(name) for name in ("fit", "prove", "calibrate", "compare")}


def options_of(command: Callable[..., None]) -> set[str]:
    """Return the options that a command takes, as they are written."""
    found = set()
    for name, hint in get_type_hints(command, include_extras=True).items():
        given = [one for one in get_args(hint)[1:] if get_origin(hint) is Annotated]
        written = [word for one in given for word in (one.default, *(one.param_decls or ())) if isinstance(word, str)]
        written = [word for words in written for word in words.split(",")]
        if name in inspect.signature(command).parameters:
            found |= set(written) or {f"--{name.replace('_', '-')}"}
    return found


def commands(page: str) -> Iterator[list[str]]:
    """Yield the commands of a page: lines of its blocks, and those within its sentences."""
    text = (DOCS / page).read_text("utf-8").replace("\\\n", " ")
    for line in re.findall(r"^cascade .*$", text, re.MULTILINE) + re.findall(r"`(cascade [^`]*)`", text):
        yield shlex.split(" ".join(line.split()))


@pytest.mark.parametrize("page", ["fit.md", "networks.md", "prove.md", "compare.md"])
def test_commands_on_the_page_take_the_options_they_are_given(page: str) -> None:
    found = [words for words in commands(page) if words[1:2] and words[1] in CALLED]
    assert found
    for words in found:
        given = {word for word in words[2:] if word.startswith("-")}
        assert given <= options_of(CALLED[words[1]]), words


@pytest.mark.parametrize(("page", "command"), [("fit.md", "fit"), ("networks.md", "fit"), ("prove.md", "prove")])
def test_every_option_on_the_page_is_one(page: str, command: str) -> None:
    named = set(re.findall(r"`(--[a-z-]+)", (DOCS / page).read_text("utf-8")))
    assert named
    assert named <= set().union(*(options_of(loaded(name)) for name in (command, "calibrate", "collect")))


def shown(page: str, start: str) -> str:
    """Return the block of a page that begins with these words."""
    blocks = re.findall(r"```text\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(start)]
    return str(found)
