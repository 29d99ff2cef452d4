"""What a certificate is asked to promise.

| kind | promise |
|---|---|
| `coverage` | a right answer is among those kept, or no step would have brought one: misses at most alpha |
| `solvable` | the same among the questions that some step answers rightly |
| `f1` | what the best F1 among the answers kept lacks to the best of all steps: at most alpha on average |
| `budget` | a question costs at most so much on average, and covers what that buys |
| `error` | the one answer served is wrong, or missing, at most alpha of the time; abstaining is no error |
| `regret` | the answer served is wrong where the reference alone is right, at most alpha of the time |

The first four hold on average over calibrations, or, with `delta`, for all but a share delta of calibrations. The last
two are not monotone in the threshold and come with `delta` only; they may be joined with a budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.money import exact_dollars

_T = TypeVar("_T")


class Kind(NamedTuple):
    """What a kind of guarantee means to all who calibrate, serve and watch it.

    Attributes:
        speaks_of: the set of answers kept, the single one served, or money.
        event: what happens with a question where the promise is kept, in words; None for a promise on a mean.
        monotone: whether a lower threshold never breaks it.
        by_segment: whether each segment of questions may have a promise of its own.
        needs_delta: whether it exists only for most calibrations, not on average over them.
        needs_quality: whether it reads how good each answer is, not only which are right.
    """

    speaks_of: Literal["set", "single", "money"]
    event: str | None = None
    monotone: bool = False
    by_segment: bool = False
    needs_delta: bool = False
    needs_quality: bool = False

    @property
    def monitored(self) -> bool:
        """Whether it is broken question by question, so that audits can count it."""
        return self.event is not None

    @property
    def followed(self) -> bool:
        """Whether a threshold may follow its audits downwards."""
        return self.monitored and self.monotone


KINDS: Mapping[str, Kind] = {
    "coverage": Kind(
        "set",
        "a right answer is among those kept, or no step would have brought one",
        monotone=True,
        by_segment=True,
    ),
    "solvable": Kind(
        "set",
        "a right answer is among those kept, if any step would have brought one",
        monotone=True,
        by_segment=True,
    ),
    "f1": Kind("set", monotone=True, needs_quality=True),
    "budget": Kind("money"),
    "regret": Kind(
        "single",
        "the answer served is not one that is wrong where the reference alone is right",
        needs_delta=True,
    ),
    "error": Kind("single", "the answer served is not wrong", needs_delta=True),
}


UNWATCHED = "its certificate speaks of small segments taken together, which audits cannot watch"
"""Why a pool has no monitor: its audits mix the segments in other shares than its calibration questions do."""


def of_segment(held: Mapping[str | None, _T], segment: str | None) -> _T | None:
    """Return what holds for a segment of questions: its own, else what holds for all others (None), else nothing.

    >>> of_segment({"law": 1, None: 2}, "law"), of_segment({"law": 1, None: 2}, "art"), of_segment({"law": 1}, "art")
    (1, 2, None)
    """
    return held.get(segment, held.get(None))


def known_as(segment: str | None, group: str | None, *, by_group: bool) -> str | None:
    """Return the name by which certificates know a question: its segment.

    Args:
        segment: the question's.
        group: the same.
        by_group: whether the certificates were made by groups, as before 0.6 and with --by-group: they know a question
            by its group where it names no segment.

    >>> known_as("law", "user 7", by_group=True), known_as(None, "law", by_group=True)
    ('law', 'law')
    >>> known_as(None, "user 7", by_group=False)
    """
    return group if by_group and segment is None else segment


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What is asked for, checked.

    Attributes:
        kind: one of `KINDS`.
        alpha: the share that may be missed, read as the decimal number that it is written as; None for "budget".
        delta: the share of calibrations that may mislead; None for a promise on average over calibrations.
        budget_nano_usd: the bound on the mean cost of a question, nano-USD.
        most_nano_usd: what no question costs more than, nano-USD: a hard cap, which a promise on a mean rests on.
        by_group: as `by_segment`, with the column `group` as the segment and every question for itself; until 0.7.
        abstain: whether no answer may be served where the best one's confidence is low.
        by_segment: whether each segment of questions gets a promise, and a threshold, of its own.
        together: whether the promises for all K segments are to hold at once but for a probability delta: each is then
            made with delta/K. Else delta holds for each segment by itself.

    Raises:
        UsageError: everything that is wrong with it.

    >>> Guarantee("coverage", 0.05).alpha
    0.05
    >>> Guarantee("error", 1.5)
    Traceback (most recent call last):
    cascade.errors.UsageError: alpha is 1.5; it lies between 0 and 1. error needs delta, the share of calibrations that may mislead, as in delta 0.1.
    """  # noqa: E501 - a message stands on one line

    kind: str
    alpha: float | None = 0.1
    delta: float | None = None
    budget_nano_usd: int | None = None
    most_nano_usd: int | None = None
    by_group: bool = False
    abstain: bool = False
    by_segment: bool = False
    together: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"There is no guarantee {self.kind!r}{did_you_mean(self.kind, KINDS)}.")
        if self.kind == "budget":
            object.__setattr__(self, "alpha", None)
        problems = [*_about_shares(self), *_about_money(self), *_about_options(self)]
        if problems:
            raise UsageError(" ".join(problems))

    @property
    def single(self) -> bool:
        """Whether it speaks of the one answer served, not of the set."""
        return KINDS[self.kind].speaks_of == "single"

    @property
    def separate(self) -> bool:
        """Whether each segment of questions gets a promise of its own."""
        return self.by_segment or self.by_group

    def each_delta(self, segments: int) -> float | None:
        """Return the delta that one segment's promise is made with, of so many that are on record."""
        return self.delta if self.delta is None or not self.together else self.delta / max(segments, 1)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1


def _about_shares(asked: Guarantee) -> Iterator[str]:
    if asked.kind != "budget" and not _is_share(asked.alpha):
        yield f"alpha is {asked.alpha}; it lies between 0 and 1."
    if asked.delta is not None and not _is_share(asked.delta):
        yield f"delta is {asked.delta}; it lies between 0 and 1."
    if KINDS[asked.kind].needs_delta and asked.delta is None:
        yield f"{asked.kind} needs delta, the share of calibrations that may mislead, as in delta 0.1."


def _about_money(asked: Guarantee) -> Iterator[str]:
    budget, most = asked.budget_nano_usd, asked.most_nano_usd
    if asked.kind == "budget" and budget is None:
        yield "budget needs the bound on the mean cost of a question."
    if budget is not None and KINDS[asked.kind].speaks_of == "set":
        yield f"A budget goes with budget, regret and error, not with {asked.kind}."
    if budget is not None and most is None:
        yield "A budget needs the most that a question can cost: a mean is bounded only where no question can be dear."
    if budget is None and most is not None:
        yield "The most that a question can cost matters only beside a budget."
    for name, amount in (("The budget", budget), ("The most that a question can cost", most)):
        if amount is not None and amount <= 0:
            yield f"{name} is {exact_dollars(amount)}; it is at least {exact_dollars(1)}."


def _about_options(asked: Guarantee) -> Iterator[str]:
    if asked.separate and not KINDS[asked.kind].by_segment:
        yield f"Segments go with coverage and solvable, not with {asked.kind}."
    if asked.by_segment and asked.by_group:
        yield "Ask for a promise by segment or by group, not both."
    if asked.together and not (asked.separate and asked.delta is not None):
        yield "All segments together goes with a promise by segment and a delta."
    if asked.abstain and not asked.single:
        yield f"Abstaining goes with error and regret: {asked.kind} speaks of the answers kept."
