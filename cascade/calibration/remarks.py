"""Remarks on a log before a promise is made from it: which rows are one question, which model is the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cascade.episodes.schema import LAST_ONLY, identity
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.reference import (
    MOSTLY,
    REFERENCES,
    ends_in_reference,
    has_reference,
    reference_right,
    reference_walk,
)
from cascade.money import Price
from cascade.text import counted
from cascade.types import Usage


def about_questions(tables: Sequence[EpisodeTable]) -> Iterator[str]:
    """Yield which questions of a log count as one, where somebody may take them for several."""
    blank = Counter(name for table in tables for name in table.questions)[identity("")]
    if blank > 1:
        yield (
            f"the column question is empty in {blank:,} episodes, so they count as one question: fill it in, or "
            "leave it null and give each question an episode_id"
        )
    spelled = {one for table in tables for one in zip(table.questions, table.spelled, strict=True)}
    likes = [many for name, many in Counter(name for name, _ in spelled).items() if many > 1 and name != identity("")]
    if likes:
        yield (
            f"{sum(likes):,} questions are near-duplicates, which differ only in case, blanks, punctuation or Unicode "
            f"form: they are held together and count as {counted(len(likes), 'question')}. If other questions belong "
            "together (one document, one user), name that in the column group"
        )


def about_gaps(tables: Sequence[EpisodeTable]) -> Iterator[str]:
    """Yield which steps of how many questions nobody asked, though later ones are on record."""
    for table in tables:
        if table.bought is None:
            continue
        unasked = ~table.bought & (np.arange(table.arrays.horizon) < table.arrays.steps[:, None])
        for at, many in enumerate(unasked.sum(axis=0)):
            if many:
                name = table.step_names[at]
                yield (
                    f"of {many:,} of {table.n:,} questions no call of {name} is on record: where a policy asks it, "
                    "such a question counts against the promise. Log every model's answer, or leave these questions out"
                )


_OF_OFFERS = frozenset({"p_yes", "judge_share", "answer_share"})
"""Signals of a call that looks at other calls, or that is one of several to one model."""


def about_parents(tables: Sequence[EpisodeTable]) -> Iterator[str]:
    """Yield which data sets look like lists of offers and do not say what each call reads."""
    for table in tables:
        if table.parents is not None or not any(table.calls) or table.arrays.answer.shape[2] > 1:
            continue
        models = [one.model for one in table.calls if one is not None]
        known = {name for name, values in table.signals.items() if not np.isnan(values).all()}
        if table.arrays.horizon > 1 and (len({*models}) < len(models) or known & _OF_OFFERS):
            yield (
                f"the log {table.dataset} does not say what its calls read (column parents): the steps "
                f"{', '.join(table.step_names)} were taken for calls that read nothing of each other, as in a ladder. "
                "If one reads another, as a judge does, write the numbers of the steps that it reads into parents, as "
                "in [1], and [] where it reads none"
            )


def about_reference(table: EpisodeTable) -> Iterator[str]:
    """Yield which model is the reference of savings and of a promise of regret, and reasons to doubt it."""
    if not has_reference(table):
        return
    walk = reference_walk(table)
    name = _reference_model(table)
    who = {LAST_ONLY: "the last model of the ladder"}.get(walk, "the guide, asked alone")
    why = "the log has no walk of a guide alone" if walk == LAST_ONLY else f"the log has the walk {walk!r}"
    named = who if name is None else f"{name}, {who}"
    yield f"the reference is {named}, because {why}"
    yield from _doubts(table, name or who)


def _reference_model(table: EpisodeTable) -> str | None:
    last = table.step_models[-1] if table.step_models else None
    if reference_walk(table) == LAST_ONLY or ends_in_reference(table):
        return last
    names = table.models.get("guide", ())
    return names[0] if len(names) == 1 else None


def _doubts(table: EpisodeTable, reference: str) -> Iterator[str]:
    """Yield why the reference may not be the dearest model, or not the best, of a ladder."""
    if not table.step_models or reference not in table.step_models:
        return
    costs = {name: _mean(table, at) for at, name in enumerate(table.step_models) if name is not None}
    unknown = [name for name, cost in costs.items() if cost is None]
    if unknown:
        yield (
            f"the log has no cost of {' and '.join(unknown)}, so the order of the models by cost is unknown: check "
            f"that {reference} is the model to compare with; --role MODEL=guide of cascade import names another"
        )
    own, right = costs[reference], float(reference_right(table).mean())
    for at, name in enumerate(table.step_models):
        cost, better = costs.get(name or ""), float(table.arrays.correct[:, at].any(axis=1).mean()) > right
        if cost == 0 and (name == reference or better):
            more = "" if name == reference else f", and it is right more often than {reference}"
            yield (
                f"the cost of {name} is 0 in this log{more}: if it is unknown, leave it empty; --role MODEL=guide of "
                "cascade import names the reference"
            )
        elif cost is not None and own is not None and cost > own > 0:
            yield f"the reference costs less than {name}: check that {reference} is the model to compare with"


def _mean(table: EpisodeTable, at: int) -> float | None:
    paid = table.paid[:, at]
    known = ~np.isnan(paid)
    return float(paid[known].mean()) if known.any() else None


# --- Say of how many questions of a log a cost is unknown, and what the reference costs ---


def unpriced(table: EpisodeTable) -> int:
    """Return the number of questions with an unknown cost."""
    return int(np.count_nonzero(~table.priced))


def unpriced_said(table: EpisodeTable) -> Iterator[str]:
    """Yield how many questions `EpisodeTable.costed` leaves out because the log lacks a cost of theirs."""
    many = unpriced(table)
    if many and table.shows_cost:
        yield f"{lacking_cost(many)}: left out of all figures here, which are of the other {table.n - many:,}."


def priced_said(table: EpisodeTable) -> Iterator[str]:
    """Yield that figures in money are of some questions only, where the log lacks costs of the others."""
    many = unpriced(table)
    if many and table.shows_cost:
        yield f"{lacking_cost(many)}: every figure in money is a mean over the other {table.n - many:,}"
    elif many:
        yield (
            f"{lacking_cost(many)}, of {table.n:,}: no figure in money is shown. That needs the costs of more than half"
        )


def lacking_cost(many: int) -> str:
    """Return, in words, that so many questions lack a cost."""
    return f"{counted(many, 'question')} {'lacks' if many == 1 else 'lack'} a cost in the log"


def reference_cost(table: EpisodeTable) -> float | None:
    """Return the reference's mean cost, nano-USD, over the questions whose costs are known.

    None unless the log has the reference for most questions, and the costs of most.
    """
    held = (table.walks[name] for name in REFERENCES if name in table.walks)
    walk = next((one for one in held if one.known.mean() > MOSTLY), None)
    if walk is None or not table.shows_cost:
        return None
    rows = walk.known & table.priced
    return float(walk.cost[rows].mean()) if rows.any() else None


# --- Whether a log was costed at the prices of the cascade that will serve: a promise about money holds at those alone

_ROUNDING = 100
"""Foreign logs round their costs: within a hundredth, or a nano-dollar, they are the same."""


class Mispriced(NamedTuple):
    """One model's calls that cost something else at the given prices: how many, and one of them in nano-USD."""

    model: str
    calls: int
    logged_nano_usd: int
    priced_nano_usd: int

    def describe(self) -> str:
        """Return it in words."""
        return (
            f"{self.model}: {self.calls} calls; one is on record with {self.logged_nano_usd / 1e9:.6g} USD and costs "
            f"{self.priced_nano_usd / 1e9:.6g} USD at the configured price"
        )


def mispriced(rows: Iterable[Mapping[str, Any]], prices: Mapping[str, Price | None]) -> list[Mispriced]:
    """Return the models whose logged costs are not those of the given prices, in the order of the log.

    Args:
        rows: a log's rows, as `episodes.schema` says; those without tokens or costs are passed over.
        prices: of the models by name; one without a price is passed over.
    """
    found: dict[str, Mispriced] = {}
    for row in rows:
        price, logged = prices.get(row["model"] or ""), row["cost_nano_usd"]
        if price is None or logged is None:
            continue
        usage = Usage(*(row[name] for name in _TOKENS))
        priced = price.cost_nano_usd(usage)
        if priced is None or abs(priced - logged) <= max(1, logged // _ROUNDING):
            continue
        first = found.setdefault(row["model"], Mispriced(row["model"], 0, logged, priced))
        found[row["model"]] = first._replace(calls=first.calls + 1)
    return list(found.values())


_TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
