"""How the command line is run in tests: in this process, as `cascade` would be, with its two outputs apart."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from cascade.cli.main import main
from cascade.logs.files import write_rows
from unit.cli.certified import Row


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What a command that ended well printed as JSON."""
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once(session_patch: pytest.MonkeyPatch) -> None:
    """Build the tree of commands once: a process of `cascade` builds it once too."""
    session_patch.setattr(typer.main, "get_command", cache(typer.main.get_command))


@pytest.fixture(scope="module")
def shared_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a module's first test writes a policy that the others copy."""
    return tmp_path_factory.mktemp("kept") / "policy"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Run one command in an empty folder on a wide screen without colours."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["cascade", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Write rows into a log."""

    def write(rows: Sequence[Row], name: str = "log.jsonl") -> str:
        write_rows(tmp_path / name, rows)
        return str(tmp_path / name)

    return write


@pytest.fixture
def fake_config(tmp_path: Path) -> Path:
    """Write a configuration of two priced, scripted models."""
    path = tmp_path / "cascade.yaml"
    path.write_text(
        "models:\n"
        "  base: {model: small, price: {input: 0.1, output: 0.4}}\n"
        "  guide: {model: large, price: {input: 1, output: 4}}\n"
        "provider: {kind: fake, options: {replies: {small: ['Answer: Danube'], large: ['Yes']}}}\n"
        "strategy: {samples: 1}\n"
        "policy: {kind: fixed}\n"
    )
    return path
