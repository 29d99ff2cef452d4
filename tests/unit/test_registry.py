"""A name in a configuration becomes an object: built in, of an installed package, or at a place."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import MissingExtraError, UsageError
from cascade.registry import Registry, callable_alone, imported, subclass_of

SHAPES: Registry[Any] = Registry("shape", "cascade.shapes", {"circle": "math:tau"}, lambda _: None, by_place=True)
CALLED: Registry[Any] = Registry("call", "cascade.calls", {"root": "math:sqrt", "tau": "math:tau"}, callable_alone)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes entry points known: install(group, name, place)."""
    points: list[EntryPoint] = []
    monkeypatch.setattr("cascade.registry.entry_points", lambda group: [one for one in points if one.group == group])
    return lambda group, name, place: points.append(EntryPoint(name, place, group))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes a module and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"shape_of_a_test_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_a_built_in_name_is_imported(install):
    install("cascade.shapes", "circle", "math:pi")
    install("cascade.shapes", "half", "math:pi")
    install("cascade.others", "other", "math:pi")
    assert SHAPES.names == ("circle", "half")
    assert SHAPES.find("circle") == 2 * SHAPES.find("half"), "a package took a built-in name"
    assert SHAPES.find("other") is None


def test_a_place_is_a_name_only_where_it_may_be():
    assert SHAPES.find("math:pi") == SHAPES.find("circle") / 2
    assert CALLED.find("math:sqrt") is None


def test_what_cannot_be_called_is_no_factory():
    assert CALLED.find("root")(4) == 2
    with pytest.raises(UsageError, match=r"The call 'tau' \(math:tau\) cannot be used: it cannot be called\."):
        CALLED.find("tau")


def test_two_packages_that_bring_one_name_are_refused_with_both(install):
    install("cascade.shapes", "half", "math:pi")
    install("cascade.shapes", "half", "math:e")
    with pytest.raises(UsageError, match=r"2 packages bring a shape 'half' \(math:e, math:pi\); uninstall all but one"):
        SHAPES.find("half")


def test_all_that_can_be_used_are_returned(install):
    install("cascade.shapes", "half", "math:pi")
    install("cascade.shapes", "broken", "no_such_module:thing")
    assert list(SHAPES.usable()) == ["circle", "half"]


@pytest.mark.parametrize(
    ("text", "attribute", "said"),
    [
        ("Shape = 1", "Shpae", "cannot be found in shape_of_a_test_0; did you mean Shape?"),
        ("import no_such_module", "Shape", "cannot be found: there is no module no_such_module"),
        ("1 / 0", "Shape", "cannot be imported: ZeroDivisionError"),
        ("raise RuntimeError('key sk-abcdefghijklmnop')", "Shape", "cannot be imported: RuntimeError: key"),
        ("import math; math.no_such", "Shape", "cannot be imported: AttributeError: module 'math' has no attribute"),
    ],
)
def test_an_import_that_fails_is_one_error_that_says_what_to_do(module, text, attribute, said):
    with pytest.raises(UsageError) as caught:
        SHAPES.find(f"{module(text)}:{attribute}")
    assert said in str(caught.value)
    assert "Repair or uninstall the package" in str(caught.value)
    assert "sk-abc" not in str(caught.value)


def test_a_missing_extra_goes_through(module):
    name = module("from cascade.errors import MissingExtraError\nraise MissingExtraError('other', 'this')")
    with pytest.raises(MissingExtraError, match="pip install other"):
        SHAPES.find(f"{name}:Shape")


@pytest.mark.parametrize("place", ["math", "math:", ":pi"])
def test_a_place_has_a_module_and_an_attribute(place):
    with pytest.raises(ValueError, match="must be"):
        imported(place)


def test_an_incomplete_class_is_named_with_what_it_lacks():
    from abc import ABC, abstractmethod

    class Shape(ABC):
        @abstractmethod
        def area(self) -> float: ...

    class Square(Shape):
        def area(self) -> float:
            return 1.0

    lacks = subclass_of(Shape)
    assert lacks(Square) is None
    assert lacks(Shape) == "it does not define area"
    assert lacks(Square()) == lacks(int) == f"it is not a subclass of {__name__}.{Shape.__qualname__}"
