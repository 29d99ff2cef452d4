"""What pages, examples and the help print can be typed as it is: each command parses, each configuration loads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from cascade.cli.main import COMMANDS, app, loaded
from cascade.config import load
from cascade.config.policies import DirectoryConfig
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.*"))]
SHORT = re.compile(r"…|\.\.\.|\[")
"""What stands for something else in a line, such as `cascade fit LOG --promise …`."""
FENCED = re.compile(r"^```(?:console|text|)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OF_PACKAGES = {"write-a-policy.md", "write-a-promise.md", "write-a-strategy.md", "write-an-agent.md"}
"""Pages whose configurations name a package's class; tests of their examples read them."""


def written() -> Iterator[tuple[str, str, bool]]:
    """Yield (the page, the command, whether it is whole)."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for block in FENCED.findall(text):
            yield from (
                (page.name, line, True) for line in re.findall(r"^(?:\$ )?(cascade [a-z].*)$", block, re.MULTILINE)
            )
        yield from ((page.name, " ".join(line.split()), False) for line in re.findall(r"`(cascade [a-z][^`]*)`", text))
    for name in COMMANDS:
        target = loaded(name)
        apart = [command.callback for command in getattr(target, "registered_commands", ())]
        for function in apart or [target]:
            yield from ((name, line, True) for line in re.findall(r"Example: (cascade .*)", function.__doc__ or ""))


LINES = sorted(
    {
        (name, line.partition("  ")[0], whole)
        for name, line, whole in written()
        if not SHORT.search(line) and not line.startswith(("cascade fit  ", "cascade demo:"))  # lines of an output
    }
)


def parse(words: list[str]) -> None:
    """Parse a command without running it."""
    root: Any = typer.main.get_command(app)
    name, *rest = words
    context = root.context_class(root, info_name="cascade", **root.context_settings)
    command = root.get_command(None, name)
    assert command is not None, name
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("page", "line", "whole"), LINES)
def test_a_printed_command_parses(page, line, whole):
    """One in a sentence may leave out what it is about."""
    try:
        parse(shlex.split(line, comments=True)[1:])
    except typer._click.exceptions.MissingParameter:
        assert not whole


BLOCKS = {
    f"{page.name} {number}": yaml.safe_load(text)
    for page in PAGES
    if page.name not in OF_PACKAGES
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
}
PRICE = {"input": 1, "output": 4}
MODELS = {name: {"model": name, "price": PRICE} for name in ("base", "guide", "small", "large", "judge")}
KEYS = {"keys": [{"name": "batch", "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}]}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_printed_configuration_answers(block, monkeypatch, tmp_path):
    """One that shows a section alone is asked with these models and keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_checks.py").write_text("def passes(question, message):\n    return True\n")
    config = load({"models": MODELS, "server": KEYS, **BLOCKS[block], "traces": "off", "provider": "fake"})
    if not isinstance(config.policy, DirectoryConfig) and config.modes is None and config.budget.store is None:
        with Orchestrator.from_config(
            config, providers={"fake": FakeProvider(lambda _: reply("Answer: Danube", logprobs=[-0.1]))}
        ) as ladder:
            assert ladder.ask("Which river runs through Vienna?").text == "Danube"
