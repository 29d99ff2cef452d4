"""A user's own function as a rule."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each

from cascade.errors import CascadeError, UsageError
from cascade.matching import get_matcher
from cascade.matching.base import FunctionMatcher


@each(
    "said, verdict",
    [
        (True, True),
        (False, False),
        (None, None),
        (np.bool_(True), True),
    ],
)
def test_what_a_function_says_is_the_verdict(said: Any, verdict: bool | None) -> None:
    assert FunctionMatcher(lambda answer, gold: said).matches("a", ["a"]) is verdict


@pytest.mark.parametrize("said", ["yes", 1, 0.5, float("nan"), [], np.array([True, False])])
def test_what_is_no_truth_is_an_error(said: Any) -> None:
    with pytest.raises(UsageError, match=r"must return True, False, or None"):
        FunctionMatcher(lambda answer, gold: said).matches("a", ["a"])


def test_a_function_gets_the_answer_and_all_accepted_ones() -> None:
    got: list[Any] = []
    FunctionMatcher(lambda answer, gold: got.append((answer, gold))).matches("a", ["b", "c"])
    assert got == [("a", ("b", "c"))]


def test_a_function_that_raises_is_named() -> None:
    def broken(answer: str, gold: tuple[str, ...]) -> bool:
        raise KeyError("key sk-abcdefghijklmnop")

    with pytest.raises(UsageError, match=r"function .*broken failed: KeyError") as caught:
        FunctionMatcher(broken).matches("a", ["b"])
    assert "sk-abc" not in str(caught.value)


def test_an_error_of_ours_goes_through() -> None:
    def refusing(answer: str, gold: tuple[str, ...]) -> bool:
        raise CascadeError("no more")

    with pytest.raises(CascadeError, match="no more") as caught:
        FunctionMatcher(refusing).matches("a", ["b"])
    assert type(caught.value) is CascadeError


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rules.py").write_text(
        "def is_right(answer, gold):\n    return answer in gold\n\nclass Rules:\n    strict = is_right\n\nnumber = 5\n"
    )
    (tmp_path / "my_broken_rules.py").write_text("import no_such_package_anywhere\n")
    (tmp_path / "my_raising_rules.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_rules", "my_broken_rules", "my_raising_rules"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("rules")
def test_a_function_is_found_by_its_name() -> None:
    assert get_matcher("function:my_rules.is_right").matches("a", ["a"]) is True
    assert get_matcher("function:my_rules:is_right").matches("a", ["b"]) is False
    assert get_matcher("function:function=my_rules.is_right").matches("b", ["a"]) is False
    assert get_matcher("function", function=lambda answer, gold: True).matches("a", []) is True


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("function:is_right", r'must be "module.attribute"'),
        ("function:my_rules.is_rihgt", r"cannot be found in my_rules; did you mean is_right"),
        ("function:no_such_module_x.f", r"there is no module no_such_module_x"),
        ("function:my_broken_rules.f", r"there is no module no_such_package_anywhere"),
        ("function:my_raising_rules.f", r"cannot be imported: RuntimeError: at import"),
        ("function:my_rules.number", r"must be a function"),
    ],
)
def test_a_function_that_is_not_there_is_one_clear_error(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_matcher(spec)
