"""What a plan and a page say of the next promotion: what is unknown is said to be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cascade.modes import planning
from cascade.modes.plan import Plan
from cascade.modes.state import CascadeState, Counts
from cascade.modes.store import KeptPlan
from cascade.server.pages.standing import Forecast, forecast

SEEN = Counts(complete=100, fit=60, certify=40, conversations=40, requests=1_000.0, first_s=0.0, last_s=86_400.0)


def planned(
    monkeypatch: pytest.MonkeyPatch, needed: int | None, counts: Counts, rate: float = 0.05, judged: float | None = None
) -> Plan:
    nothing: Any = SimpleNamespace(share_judged=lambda: judged)
    monkeypatch.setattr(planning, "_needed", lambda *_: (needed, None if needed else "it differs too often"))
    return planning.planned(nothing, nothing, 1, counts, rate)


def test_a_plan_counts_requests_days_and_money(monkeypatch: pytest.MonkeyPatch) -> None:
    priced = SEEN._replace(off_path_nano_usd=90 * 10**6, priced=90)  # ten rows without a known cost
    plan = planned(monkeypatch, 90, priced)
    assert (plan.requests, plan.days, plan.labels) == (1_000, 1.0, 0)
    assert plan.usd == pytest.approx(1_000 * 0.1 * 0.001)
    assert "about 1000 more requests, 0.1 USD for extra calls, 1 days at the traffic so far, and no judgements" in (
        plan.describe()
    )


def test_a_promise_that_people_judge_takes_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, 90, SEEN, judged=0.25)
    assert plan.labels == 23
    assert "at most 23 judgements by people" in plan.describe()


def test_later_turns_of_conversations_certify_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(monkeypatch, 90, SEEN._replace(certify=80)).requests == 2_000


@pytest.mark.parametrize("unknown", ["usd", "days", "requests"])
def test_unknown_figures_of_a_plan_are_none_and_reported_as_unknown(
    unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = SEEN._replace(off_path_nano_usd=10**9, priced=100)
    counts = {"usd": counts._replace(priced=0), "days": counts._replace(last_s=0.0), "requests": counts}[unknown]
    plan = planned(monkeypatch, 90, counts, 0.0 if unknown == "requests" else 0.05)
    assert getattr(plan, unknown) is None
    assert "unknown number of" in plan.describe()
    shown = forecast(CascadeState("cascade"), counts, KeptPlan("2026-11-23T10:00:00+00:00", plan))
    assert (shown.nano_usd if unknown == "usd" else getattr(shown, unknown)) is None


def test_a_plan_without_a_sufficient_number_reports_its_figures_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, None, SEEN)
    assert (plan.requests, plan.labels, plan.usd, plan.days) == (None, None, None, None)
    shown = forecast(CascadeState("cascade"), SEEN, KeptPlan("", plan))
    assert shown == Forecast("No promotion is likely so far: it differs too often.", at="", unlikely=True)


@pytest.mark.parametrize(
    ("state", "counts", "plan"),
    [
        (CascadeState("cascade"), SEEN._replace(fit=49), Plan(1, 40, 90, 1_000)),
        (CascadeState("cascade"), SEEN, None),
        (CascadeState("cascade", looks=1), SEEN, Plan(1, 40, 90, 1_000)),
        (CascadeState("cascade", era=1), SEEN, Plan(1, 40, 90, 1_000)),
    ],
    ids=["few rows", "no plan", "a look since", "an alarm since"],
)
def test_a_plan_about_another_look_is_not_shown(state: CascadeState, counts: Counts, plan: Plan | None) -> None:
    shown = forecast(state, counts, None if plan is None else KeptPlan("", plan))
    assert shown.said.startswith("Unknown so far")
    assert (shown.requests, shown.labels, shown.nano_usd, shown.days) == (None, None, None, None)
