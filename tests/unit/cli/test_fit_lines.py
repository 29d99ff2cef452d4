"""Sentences of `cascade fit` that need a fit of a certain kind: they are asked for with one that was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cascade.api.fit_report import PolicyFit, fitted_report, next_step, written
from cascade.config import load
from cascade.evaluation.card import facts_of
from cascade.evaluation.logs import open_log
from cascade.factory import build_strategy
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import PLOT_FILE
from cascade.strategies.offers import Offers
from cascade.training.fitting import Fitted, fit_policy
from unit.calibration.logs import log

Cli = Callable[..., Any]


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


def test_a_fit_reports_that_no_candidate_keeps_the_promise(fitted: Fitted) -> None:
    none = tuple([replace(one, matched=None, difference=None) for one in fitted.choice.judged])
    text = said(replace(fitted, choice=replace(fitted.choice, judged=none)))
    assert "No candidate keeps the promise at any threshold on the training questions, and it is the simplest." in text
    assert "-: not fitted, or it keeps the promise at no threshold" in text


def test_a_page_without_a_dash_does_not_explain_it(fitted: Fitted) -> None:
    assert "-: not fitted" not in said(fitted)


@pytest.mark.parametrize(("many", "begins"), [(1, "1 question of"), (1299, "1,299 questions of")])
def test_one_is_one_and_thousands_have_a_comma(fitted: Fitted, many: int, begins: str) -> None:
    assert said(replace(fitted, sizes=fitted.sizes._replace(questions=many))).startswith(begins)


def test_what_is_printed_of_a_log_call_by_call_is_a_configuration_that_serves(tmp_path: Path) -> None:
    """0.6: "with a strategy of kind offers or verified", from which nobody could write the strategy."""
    (table,) = open_log("offers:demo").tables
    out = Console(width=60)
    with out.capture() as page:
        for part in written("policy", "what it is", following=next_step(["p_yes"], table.sources, "./policy", table)):
            out.print(part, crop=False)
    printed = page.get()
    lines = printed[printed.index("models:") :].replace("policy: ./policy", "provider: fake")
    (tmp_path / "cascade.yaml").write_text(lines, "utf-8")
    strategy = build_strategy(load(tmp_path / "cascade.yaml"))
    assert isinstance(strategy, Offers)
    assert [(one.name, one.use.name, one.purpose, one.parents) for one in strategy.offers] == [
        ("base", "qwen2.5-coder-0.5b", "answer", ()),
        ("judge", "qwen2.5-coder-1.5b", "verify", (1,)),
        ("guide", "qwen2.5-coder-1.5b", "outright", ()),
    ]
    assert strategy.step_names == table.step_names


def test_of_a_log_of_offers_its_offers_are_named() -> None:
    (table,) = open_log("offers:demo").tables
    calls = tuple([None if one is None else one._replace(purpose="answer") for one in table.calls])
    printed = next_step(["p_yes"], table.sources, "./policy", replace(table, calls=calls))
    assert printed == (
        "next: policy: ./policy in cascade.yaml serves it, with the offers of the log as its strategy: base, judge, guide"
    )


def test_levels_print_the_configuration_that_serves_too(cli: Cli) -> None:
    """They said that policy: ./policy serves it, also where the default strategy refuses it."""
    ran = cli(
        "fit", "offers:demo", "--policy", "threshold", "-o", "policy", "--levels", "0.4,0.3", "--guarantee", "regret"
    )
    assert ran.code == 0
    assert "next: serve it with this cascade.yaml" in ran.out
    assert "  kind: offers\n" in ran.out


def test_the_notices_on_stderr_are_a_field_of_the_document(cli: Cli) -> None:
    ran = cli("fit", "demo-ladder", "--guarantee", "regret", "--alpha", "0.3", "-o", "policy", "--json")
    told = json.loads(ran.out)["notices"]
    assert any("a guarantee of regret has a delta" in one for one in told)
    assert all(" ".join(one.split()) in " ".join(ran.err.split()) for one in told)
