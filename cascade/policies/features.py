"""Features: named numbers of a walk up to its latest step, the same to the bit on a log and live.

A name says all that there is to know of a feature, so that a policy's file needs no code of its own. The grammar and
the units are in `design/features.md`; NaN is unknown, and never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.errors import UsageError
from cascade.policies import columns, embedding, question_features
from cascade.policies.base import SHARED_PLACE, Observation
from cascade.policies.columns import Column
from cascade.policies.history import History
from cascade.policies.signals import SIGNALS, Signal, role_free, signal
from cascade.policies.views import LiveView, LogView


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The features of one step's rule, in order, and the places of the candidates that they speak of.

    Attributes:
        names: the features (`design/features.md`), each once.
        sources: the places of a step's candidates, as `History.sources` has them.

    Raises:
        UsageError: a name stands there twice, or speaks of a place that is not among the sources.
    """

    names: tuple[str, ...]
    sources: tuple[str, ...]
    _columns: tuple[Column, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = [columns.column(name, self.sources) for name in self.names]
        problems = [
            f"{name} names a place that is not one of {', '.join(columns.place_names(self.sources))}"
            for name, one in zip(self.names, found, strict=True)
            if one is None
        ]
        problems += [f"{name} stands there {many} times" for name, many in Counter(self.names).items() if many > 1]
        if problems:
            raise UsageError("These are no features: " + "; ".join(problems) + ".")
        object.__setattr__(self, "_columns", tuple([one for one in found if one is not None]))

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureSet, (self.names, self.sources)

    def table(self, history: History, step: int) -> Floats:
        """Return the features of logged questions after step `step`, from 1: float64 (n, d).

        Missing is NaN; so is all of a question whose record ends before that step. Nothing of a later step is read.
        """
        out = np.full((history.n, len(self.names)), np.nan)
        if 1 <= step <= history.horizon:
            seen = LogView(history, step, self.sources)
            for index, one in enumerate(self._columns):
                out[:, index] = one.of(seen)
            out[~seen.reached] = np.nan
        return out

    def live(self, observation: Observation, more: Mapping[str, float] | None = None) -> list[float]:
        """Return the same numbers of the latest step of a question that is being answered.

        Args:
            observation: the question and its steps.
            more: numbers of the question beside those of `question_features`: its embedding's (`policies.embedding`).
        """
        seen = LiveView(observation, self.sources, more)
        return [float(one.of(seen)) for one in self._columns]


class Feature(NamedTuple):
    """What a feature is: its unit, the least and greatest value that it can have (None: no bound), and what it says."""

    name: str
    unit: str
    low: float | None
    high: float | None
    what: str


_PLAIN = {
    "votes": Feature(
        "votes", "share of answers", 0.0, 1.0, "the largest share of all answers so far that are the same"
    ),
    "distinct": Feature("distinct", "answers", 0.0, None, "how many different answers there are so far"),
    "answers_here": Feature("answers_here", "answers", 0.0, None, "how many candidates the latest step has"),
    "tokens_so_far": Feature("tokens_so_far", "tokens", 0.0, None, "read and written in all steps so far"),
    "cost_so_far": Feature("cost_so_far", "nano-USD", 0.0, None, "what all steps so far cost"),
}
_COMPARED = {
    "agrees": ("share of answers", "the share of all answers of earlier steps that equal the latest of {}"),
    "repeats": ("0 or 1", "the latest answer of {} equals its own of the step before"),
    "same": ("0 or 1", "the latest answers of {} are equal"),
    "follows": ("0 or 1", "the first one's latest answer equals the other's of the step before: {}"),
}
_VIEWED = {
    "": "at the latest step",
    "first": "at step 1",
    "previous": "at the step before the latest",
    "change": "the latest minus the one before",
    "least": "the least so far",
    "most": "the greatest so far",
}


_PROBABILITY = Signal("probability", 0.0, 1.0)


def describe(name: str) -> Feature:
    """Return what a feature is.

    >>> describe("p_yes.change")
    Feature(name='p_yes.change', unit='probability', low=-1.0, high=1.0, what='p_yes: the latest minus the one before')
    """
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith(columns.ASKED):
        bare = name.removeprefix(columns.ASKED)
        listed = embedding.NUMBER if bare.startswith(embedding.PREFIX) else question_features.ALL.get(bare)
        said = listed or question_features.AskedNumber("unknown", None, None, "a number of the question's text")
        return Feature(name, said.unit, said.low, said.high, f"question: {said.what}")
    if compared := columns.COMPARES.fullmatch(name):
        unit, what = _COMPARED[compared["what"]]
        return Feature(name, unit, 0.0, 1.0, what.format(compared["places"].replace(",", " and ")))
    if equals := columns.EQUALS.fullmatch(name):
        return Feature(name, "0 or 1", 0.0, 1.0, f"the latest answer equals that of step {equals['number']}")
    return _viewed(name)


def _viewed(name: str) -> Feature:
    found = columns.VIEW.fullmatch(name)
    base, view = (found["series"], found["view"]) if found else (name, "")
    listed = _PROBABILITY if columns.CONFIDENCE.fullmatch(base) else signal(base)
    unit, low, high = listed.unit, listed.low, listed.high
    if view == "change":
        width = None if low is None or high is None else high - low
        low, high = None if width is None else -width, width
    what = _VIEWED[view] if view in _VIEWED else f"at step {view.removeprefix('at')}"
    return Feature(name, unit, low, high, f"{base}: {what}")


# --- what is offered

_TOO_EQUAL = 0.99
"""A feature that is the same for more of the questions tells too few of them apart."""
_TOO_ALIKE = 0.999
"""Two features that correlate more say the same."""
_ALIKE_ROWS = 20_000
"""Whether two features are alike is seen in so many questions."""
ASKED_OFFERED = ("characters", "choices", "context_characters", *question_features.OF_REQUEST)
MOST_OFFERED, ENOUGH = 20, 6


def offered(
    history: History, step: int, *, least_known: float = 0.1, at_most: int = MOST_OFFERED, enough: int = ENOUGH
) -> tuple[str, ...]:
    """Return the names of the features worth fitting on after a step, the most telling kind first.

    A feature is left out that is known for fewer than a share `least_known` of the questions that reached the step,
    that hardly varies, or that says what one before it says. What is right is not looked at. `design/features.md` says
    which kinds there are.

    Args:
        history: the questions to fit on.
        step: the step, from 1.
        least_known: the least share of questions of which a feature must be known.
        at_most: how many names are returned at most.
        enough: signals that say little of how good an answer is come last, until there are so many names.
    """
    telling = list(dict.fromkeys(_telling(history, step)))
    names = tuple(dict.fromkeys([*telling, *_signals(history)]))
    values = FeatureSet(names, history.sources).table(history, step)[history.steps >= step]
    some = values[:: max(1, len(values) // _ALIKE_ROWS)]
    kept: dict[str, _Compared] = {}
    for index, name in enumerate(names):
        if len(kept) >= (at_most if index < len(telling) else min(at_most, enough)):
            break
        replaced = name == "cost_so_far" and "tokens_so_far" in kept
        if not replaced and _tells(values[:, index], least_known):
            compared = _Compared(np.isnan(some[:, index]), _standard(some[:, index]))
            if not any(_say_the_same(compared, one) for one in kept.values()):
                kept[name] = compared
    return tuple(kept)


def _signals(history: History) -> list[str]:
    return sorted(filter(columns.is_signal, history.signals), key=_rank)


def _telling(history: History, step: int) -> Iterator[str]:
    """Yield the names that might be offered, the most telling kind first."""
    given, places = _signals(history), columns.place_names(history.sources)
    tracked = [name for name in given if signal(name).tracked] or given
    unknown = [bool(np.isnan(history.confidence[:, :, at]).all()) for at in range(len(places))]
    sure = [f"confidence[{place}]" for place, none in zip(places, unknown, strict=True) if not none]
    ladder = SHARED_PLACE in history.sources
    yield from (*tracked, *sure)
    yield from _comparisons(places, step, ladder)
    yield from _earlier([*tracked[:1], *sure] if sure else tracked[:2], step, ladder)
    yield from ("tokens_so_far", "cost_so_far", "answers_here")
    yield from (columns.ASKED + name for name in ASKED_OFFERED)
    yield from (columns.ASKED + name for name in sorted(history.asked) if name not in question_features.ALL)


def _rank(name: str) -> tuple[int, str]:
    """Return a signal's place in the order: as in the table of signals, then by name."""
    listed = role_free(name)
    return (list(SIGNALS).index(listed) if listed in SIGNALS else len(SIGNALS)), name


def _comparisons(places: Sequence[str], step: int, ladder: bool) -> Iterator[str]:
    """Yield which answers agree. What each model of a ladder said is compared with the latest; of rounds, the last two.

    The share of earlier answers that are the same, and whether one model took the other's over, add nothing to these
    (`design/features.md`), so that they are not offered.
    """
    first, *others = places
    yield from (f"same[{first},{other}]" for other in others)
    if step > 1:
        if ladder:
            yield from (f"equals.at{k}" for k in range(step - 1, 0, -1))
        else:
            yield from (f"repeats[{place}]" for place in places)
        yield from ("votes", "distinct")


def _earlier(series: Sequence[str], step: int, ladder: bool) -> Iterator[str]:
    """Yield earlier values: of each model in a ladder; what changed, and the extremes, in rounds of the same models.

    The previous value is the latest less the change, and in round 2 the least follows from these and the greatest: no
    column is offered that others add up to.
    """
    if ladder:
        yield from (f"{one}.at{k}" for k in range(step - 1, 0, -1) for one in series)
    elif step > 1:
        views = ("change", "most") if step == 2 else ("change", "least", "most")
        yield from (f"{one}.{view}" for one in series for view in views)


def _tells(values: Floats, least_known: float) -> bool:
    """Whether a feature is known often enough, and varies."""
    known = values[~np.isnan(values)]
    if not known.size or known.size < least_known * values.size:
        return False
    common = np.partition(known, known.size // 2)[known.size // 2]  # what most share, if most share anything
    return float((known == common).mean()) <= _TOO_EQUAL


class _Compared(NamedTuple):
    """What two features are compared by: where each is missing, and its standardised values."""

    missing: Bools
    values: Floats


def _say_the_same(one: _Compared, other: _Compared) -> bool:
    """Whether two features are known of the same questions, and one is all but a multiple of the other."""
    return np.array_equal(one.missing, other.missing) and abs(float((one.values * other.values).mean())) > _TOO_ALIKE


def _standard(values: Floats) -> Floats:
    """Return values less their mean, of mean square 1; 0 where they are missing or endless."""
    known: Bools = np.isfinite(values)
    widest = float(np.abs(values[known]).max(initial=0.0))  # divided by first: no square is endless
    if widest == 0.0:
        return np.zeros_like(values)
    scaled = np.where(known, values, 0.0) / widest
    centred = np.where(known, scaled - scaled[known].mean(), 0.0)
    size = float((centred**2).mean()) ** 0.5
    return centred / size if size > 0 else centred
