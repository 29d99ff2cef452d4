"""Matchers by name, with options, and from installed packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from cases import each

from cascade.errors import MissingExtraError, UsageError
from cascade.matching import exact_match, get_matcher, names, only_number
from cascade.matching.number import NumberMatcher
from cascade.matching.words import ExactMatcher


class Mine:
    """A matcher of an installed package."""

    def __init__(self, strict: str = "no") -> None:
        self.strict = strict

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        return answer in gold


def makes_none() -> int:
    return 5


def refusing() -> Any:
    raise MissingExtraError("other", "mine")


def replacing() -> Any:
    pytest.fail("a built-in matcher was replaced")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"mine": "Mine", "broken": "Missing", "none": "makes_none", "exact": "replacing", "refusing": "refusing"}
    points = [EntryPoint(name, f"{__name__}:{place}", "cascade.matchers") for name, place in places.items()]
    monkeypatch.setattr("cascade.registry.entry_points", lambda group: [one for one in points if one.group == group])


def test_the_built_in_matchers_are_named() -> None:
    built_in = (
        "text",
        "label",
        "exact",
        "choice",
        "number",
        "math",
        "json",
        "tool_calls",
        "code",
        "function",
        "judge",
    )
    assert names()[: len(built_in)] == built_in


def test_the_old_names_are_still_here() -> None:
    assert exact_match("The Danube.", ["Danube"])
    assert only_number("9 eggs") == 9


def test_a_spec_names_a_matcher_and_its_options() -> None:
    wrong = [
        (spec, given, made)
        for spec, given, made in [
            ("exact", {}, ExactMatcher()),
            (" exact ", {}, ExactMatcher()),
            ("exact:", {}, ExactMatcher()),
            ("number:rel=80%", {}, NumberMatcher(Fraction(4, 5))),
            ("number", {"rel": 0.8}, NumberMatcher(Fraction(4, 5))),
            ("number:rel=1e-3", {}, NumberMatcher(Fraction(1, 1000))),
            ("number: rel = 1e-3 , abs=2 ", {}, NumberMatcher(Fraction(1, 1000), Fraction(2))),
            ("number:rel=0.1", {"abs": 2}, NumberMatcher(Fraction(1, 10), Fraction(2))),
        ]
        if get_matcher(spec, **given) != made
    ]
    assert wrong == []


@each(
    "spec, given, message",
    [
        ("exakt", {}, r"no matcher 'exakt'; did you mean exact\? Known: choice, code, exact"),
        ("", {}, r"no matcher ''; known: choice"),
        ("label:names=a", {}, r"no option 'names'; known: labels"),
        ("number:re=1", {}, r"no option 're'; did you mean rel\?"),
        ("exact:strict=yes", {}, r"no option 'strict'; it takes none"),
        ("label:0.8", {}, r"'0.8' is not an option; write name=value; known: labels"),
        ("number:rel=high", {}, r"rel='high' is not a number"),
        ("number:rel=1e999999999", {}, r"rel='1e999999999' is out of range"),
        ("number:rel=1/0", {}, r"is not a number"),
        ("number", {"rel": True}, r"rel=True is not a number"),
        ("number", {"rel": float("nan")}, r"rel=nan is not a number"),
        ("number:rel=0.8", {"rel": 0.8}, r"rel is given twice"),
        ("number:rel=0.8,rel=0.9", {}, r"rel is given twice"),
        ("number:rel=-1", {}, r"rel='-1' must not be negative"),
        ("json:lists=maybe", {}, r"lists='maybe' must be one of ordered, unordered"),
        ("number:abs=y,rel=x,tol=1", {}, r"(?s)no option 'tol'.*abs='y' is not a number.*rel='x' is not a number"),
        ("choice:letters=AAB", {}, r"the letters of the options, each once"),
        ("choice:letters=1-4", {}, r"the letters of the options"),
        ("math:timeout_s=0", {}, r"timeout_s='0' must be above 0"),
        ("math:workers=1.5", {}, r"workers='1.5' must be a whole number"),
        ("math:workers=1000", {}, r"whole number from 1 to 64"),
    ],
)
def test_a_mistake_is_one_error_that_says_what_would_work(spec: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_matcher(spec, **given)


@pytest.mark.usefixtures("installed")
def test_an_installed_matcher_is_named_and_made_with_its_options() -> None:
    assert names().count("exact") == 1
    assert names()[-4:] == ("mine", "broken", "none", "refusing")
    made = get_matcher("mine:strict=yes")
    assert isinstance(made, Mine)
    assert made.strict == "yes"
    assert made.matches("a", ["a"]) is True


@pytest.mark.usefixtures("installed")
def test_a_built_in_matcher_is_not_replaced() -> None:
    assert get_matcher("exact") == ExactMatcher()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mien", r"no matcher 'mien'; did you mean mine\?"),
        ("broken", r"'broken' \(.*:Missing\) cannot be found in .*uninstall"),
        ("mine:strickt=yes", r"'mine' cannot be made: TypeError: .*strickt"),
        ("none", r"'none' is not a matcher: .*matches\(answer, gold\), but returned int"),
    ],
)
def test_a_broken_or_missing_package_is_one_clear_error(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_matcher(spec)


@pytest.mark.usefixtures("installed")
def test_a_missing_package_of_an_installed_matcher_goes_through() -> None:
    with pytest.raises(MissingExtraError, match="pip install other"):
        get_matcher("refusing")


def test_naming_matchers_loads_none_of_them() -> None:
    code = (
        "import sys, cascade.matching as m; m.names(); m.get_matcher('exact');"
        "print({'sympy', 'math_verify', 'cascade.matching.number', 'cascade.matching.maths'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
