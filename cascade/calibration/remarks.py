"""What to know of a log before a promise is made from it: which rows are one question, which model is the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cascade.episodes.identity import identity
from cascade.episodes.schema import LAST_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.reference import ends_in_reference, has_reference, reference_right, reference_walk
from cascade.text import counted


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


def about_reference(table: EpisodeTable) -> Iterator[str]:
    """Yield which model a promise of regret and savings are held against, and what makes that doubtful."""
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
