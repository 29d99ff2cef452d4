"""What the command line prints with."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from cascade.cli.output import dollars, plain, print_json


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, "unknown"),
        (Decimal(0), "$0"),
        (Decimal("0.000123456"), "$0.000123"),
        (Decimal("1234.5"), "$1230"),
        (Decimal("0.000000001"), "$0.000000001"),
        (Decimal("2.50"), "$2.50"),
    ],
)
def test_dollars_have_three_digits(amount: Decimal | None, shown: str) -> None:
    assert dollars(amount) == shown


@pytest.mark.parametrize("char", ["\x1b", "\x00", "\r", "\x7f", "\x9b", "\u202e", "\u2066"])
def test_control_characters_are_taken_out(char: str) -> None:
    assert plain(f"a{char}b") == "ab"


def test_markup_is_text() -> None:
    assert plain("[bold]x[/]") == r"\[bold]x\[/]"
    assert plain("a\tb\nc") == "a\tb\nc"


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
