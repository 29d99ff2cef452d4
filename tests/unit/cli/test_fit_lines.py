"""Sentences of `cascade fit` that need a fit of a certain kind: they are asked for with one that was changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from cascade.api.fit_report import PolicyFit, fitted_report
from cascade.evaluation.card import facts_of
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import PLOT_FILE
from cascade.training.fitting import Fitted, fit_policy
from unit.calibration.logs import log


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit_policy([log(200)], Guarantee("coverage", 0.1), method="threshold")


def said(fitted: Fitted) -> str:
    """Return the page of a fit, its blanks as one."""
    facts = facts_of(fitted, {})
    out = Console(width=200, record=True, quiet=False, file=None)
    with out.capture() as page:
        for part in fitted_report(PolicyFit(fitted, facts, {PLOT_FILE: b""}, "policy"), 200):
            out.print(part)
    return " ".join(page.get().split())


def test_where_no_candidate_keeps_the_promise_that_is_said(fitted: Fitted) -> None:
    none = tuple([replace(one, matched=None, difference=None) for one in fitted.choice.judged])
    text = said(replace(fitted, choice=replace(fitted.choice, judged=none)))
    assert "No candidate keeps the promise at any threshold on the training questions, and it is the simplest." in text
    assert "-: not fitted, or it keeps the promise at no threshold" in text


def test_a_page_without_a_dash_does_not_explain_it(fitted: Fitted) -> None:
    assert "-: not fitted" not in said(fitted)


@pytest.mark.parametrize(("many", "begins"), [(1, "1 question of"), (1299, "1,299 questions of")])
def test_one_is_one_and_thousands_have_a_comma(fitted: Fitted, many: int, begins: str) -> None:
    assert said(replace(fitted, sizes=fitted.sizes._replace(questions=many))).startswith(begins)
