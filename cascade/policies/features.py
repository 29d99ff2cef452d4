"""Features: named numbers of a walk up to its latest step, with the same bits on a log and live.

A name defines its feature completely, so a policy's file needs no code. `design/features.md` has the grammar and the
units; NaN means unknown, never 0.

This module defines each name once, as arithmetic on a view (`views`), which has the values of n logged questions,
float64 (n,), or of the question that is being answered. The same operations give the same float64 bits for both, since
a certified threshold is the score of a logged step: values are copied, compared and counted, and the only rounded
operations are one subtraction, one division of two counts, and sums in the order of the steps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.errors import UsageError
from cascade.policies.base import SHARED_PLACE, History, Observation
from cascade.policies.views import ALL, NOWHERE, OF_REQUEST, AskedNumber, LiveView, LogView, Values, View


@dataclass(frozen=True, slots=True)
class Signal:
    """One named number of a step.

    Attributes:
        unit: its unit, in words.
        low, high: the least and greatest value that it can have; None = no bound.
        tracked: whether its values at earlier steps are worth a feature of their own: it says how good an answer is.
    """

    unit: str
    low: float | None
    high: float | None
    tracked: bool = False


SIGNALS: Final[Mapping[str, Signal]] = MappingProxyType(
    {
        "p_yes": Signal("probability", 0.0, 1.0, tracked=True),
        "answer_mean_logprob": Signal("nats per token, answer part", None, 0.0, tracked=True),
        "reply_mean_logprob": Signal("nats per token, whole reply", None, 0.0, tracked=True),
        "answer_min_logprob": Signal("nats, least likely token of the answer", None, 0.0),
        "reply_min_logprob": Signal("nats, least likely token of the reply", None, 0.0),
        "verdict_mass": Signal("probability of {Yes, No} together", 0.0, 1.0),
        "guide_agrees": Signal("1 the guide's answer is the base's, else 0", 0.0, 1.0),
        "agrees_with_earlier": Signal("share of earlier answers that are the same", 0.0, 1.0),
        "decided_action": Signal("1 keep the base's answer, 2 the guide's, 3 go on", 1.0, 3.0),
        "says_exit": Signal("1 stop, 0 go on", 0.0, 1.0),
        "reply_tokens": Signal("tokens of the whole reply", 0.0, None),
        "answer_chars": Signal("characters", 0.0, 2_000.0),
        "tool_calls": Signal("tool calls of the message", 0.0, None),
        "arguments": Signal("values in the arguments of the message's calls", 0.0, None),
        "arguments_quoted": Signal("share of these values that the messages of the request spell", 0.0, 1.0),
        "message_faults": Signal("faults of the message", 0.0, None),
        "model_skipped": Signal("1 the model lacks what the request needs", 0.0, 1.0),
        "reasoning_chars": Signal("characters", 0.0, None),
        "self_check": Signal("a model's own P(correct)", 0.0, 1.0, tracked=True),
        "gate": Signal("1 a check was passed, else 0", 0.0, 1.0, tracked=True),
        "judge_share": Signal("share of judges that said yes", 0.0, 1.0, tracked=True),
        "answer_share": Signal("share of samples that gave this answer", 0.0, 1.0, tracked=True),
        "answer_token_entropy": Signal("nats", 0.0, None, tracked=True),
        "answer_softmax_entropy": Signal("nats", 0.0, None, tracked=True),
        "other_run_uncertainty": Signal("unknown", None, None, tracked=True),
    }
)
"""Every signal of the strategies and the importers, the most informative first."""
_UNLISTED = Signal("unknown", None, None, tracked=True)
_ROLES = ("base_", "guide_")


def signal(name: str) -> Signal:
    """Return the entry of a signal. A signal that is not in the table, as in imports, has no unit or range.

    In imported steps of two candidates "base_" or "guide_" stands before the name.

    >>> signal("p_yes").high, signal("guide_self_check").unit, signal("certainty").unit
    (1.0, "a model's own P(correct)", 'unknown')
    """
    return SIGNALS.get(role_free(name), _UNLISTED)


def role_free(name: str) -> str:
    """Return the listed name of a signal, without the role before it that imported steps of two candidates have.

    >>> role_free("base_self_check"), role_free("base_rate")
    ('self_check', 'base_rate')
    """
    for role in _ROLES:
        if name not in SIGNALS and name.removeprefix(role) in SIGNALS:
            return name.removeprefix(role)
    return name


class Column(Protocol):
    """One feature."""

    def of(self, seen: View) -> Values:
        """Return its value at the latest step: (n,) for logged questions, one for the live one; NaN = unknown."""
        ...


class _SignalHere(NamedTuple):
    """A signal's value at each step."""

    name: str

    def at(self, seen: View, t: int) -> Values:
        return seen.signal(self.name, t)


class _Confidence(NamedTuple):
    """The confidence of the candidate in one place at each step."""

    place: int

    def at(self, seen: View, t: int) -> Values:
        return seen.confidence(self.place, t)


Series: TypeAlias = _SignalHere | _Confidence


class _Latest(NamedTuple):
    """The value at the latest step."""

    series: Series

    def of(self, seen: View) -> Values:
        return self.series.at(seen, seen.step - 1)


class _AtStep(NamedTuple):
    """The value at step `number`; unknown before it."""

    series: Series
    number: int

    def of(self, seen: View) -> Values:
        return self.series.at(seen, self.number - 1) if self.number <= seen.step else seen.unknown()


class _LatestChange(NamedTuple):
    """The latest value minus the previous; unknown if either is unknown."""

    series: Series

    def of(self, seen: View) -> Values:
        if seen.step < 2:
            return seen.unknown()
        with np.errstate(invalid="ignore"):  # the difference of two infinities is unknown
            return self.series.at(seen, seen.step - 1) - self.series.at(seen, seen.step - 2)


class _Extreme(NamedTuple):
    """The least (sign 1) or the greatest (sign −1) known value so far."""

    series: Series
    sign: int

    def of(self, seen: View) -> Values:
        best, further = self.series.at(seen, 0), np.fmin if self.sign > 0 else np.fmax
        for t in range(1, seen.step):
            best = further(best, self.series.at(seen, t))
        return best


class _Equal(NamedTuple):
    """1 if the latest answer in a place equals that of another place and step, else 0; unknown if either is missing.

    `back` counts the other's step back from the latest, `number` names it; one of them is None.
    """

    place: int
    other: int
    back: int | None
    number: int | None

    def _step(self, step: int) -> int:
        """Return the other's step, from 0; negative where there is none."""
        if self.back is not None:
            return step - 1 - self.back
        return (self.number or 0) - 1 if (self.number or 0) < step else NOWHERE

    def of(self, seen: View) -> Values:
        at = self._step(seen.step)
        if at < 0:
            return seen.unknown()
        one, other = seen.answers[..., -1, self.place], seen.answers[..., at, self.other]
        return seen.where_texts_are_known(np.where((one >= 0) & (other >= 0), one == other, np.nan))


class _Votes(NamedTuple):
    """The share of the most frequent answer among all answers so far; unknown without an answer."""

    def of(self, seen: View) -> Values:
        most, among = seen.alike.sum(axis=-1).max(axis=-1), (seen.answers >= 0).sum(axis=(-2, -1))
        share = np.divide(most, among, out=np.full(np.shape(most), np.nan), where=among > 0)
        return seen.where_texts_are_known(share)


class _Distinct(NamedTuple):
    """How many different answers there are so far."""

    def of(self, seen: View) -> Values:
        alike = seen.alike
        again = (alike & np.tri(alike.shape[-1], k=-1, dtype=np.bool_)).any(axis=-1)
        first = alike.any(axis=-1) & ~again
        return seen.where_texts_are_known(first.sum(axis=-1) + 0.0)


class _AnswersHere(NamedTuple):
    """How many candidates the latest step has."""

    def of(self, seen: View) -> Values:
        return (seen.answers[..., -1, :] >= 0).sum(axis=-1) + 0.0


class _SoFar(NamedTuple):
    """A sum over all steps so far: "tokens" (input and output) or "cost" (nano-USD); unknown if that of a step is."""

    what: str

    def of(self, seen: View) -> Values:
        of = seen.tokens if self.what == "tokens" else seen.cost
        total = of(0) + 0.0
        for t in range(1, seen.step):
            total = total + of(t)
        return total


class _QuestionNumber(NamedTuple):
    """A number of the question's text."""

    name: str

    def of(self, seen: View) -> Values:
        return seen.asked(self.name)


# --- names

ASKED = "asked."
VIEW = re.compile(r"(?P<series>.+)\.(?P<view>change|least|most|at[1-9][0-9]?)")
CONFIDENCE = re.compile(r"confidence\[(?P<place>[^\[\]]+)\]")
COMPARES = re.compile(r"(?P<what>repeats|same)\[(?P<places>[^\[\]]+)\]")
EQUALS = re.compile(r"equals\.at(?P<number>[1-9][0-9]?)")
_PLAIN: Mapping[str, Column] = {
    "votes": _Votes(),
    "distinct": _Distinct(),
    "answers_here": _AnswersHere(),
    "tokens_so_far": _SoFar("tokens"),
    "cost_so_far": _SoFar("cost"),
}


def place_names(sources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the places in a feature's name; a second place with the same name gets its number.

    >>> place_names(("base", "guide")), place_names(("answer", "answer"))
    (('base', 'guide'), ('answer', 'answer 2'))
    """
    return tuple([name if name not in sources[:at] else f"{name} {at + 1}" for at, name in enumerate(sources)])


def column(name: str, sources: tuple[str, ...]) -> Column | None:
    """Return the column of a name; None if it names a place that is not among the sources."""
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith(ASKED):
        return _QuestionNumber(name.removeprefix(ASKED))
    names = place_names(sources)
    if found := EQUALS.fullmatch(name):
        return _Equal(0, 0, None, int(found["number"]))
    if found := COMPARES.fullmatch(name):
        return _compared(found["what"], found["places"].split(","), names)
    return _viewed(name, names)


def is_signal(name: str) -> bool:
    """Whether a name means a signal of that name, and nothing else of the grammar.

    >>> is_signal("p_yes"), is_signal("p_yes.change"), is_signal("votes"), is_signal("a score, 1.5")
    (True, False, False, True)
    """
    return column(name, ()) == _Latest(_SignalHere(name))


def _compared(what: str, said: Sequence[str], names: tuple[str, ...]) -> Column | None:
    """Return the comparison of the answers of one place, or of two; None if there are no such places."""
    many = 2 if what == "same" else 1
    if len(said) != many or not set(said) <= set(names):
        return None
    return _Equal(names.index(said[0]), names.index(said[-1]), 0 if what == "same" else 1, None)


def _viewed(name: str, names: tuple[str, ...]) -> Column | None:
    """Return a view of a signal or of a place's confidence."""
    found = VIEW.fullmatch(name)
    base, view = (found["series"], found["view"]) if found else (name, "")
    placed = CONFIDENCE.fullmatch(base)
    if placed and placed["place"] not in names:
        return None
    series: Series = _Confidence(names.index(placed["place"])) if placed else _SignalHere(base)
    if view.startswith("at"):
        return _AtStep(series, int(view[2:]))
    return _VIEWS[view](series)


_VIEWS: Mapping[str, Callable[[Series], Column]] = {
    "": _Latest,
    "change": _LatestChange,
    "least": lambda series: _Extreme(series, 1),
    "most": lambda series: _Extreme(series, -1),
}


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The features of one step's rule, in order, and the places of candidates that they refer to.

    Attributes:
        names: the features (`design/features.md`), each once.
        sources: the places of a step's candidates, as `History.sources` has them.
    """

    names: tuple[str, ...]
    sources: tuple[str, ...]
    _columns: tuple[Column, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = [column(name, self.sources) for name in self.names]
        problems = [
            f"{name} names a place that is not one of {', '.join(place_names(self.sources))}"
            for name, one in zip(self.names, found, strict=True)
            if one is None
        ]
        problems += [f"{name} appears {many} times" for name, many in Counter(self.names).items() if many > 1]
        if problems:
            raise UsageError("These are not features: " + "; ".join(problems) + ".")
        object.__setattr__(self, "_columns", tuple([one for one in found if one is not None]))

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureSet, (self.names, self.sources)

    def table(self, history: History, step: int) -> Floats:
        """Return the features of logged questions after step `step`, from 1: float64 (n, d).

        Missing values are NaN, and so are all values of a question whose record ends before that step. Later steps are
        not read.
        """
        out = np.full((history.n, len(self.names)), np.nan)
        if 1 <= step <= history.horizon:
            seen = LogView(history, step, self.sources)
            for index, one in enumerate(self._columns):
                out[:, index] = one.of(seen)
            out[~seen.reached] = np.nan
        return out

    def live(self, observation: Observation) -> list[float]:
        """Return the same features of the latest step of a question that is being answered."""
        seen = LiveView(observation, self.sources)
        return [float(one.of(seen)) for one in self._columns]


class Feature(NamedTuple):
    """The description of a feature: its unit, its least and greatest value (None: no bound), and its meaning."""

    name: str
    unit: str
    low: float | None
    high: float | None
    what: str


_DESCRIBED = {
    "votes": Feature(
        "votes", "share of answers", 0.0, 1.0, "the largest share of all answers so far that are the same"
    ),
    "distinct": Feature("distinct", "answers", 0.0, None, "how many different answers there are so far"),
    "answers_here": Feature("answers_here", "answers", 0.0, None, "how many candidates the latest step has"),
    "tokens_so_far": Feature("tokens_so_far", "tokens", 0.0, None, "read and written in all steps so far"),
    "cost_so_far": Feature("cost_so_far", "nano-USD", 0.0, None, "what all steps so far cost"),
}
_COMPARED = {
    "repeats": "the latest answer of {} equals its own of the step before",
    "same": "the latest answers of {} are equal",
}
_VIEWED = {
    "": "at the latest step",
    "change": "the latest minus the one before",
    "least": "the least so far",
    "most": "the greatest so far",
}


_PROBABILITY = Signal("probability", 0.0, 1.0)


def describe(name: str) -> Feature:
    """Return the description of a feature.

    >>> describe("p_yes.change")
    Feature(name='p_yes.change', unit='probability', low=-1.0, high=1.0, what='p_yes: the latest minus the one before')
    """
    if name in _DESCRIBED:
        return _DESCRIBED[name]
    if name.startswith(ASKED):
        said = ALL.get(name.removeprefix(ASKED)) or AskedNumber(
            "unknown", None, None, "a number of the question's text"
        )
        return Feature(name, said.unit, said.low, said.high, f"question: {said.what}")
    if compared := COMPARES.fullmatch(name):
        what = _COMPARED[compared["what"]].format(compared["places"].replace(",", " and "))
        return Feature(name, "0 or 1", 0.0, 1.0, what)
    if equals := EQUALS.fullmatch(name):
        return Feature(name, "0 or 1", 0.0, 1.0, f"the latest answer equals that of step {equals['number']}")
    return _described_view(name)


def _described_view(name: str) -> Feature:
    found = VIEW.fullmatch(name)
    base, view = (found["series"], found["view"]) if found else (name, "")
    listed = _PROBABILITY if CONFIDENCE.fullmatch(base) else signal(base)
    unit, low, high = listed.unit, listed.low, listed.high
    if view == "change":
        width = None if low is None or high is None else high - low
        low, high = None if width is None else -width, width
    what = _VIEWED[view] if view in _VIEWED else f"at step {view.removeprefix('at')}"
    return Feature(name, unit, low, high, f"{base}: {what}")


# --- what is offered

_LEAST_KNOWN = 0.1
"""A feature that is known for a smaller share of the questions is not offered."""
_TOO_EQUAL = 0.99
"""A feature with the same value for a larger share of the questions is not offered."""
_TOO_ALIKE = 0.999
"""Two features with a higher correlation count as the same."""
_ALIKE_ROWS = 20_000
"""The number of questions on which features are compared."""
ASKED_OFFERED = ("characters", "choices", "context_characters", *OF_REQUEST)
MOST_OFFERED, ENOUGH = 20, 6


def offered(history: History, step: int, *, at_most: int = MOST_OFFERED, enough: int = ENOUGH) -> tuple[str, ...]:
    """Return the names of the features worth fitting on after a step, the most informative kind first.

    It leaves out a feature that is known for less than a tenth of the questions that reached the step, that hardly
    varies, or that repeats an earlier one. It does not read which answers are right. `design/features.md` lists the
    kinds. Signals that say little about how good an answer is come last, until there are `enough` names.
    """
    telling = list(dict.fromkeys(_telling(history, step)))
    names = tuple(dict.fromkeys([*telling, *_signals(history)]))
    values = FeatureSet(names, history.sources).table(history, step)[history.steps >= step]
    some = values[:: max(1, len(values) // _ALIKE_ROWS)]
    kept: dict[str, _Standardised] = {}
    for index, name in enumerate(names):
        if len(kept) >= (at_most if index < len(telling) else min(at_most, enough)):
            break
        replaced = name == "cost_so_far" and "tokens_so_far" in kept
        if not replaced and _tells(values[:, index]):
            compared = _Standardised(np.isnan(some[:, index]), _standard(some[:, index]))
            if not any(_say_the_same(compared, one) for one in kept.values()):
                kept[name] = compared
    return tuple(kept)


def _signals(history: History) -> list[str]:
    return sorted(filter(is_signal, history.signals), key=_rank)


def _telling(history: History, step: int) -> Iterator[str]:
    """Yield the names that might be offered, the most informative kind first."""
    given, places = _signals(history), place_names(history.sources)
    tracked = [name for name in given if signal(name).tracked] or given
    unknown = [bool(np.isnan(history.confidence[:, :, at]).all()) for at in range(len(places))]
    sure = [f"confidence[{place}]" for place, none in zip(places, unknown, strict=True) if not none]
    ladder = SHARED_PLACE in history.sources
    yield from (*tracked, *sure)
    yield from _comparisons(places, step, ladder)
    yield from _earlier([*tracked[:1], *sure] if sure else tracked[:2], step, ladder)
    yield from ("tokens_so_far", "cost_so_far", "answers_here")
    yield from (ASKED + name for name in ASKED_OFFERED)
    yield from (ASKED + name for name in sorted(history.asked) if name not in ALL)


def _rank(name: str) -> tuple[int, str]:
    """Return a signal's place in the order: as in the table of signals, then by name."""
    listed = role_free(name)
    return (list(SIGNALS).index(listed) if listed in SIGNALS else len(SIGNALS)), name


def _comparisons(places: Sequence[str], step: int, ladder: bool) -> Iterator[str]:
    """Yield comparisons of answers: in a ladder of each model's with the latest, in rounds of the last two."""
    first, *others = places
    yield from (f"same[{first},{other}]" for other in others)
    if step > 1:
        if ladder:
            yield from (f"equals.at{k}" for k in range(step - 1, 0, -1))
        else:
            yield from (f"repeats[{place}]" for place in places)
        yield from ("votes", "distinct")


def _earlier(series: Sequence[str], step: int, ladder: bool) -> Iterator[str]:
    """Yield earlier values: in a ladder that of each model; in rounds of the same models the change and the extremes.

    In round 2 the least is not offered: it follows from the latest value, the change and the greatest.
    """
    if ladder:
        yield from (f"{one}.at{k}" for k in range(step - 1, 0, -1) for one in series)
    elif step > 1:
        views = ("change", "most") if step == 2 else ("change", "least", "most")
        yield from (f"{one}.{view}" for one in series for view in views)


def _tells(values: Floats) -> bool:
    """Whether a feature is known often enough, and varies."""
    known = values[~np.isnan(values)]
    if not known.size or known.size < _LEAST_KNOWN * values.size:
        return False
    common = np.partition(known, known.size // 2)[known.size // 2]  # the most frequent value
    return float((known == common).mean()) <= _TOO_EQUAL


class _Standardised(NamedTuple):
    """A feature prepared for comparison: where it is missing, and its standardised values."""

    missing: Bools
    values: Floats


def _say_the_same(one: _Standardised, other: _Standardised) -> bool:
    """Whether two features are known for the same questions, and one is almost a multiple of the other."""
    return np.array_equal(one.missing, other.missing) and abs(float((one.values * other.values).mean())) > _TOO_ALIKE


def _standard(values: Floats) -> Floats:
    """Return values standardised to mean 0 and mean square 1; 0 for missing or infinite ones."""
    known: Bools = np.isfinite(values)
    widest = float(np.abs(values[known]).max(initial=0.0))  # divided first, so that no square overflows
    if widest == 0.0:
        return np.zeros_like(values)
    scaled = np.where(known, values, 0.0) / widest
    centred = np.where(known, scaled - scaled[known].mean(), 0.0)
    size = float((centred**2).mean()) ** 0.5
    return centred / size if size > 0 else centred
