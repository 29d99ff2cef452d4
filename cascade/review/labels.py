"""People's judgements as the truth of a log.

An output is right if it equals the reference's, or if it was judged and found to lose nothing. An output that nobody
judged is unknown: it counts as lost, unless its request was not drawn. A known share of the requests is drawn, by a
hash that depends on no outcome, and the drawn losses are tested at the risk times this share. A missing judgement never
helps, so which pairs are judged may depend on earlier judgements.
"""

from __future__ import annotations

from collections.abc import Sequence

from cascade.checks import refuse
from cascade.conformal.monitor import is_drawn
from cascade.conformal.promise import kind_of
from cascade.episodes.reading import Judgements
from cascade.logs.columns import Row
from cascade.review.pairs import Compared, PairId
from cascade.review.reviews import ASKS, Reviews, Terms


def judgements(
    compared: Compared,
    reviews: Sequence[Reviews],
    kind: str,
    rate: float | None = None,
) -> Judgements:
    """Return people's judgements in the form by which a log is read (`reading.reviewed`).

    Args:
        compared: the log.
        reviews: the judgements, all drawn with the same key. If reviewers differ, the output is a loss.
        kind: the kind of loss, "preference" or "regret".
        rate: the share of the requests whose judgements count; by default all that were drawn.

    Raises:
        UsageError: the reviews have another comparator or another draw, or did not ask for this kind of loss.
    """
    terms = _terms(compared, reviews, kind)
    share = terms.rate if rate is None else rate
    losses = dict[PairId, bool]()
    for judgement in (judgement for file in reviews for judgement in file.judgements):
        if (lost := judgement.loses(kind)) is not None:
            losses[judgement.pair] = losses.get(judgement.pair, False) or lost

    def loses(row: Row) -> bool | None:
        pair = compared.pair_of(row)
        if pair is None:  # without the reference's output there is nothing to judge
            return True
        return pair.lost(losses)

    return Judgements(kind, share, lambda name: is_drawn(terms.key, share, name), loses)


def _terms(compared: Compared, reviews: Sequence[Reviews], kind: str) -> Terms:
    """Return the terms of the reviews; refuse reviews that do not fit the request."""
    terms, every = reviews[0].terms, [file.terms for file in reviews]
    problems = []
    if any(begun.rate != terms.rate or (begun.key != terms.key and terms.rate < 1) for begun in every):
        problems.append("the files of reviews have different draws; give files of one draw")
    if any(begun.matcher != compared.comparator for begun in every):
        problems.append(f"the reviews compare outputs by {terms.matcher}, the log by {compared.comparator}: --matcher")
    rules = kind_of(kind)
    if rules is not None and "labels" in rules.needs and any(begun.ask == "preference" for begun in every):
        problems.append(f"{kind} needs right or wrong for both outputs, and the reviews asked only which is better")
    if kind not in ASKS:
        problems.append(f"reviews do not determine {kind}; ask for --promise {' or '.join(ASKS)}")
    refuse(problems, "These reviews cannot be used")
    return terms
