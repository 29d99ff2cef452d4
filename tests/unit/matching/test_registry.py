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
from cascade.matching import get_matcher, names
from cascade.matching.text import ExactMatcher


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


def test_a_spec_names_a_matcher_and_its_options() -> None:
    tolerances: list[tuple[str, dict[str, Any], tuple[Fraction, Fraction]]] = [
        ("number:rel=80%", {}, (Fraction(4, 5), Fraction(0))),
        ("number", {"rel": 0.8}, (Fraction(4, 5), Fraction(0))),
        ("number:1e-3", {}, (Fraction(1, 1000), Fraction(0))),
        (" number : rel = 1e-3 , abs=2 ", {}, (Fraction(1, 1000), Fraction(2))),
        ("number:rel=0.1", {"abs": 2}, (Fraction(1, 10), Fraction(2))),
    ]
    for spec, options, tolerance in tolerances:
        matcher: Any = get_matcher(spec, **options)
        assert (matcher._rel, matcher._abs) == tolerance
    assert isinstance(get_matcher("exact:"), ExactMatcher)


@each(
    "spec, options, wrong",
    [
        ("exakt", {}, ["exakt", "exact"]),
        ("", {}, ["choice"]),
        ("label:names=a", {}, ["names"]),
        ("number:re=1", {}, ["re"]),
        ("exact:strict=yes", {}, ["ExactMatcher"]),
        ("number:rel=high", {}, ["rel"]),
        ("number:rel=1e999999999", {}, ["rel"]),
        ("number:rel=1/0", {}, ["rel"]),
        ("number", {"rel": True}, ["rel"]),
        ("number", {"rel": float("nan")}, ["rel"]),
        ("number:rel=0.8", {"rel": 0.8}, ["rel"]),
        ("number:rel=0.8,rel=0.9", {}, ["rel"]),
        ("number:rel=-1", {}, ["rel"]),
        ("json:lists=maybe", {}, ["lists"]),
        ("number:abs=y,rel=x,tol=1,rel=z", {}, ["abs", "rel", "tol", "twice"]),
        ("choice:letters=AAB", {}, ["letters"]),
        ("choice:letters=1-4", {}, ["letters"]),
        ("math:timeout_s=0", {}, ["timeout_s"]),
        ("math:workers=1.5", {}, ["workers"]),
        ("math:workers=1000", {}, ["workers"]),
        ("judge", {}, ["ask"]),
        ("judge:ask=gpt", {}, ["ask"]),
        ("function", {}, ["function"]),
    ],
)
def test_mistakes_are_one_error_that_names_each(spec: str, options: dict[str, Any], wrong: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        get_matcher(spec, **options)
    lines = str(caught.value).partition("cannot be made:")[2] or str(caught.value)
    assert [name for name in wrong if name not in lines] == []


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
    assert isinstance(get_matcher("exact"), ExactMatcher)


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
