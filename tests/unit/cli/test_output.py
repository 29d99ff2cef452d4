"""What the command line prints with."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade.cli.main import LogFormatter, console, notes, print_json


def test_json_is_one_document_with_decimals_as_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": Decimal("0.5"), "b": "naïve", "c": None})
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": 0.5, "b": "naïve", "c": None}
    assert out.endswith("}\n")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_has_no_json_form_is_an_error_and_prints_nothing(bad: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((ValueError, TypeError)):
        print_json({"a": bad})
    assert capsys.readouterr().out == ""


LONG = "Promised: " + "a word and " * 20 + "\nNext: cascade fit log.parquet " + "--risk 0.05 " * 8 + "-o policy"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_is_broken_between_words_on_a_terminal_alone(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "FORCE_COLOR": "1" if terminal else ""}.items():
        monkeypatch.setenv(name, value)
    console().print(LONG)
    out = capsys.readouterr().out
    assert (max(map(len, out.splitlines())) <= 80) == terminal
    assert out.replace("\\\n", "").split() == LONG.split()
    assert out.count("\\\n") == terminal  # the shell reads the command as one line


HOSTILE = "a\x1b[31mb\x1b]0;title\x07c\x00d\x9b31me\x9d0;x\x9cf\rg\u202eh"


@pytest.mark.parametrize("make", [console, notes])
@pytest.mark.parametrize(
    "content",
    [
        HOSTILE,
        Text(HOSTILE, style="bold"),
    ],
    ids=["text", "styled"],
)
def test_nothing_that_is_printed_steers_the_terminal(
    make: Callable[[], Console], content: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.5.0: `cascade monitor` printed ESC, OSC and NUL of the columns `model` and `source`."""
    table = Table("head")
    table.add_row(content if isinstance(content, str | Text) else "x")
    make().print(content, table, markup=False)
    make().print(content, soft_wrap=True)
    said = "".join(capsys.readouterr())
    assert "a[31mb" in said
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)


def test_json_spells_out_what_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """0.5.0: C1 controls, as U+009B, and U+202E stood in it as they were."""
    print_json({"model": HOSTILE, "name": "naïve"})
    said = capsys.readouterr().out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
    assert json.loads(said) == {"model": HOSTILE, "name": "naïve"}
    assert "naïve" in said


def test_a_log_line_steers_no_terminal() -> None:
    record = logging.LogRecord("cascade", logging.WARNING, "", 1, "answered by %s", (HOSTILE,), None)
    said = LogFormatter("%(levelname)s %(message)s").format(record)
    assert said.startswith("WARNING answered by a[31mb")
    assert "\x1b" not in said
