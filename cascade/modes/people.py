"""People's judgements of drawn requests: of two answers, and as feedback on the answer served.

A promise of regret needs them: an answer loses if it is wrong and the guide's is right. An answer that differs from
the guide's counts as a loss until somebody judges it, so it does not matter which answers people judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cascade.episodes.schema import Dropped, chat_of, identity
from cascade.errors import UsageError
from cascade.house.reading import Relabelled, same
from cascade.matching import get_comparator
from cascade.modes.state import BY_PEOPLE, Draw, pair_name
from cascade.review.pairs import digest_of
from cascade.review.reviews import Reviews

Verdicts: TypeAlias = Mapping[tuple[str, str], bool | None]
"""Whether an answer that differs loses, by the trace and the answer's digest; None: nobody has judged it."""


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
    judged = {} if reviews is None else reviews.losses(BY_PEOPLE)
    return {pair_name(*pair): lost for pair, lost in judged.items()}


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


def verdicts_of(labelled: Relabelled, comparator: str, drawn: Sequence[Draw], reviews: Reviews | None) -> Verdicts:
    """Return people's verdict on each answer of drawn requests that differs from the guide's.

    Answers of a request that are the same by the comparator have one verdict; if several differ, it is unknown which
    one feedback means. Whoever calls an answer a loss is believed.
    """
    known, comparing = losses_of(reviews), get_comparator(comparator)
    feedback = {row.trace_id for row in drawn if row.lost is False}
    differing: dict[str, list[list[Mapping[str, Any]]]] = defaultdict(list)
    for row in labelled.rows(Dropped()):
        if row["answer"] is not None and row["correct"] is False:
            kinds, request = differing[row["episode_id"]], chat_of(row)
            alike = (kind for kind in kinds if same(comparing, row["answer"], kind[0]["answer"], request))
            home = next(alike, None)
            kinds.append([row]) if home is None else home.append(row)
    verdicts: dict[tuple[str, str], bool | None] = {}
    for trace_id, kinds in differing.items():
        for kind in kinds:
            losses = [known[name] for row in kind if (name := _pair(row)) in known]
            losses += [False] if trace_id in feedback and len(kinds) == 1 else []
            verdicts |= {(trace_id, digest_of(row["answer"])): any(losses) if losses else None for row in kind}
    return verdicts


def _pair(row: Mapping[str, Any]) -> str:
    """Return the name under which a row's answer and the guide's are judged."""
    guide = row["gold"][0] if row["gold"] else ""
    return pair_name(identity(row["question"], row["context"]), digest_of(row["answer"]), digest_of(guide))
