"""People's judgements of drawn requests: of two answers, and as feedback on the answer served.

A promise of regret needs them: an answer loses if it is wrong and the guide's is right. An answer that differs from
the guide's counts as a loss until somebody judges it, so it does not matter which answers people judge.
"""

from __future__ import annotations

from collections.abc import Sequence

from cascade.episodes.episode import Row
from cascade.episodes.reading import Judgements
from cascade.errors import UsageError
from cascade.modes.state import BY_PEOPLE, Draw
from cascade.review.pairs import Compared, place_of
from cascade.review.reviews import Reviews


def harmless(right: bool | None, better: str | None, *, by_guide: bool) -> bool | None:
    """Return False if feedback shows that an answer other than the guide's loses nothing, else None.

    Feedback never shows a loss: that takes a judgement of both answers.

    Args:
        right: whether the answer served is right, if the client said so.
        better: the model that answered better, "equal" or "neither".
        by_guide: whether the guide's answer was served.

    >>> harmless(True, None, by_guide=False), harmless(False, None, by_guide=True), harmless(True, None, by_guide=True)
    (False, False, None)
    """
    settles = right is not None and right is not by_guide
    return False if settles or better == "neither" else None


def losses_of(reviews: Reviews | None) -> dict[str, bool]:
    """Return the reviewers' judgements, by the names of the pairs (`PairId.name`)."""
    judged = {} if reviews is None else reviews.losses(BY_PEOPLE)
    return {pair.name: lost for pair, lost in judged.items()}


def check_terms(reviews: Reviews | None, comparator: str | None) -> None:
    """Refuse reviews that cannot support a promise of regret. Raises UsageError."""
    if reviews is None:
        return
    terms, problems = reviews.terms, list[str]()
    if terms.ask != BY_PEOPLE:
        problems.append("they ask only which answer is better, and regret needs right or wrong for both")
    if terms.rate != 1:
        problems.append(f"they were begun with a drawn share of {terms.rate:g}, and here every drawn request is judged")
    if comparator not in {None, terms.matcher}:
        problems.append(f"they compare by {terms.matcher}, and modes.comparator is {comparator}")
    if problems:
        raise UsageError(f"These reviews cannot be used: {'; '.join(problems)}. Begin a new file: server.review.file.")


def judgements(outputs: Compared, drawn: Sequence[Draw], reviews: Reviews | None) -> Judgements:
    """Return people's judgements of the answers of drawn requests that differ from the guide's.

    Feedback counts where one answer alone differs; if several do, it is unknown which one it means.
    """
    losses = {} if reviews is None else reviews.losses(BY_PEOPLE)
    settled = {draw.trace_id for draw in drawn if draw.lost is False}

    def loses(row: Row) -> bool | None:
        pair, place = outputs.pair_of(row), place_of(row)
        if pair is None:
            return None
        lost, single = pair.lost(losses), len(set(outputs.differing[place].values())) == 1
        return False if lost is None and single and place[1] in settled else lost

    return Judgements(BY_PEOPLE, 1.0, lambda _: True, loses)
