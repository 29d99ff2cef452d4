"""The path of thresholds that a promise on the single answer is tested along, and the questions that order it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cascade.calibration.samples import absent, among, selected
from cascade.calibration.scores import sample_of
from cascade.conformal.served import PathPoint
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import PolicyArtifact, Seen
from cascade.policies.base import Policy


class Draw(NamedTuple):
    """How to draw the questions that order a path."""

    share: float | None
    seed: int | None


class Chosen(NamedTuple):
    """The questions that are left to certify, and the path that others ordered."""

    table: EpisodeTable
    seen: Seen
    path: tuple[PathPoint, ...] | None = None
    ordered_for: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def choose(table: EpisodeTable, policy: Policy, guarantee: Guarantee, before: PolicyArtifact, draw: Draw) -> Chosen:
    """Set the questions aside that order a path, and return it with the rest.

    Any path that the rest did not order is valid. One that was ordered for this promise certifies the most; one for
    another budget may begin with points that it forbids, and one without abstention has no point that abstains.
    """
    rules = guarantee.rules
    if not rules.tests_a_path or (
        before.path is None and rules.strict_first(sample_of(table, policy).table, guarantee)
    ):
        return Chosen(table, before.seen)
    ordered = frozenset(before.seen.selection)
    aside = among(table, ordered)
    picked, table = table.take(aside), table.take(~aside)
    if not table.n:
        raise UsageError(f"All {picked.n} questions ordered the thresholds, and may not certify them too; add others.")
    kept = Chosen(table, before.seen, before.path, before.ordered_for)
    if before.path is not None and _is_order(before.ordered_for, guarantee):
        return kept
    if ordered and not absent(picked, ordered):
        told = before.ordered_for or {}
        again = order_terms(guarantee, Draw(told.get("share"), told.get("seed")))
        note = f"the {picked.n} questions that ordered the thresholds before order them anew, for this promise"
        path = rules.order(sample_of(picked, policy), guarantee)
        return kept._replace(path=path, ordered_for=again, notes=(note,) if before.path is not None else ())
    if before.path is not None and _is_order(before.ordered_for, guarantee, ("abstain", "budget_nano_usd")):
        note = "the thresholds were ordered for another promise, and may certify less than others would"
        return kept._replace(notes=(f"{note}: the questions that ordered them are not all in this log",))
    chosen = selected(table, draw.share or 0.0, draw.seed or 0)
    picked, table = table.take(chosen), table.take(~chosen)
    seen = Seen(tuple(sorted({*before.seen.training, *ordered})), tuple(sorted(picked.questions)))
    return Chosen(table, seen, rules.order(sample_of(picked, policy), guarantee), order_terms(guarantee, draw))


_ORDERS = ("kind", "alpha", "abstain", "budget_nano_usd")
"""What of a guarantee the order of a path depends on; neither delta nor the cap bears on it."""


def _is_order(ordered_for: Mapping[str, Any] | None, guarantee: Guarantee, names: Sequence[str] = _ORDERS) -> bool:
    """Whether a path was ordered for this promise, or for one that agrees with it so far."""
    return ordered_for is not None and all(ordered_for.get(name) == getattr(guarantee, name) for name in names)


def order_terms(guarantee: Guarantee, draw: Draw) -> dict[str, Any]:
    """Return what the order of a path depends on besides the questions; `ordering` reads it."""
    return {**{name: getattr(guarantee, name) for name in _ORDERS}, **draw._asdict()}


def ordering(ordered_for: Mapping[str, Any]) -> Guarantee:
    """Return a guarantee that a path is ordered for in the same way.

    Raises:
        UsageError, KeyError: it says something else.
    """
    budget = ordered_for["budget_nano_usd"]
    return Guarantee(ordered_for["kind"], ordered_for["alpha"], 0.1, budget, budget, abstain=ordered_for["abstain"])
