"""Write what each command's --help prints into docs/cli.md, under the heading of its name.

python tools/cli_reference.py            rewrites the page
python tools/cli_reference.py --check    ends with 1 if the page is out of date
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from cascade.cli.main import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
_SECTION = re.compile(
    r"^(?:# Command line|## (?P<command>cascade [\w ]+?))\n.*?```text\n.*?```\n", re.DOTALL | re.MULTILINE
)


def help_of(command: str) -> str:
    """Return what a command's --help prints on a terminal of 80 columns."""
    environment = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*command.split()[1:], "--help"], prog_name="cascade", env=environment)
    if result.exit_code:
        sys.exit(f"{command} --help ended with {result.exit_code}: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.rstrip().splitlines()).strip("\n")


def without_section(page: str) -> list[str]:
    """Return the commands whose help has no place on the page."""
    there = {found["command"] for found in _SECTION.finditer(page)}
    return [command for command in _commands("cascade", get_command(app)) if command not in there]


def _commands(name: str, command: Any) -> Iterator[str]:
    for part in command.list_commands(None) if hasattr(command, "list_commands") else ():
        one = command.get_command(None, part)
        if not one.hidden:
            yield f"{name} {part}"
            yield from _commands(f"{name} {part}", one)


def current(page: str) -> str:
    """Return the page with every help text as it is now."""

    def renewed(found: re.Match[str]) -> str:
        command = found["command"] or "cascade"
        head = found[0][: found[0].index("```text\n")]
        return f"{head}```text\n{help_of(command)}\n```\n"

    return _SECTION.sub(renewed, page)


def main() -> None:
    """Rewrite or check."""
    os.environ["COLUMNS"] = "80"
    old = PAGE.read_text("utf-8")
    if missing := without_section(old):
        sys.exit(f"docs/cli.md has no section for {', '.join(missing)}: write '## COMMAND' and an empty ```text block")
    new = current(old)
    if "--check" in sys.argv:
        if new != old:
            sys.exit("docs/cli.md is out of date: python tools/cli_reference.py")
        return
    PAGE.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
