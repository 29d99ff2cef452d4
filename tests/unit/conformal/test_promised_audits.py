"""The loss of an audited answer: the same on one answer as on a log, and the worse where something is unknown."""

from __future__ import annotations

import pytest

from cascade.conformal.promise import KINDS, Audit, kind_of

TRUTH = {"Danube": True, "Rhine": False, "Mur": False}
"""Any other text cannot be judged."""


def audit(served: str | None = None, kept: str = "", answers: str = "", **fields: object) -> Audit:
    return Audit(TRUTH.get, served=served, kept=tuple(kept.split()), answers=tuple(answers.split()), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "found", "loss"),
    [
        ("coverage", audit(kept="Danube", answers="Danube"), 0.0),
        ("coverage", audit(kept="Rhine Danube", answers="Rhine Danube", complete=True), 0.0),
        ("coverage", audit(kept="Rhine", answers="Rhine Danube", complete=True), 1.0),
        ("coverage", audit(kept="Rhine", answers="Rhine Mur", complete=True), 0.0),
        ("coverage", audit(kept="Rhine", answers="Rhine Mur"), 1.0),
        ("coverage", audit(kept="Rhine", answers="Rhine Inn", complete=True), 1.0),
        ("coverage", audit(kept="Danube", answers="Danube Inn", complete=True), 0.0),
        ("coverage", audit(complete=True), 0.0),
        ("error", audit("Danube"), 0.0),
        ("error", audit("Rhine"), 1.0),
        ("error", audit("Inn"), 1.0),
        ("error", audit(None), 1.0),
        ("error", audit(None, withheld=True), 0.0),
        ("regret", audit("Danube"), 0.0),
        ("regret", audit("Rhine"), 1.0),
        ("regret", audit("Rhine", reference=lambda: True), 1.0),
        ("regret", audit("Rhine", reference=lambda: False), 0.0),
        ("agreement", audit("Rhine", reference=lambda: False), 1.0),
        ("preference", audit("Inn"), 1.0),
    ],
)
def test_the_loss_of_an_audited_answer(kind: str, found: Audit, loss: float) -> None:
    rules = kind_of(kind)
    assert rules is not None
    assert rules.audited(found) == loss


def test_what_compares_needs_no_label() -> None:
    assert [name for name in KINDS.built_in if (kind := kind_of(name)) and kind.compares] == ["agreement"]
