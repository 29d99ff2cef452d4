"""People's judgements of drawn requests: of two answers, and as feedback on the answer served.

A promise of regret needs them: an answer loses if it is wrong and the guide's is right. An answer that differs from
the guide's counts as a loss until somebody judges it, so it does not matter which answers people judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.modes.state import Draw, pair_name
from cascade.review.labels import labelled_by_reviews
from cascade.review.pairs import Compared
from cascade.review.reviews import Judgement, Reviews, Terms

KIND: Final = "regret"


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
    """Return the reviewers' judgements, by the names of the pairs (`pair_name`)."""
    found = {} if reviews is None else reviews.losses(KIND)
    return {pair_name(*pair): lost for pair, lost in found.items()}


def check_terms(reviews: Reviews | None, comparator: str | None) -> None:
    """Refuse reviews that cannot support a promise of regret. Raises UsageError."""
    if reviews is None:
        return
    terms, problems = reviews.terms, list[str]()
    if terms.ask != KIND:
        problems.append("they ask only which answer is better, and regret needs right or wrong for both")
    if terms.rate != 1:
        problems.append(f"they were begun with a drawn share of {terms.rate:g}, and here every drawn request is judged")
    if comparator not in {None, terms.matcher}:
        problems.append(f"they compare by {terms.matcher}, and modes.comparator is {comparator}")
    if problems:
        raise UsageError(f"These reviews cannot be used: {'; '.join(problems)}. Begin a new file: server.review.file.")


def judged(compared: Compared, drawn: Sequence[Draw], reviews: Reviews | None) -> EpisodeTable:
    """Return drawn requests as a table in which an answer is right if it loses nothing.

    Args:
        compared: their answers.
        drawn: the requests, with their feedback.
        reviews: the reviews; None if there are none.
    """
    told = Terms(KIND, compared.comparator, 1.0, "") if reviews is None else reviews.terms
    feedback = []
    for one in drawn:
        episode = compared.episodes.get((one.cascade, one.trace_id))
        pairs = [] if episode is None or one.lost is not False else episode.pairs()
        if len(pairs) == 1:  # if several differ, it is unknown which one is meant
            feedback.append(Judgement(*pairs[0].id, "output", "both_bad", False, False, "feedback", ""))
    said = [Reviews(told, tuple(feedback))]
    return labelled_by_reviews(compared, said if reviews is None else [*said, reviews], KIND)[0]
