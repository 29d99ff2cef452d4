"""What a feature's name means, as arithmetic: once on arrays of logged steps, once on the step that is live.

Both forms give the same float64 bits, since a certified threshold is the score of a logged step: values are copied,
compared and counted, and the only rounded operations are one subtraction, one division of two counts, and sums in the
order of the steps. `features` says which names there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.policies.views import NAN, NOWHERE, LiveView, LogView, Looks
from cascade.types import Step


class Column(Protocol):
    """One feature, on logged steps and live."""

    def table(self, seen: LogView) -> Floats:
        """Return float64 (n,)."""
        ...

    def live(self, seen: LiveView) -> float:
        """Return the same number of one question."""
        ...


class _Signal(NamedTuple):
    """A signal's value at each step."""

    name: str

    def of(self, seen: LogView, t: int) -> Floats:
        return seen.signal(self.name, t)

    def at(self, seen: LiveView, t: int) -> float:
        value = seen.signals[t].get(self.name)
        return NAN if value is None else value + 0.0

    def known(self, seen: LiveView) -> list[float]:
        name = self.name
        return [value + 0.0 for one in seen.signals if (value := one.get(name)) is not None and value == value]  # noqa: PLR0124


class _Confidence(NamedTuple):
    """The confidence of the candidate in one place at each step."""

    place: int

    def of(self, seen: LogView, t: int) -> Floats:
        return seen.confidence(self.place, t)

    def at(self, seen: LiveView, t: int) -> float:
        candidate = seen.placed[t][self.place]
        return NAN if candidate is None or candidate.confidence is None else candidate.confidence + 0.0

    def known(self, seen: LiveView) -> list[float]:
        found = [self.at(seen, t) for t in range(seen.step)]
        return [value for value in found if value == value]  # noqa: PLR0124 - NaN


Series: TypeAlias = _Signal | _Confidence


class _Latest(NamedTuple):
    """The value at the latest step."""

    series: Series

    def table(self, seen: LogView) -> Floats:
        return self.series.of(seen, seen.step - 1)

    def live(self, seen: LiveView) -> float:
        return self.series.at(seen, seen.step - 1)


class _AtStep(NamedTuple):
    """The value at step `number`; unknown before it."""

    series: Series
    number: int

    def table(self, seen: LogView) -> Floats:
        return self.series.of(seen, self.number - 1) if self.number <= seen.step else seen.unknown()

    def live(self, seen: LiveView) -> float:
        return self.series.at(seen, self.number - 1) if self.number <= seen.step else NAN


class _Previous(NamedTuple):
    """The value at the step before the latest; unknown at step 1."""

    series: Series

    def table(self, seen: LogView) -> Floats:
        return self.series.of(seen, seen.step - 2) if seen.step > 1 else seen.unknown()

    def live(self, seen: LiveView) -> float:
        return self.series.at(seen, seen.step - 2) if seen.step > 1 else NAN


class _Change(NamedTuple):
    """The latest value minus the previous; unknown where either is."""

    series: Series

    def table(self, seen: LogView) -> Floats:
        if seen.step < 2:
            return seen.unknown()
        with np.errstate(invalid="ignore"):  # of two infinities the difference is unknown
            return self.series.of(seen, seen.step - 1) - self.series.of(seen, seen.step - 2)

    def live(self, seen: LiveView) -> float:
        if seen.step < 2:
            return NAN
        return self.series.at(seen, seen.step - 1) - self.series.at(seen, seen.step - 2)


class _Extreme(NamedTuple):
    """The least (sign 1) or the greatest (sign −1) known value so far."""

    series: Series
    sign: int

    def table(self, seen: LogView) -> Floats:
        best = self.series.of(seen, 0)
        for t in range(1, seen.step):
            best = (np.fmin if self.sign > 0 else np.fmax)(best, self.series.of(seen, t))
        return best

    def live(self, seen: LiveView) -> float:
        known = self.series.known(seen)
        if not known:
            return NAN
        return min(known) if self.sign > 0 else max(known)


class _Agrees(NamedTuple):
    """The share of all answers of earlier steps that equal this place's latest; unknown without either."""

    place: int

    def table(self, seen: LogView) -> Floats:
        latest, earlier = seen.answers[:, -1, self.place], seen.answers[:, :-1].reshape(seen.n, -1)
        same = ((earlier == latest[:, None]) & (earlier >= 0)).sum(axis=1)
        return seen.where_texts_are_known(_share(same, (earlier >= 0).sum(axis=1), latest >= 0))

    def live(self, seen: LiveView) -> float:
        latest, earlier = seen.answers[-1][self.place], seen.earlier
        return NAN if latest is None or not earlier else earlier.count(latest) / len(earlier)


class _Equal(NamedTuple):
    """1 where the latest answer in a place equals that of another place and step, else 0; unknown without either.

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

    def table(self, seen: LogView) -> Floats:
        at = self._step(seen.step)
        if at < 0:
            return seen.unknown()
        one, other = seen.answers[:, -1, self.place], seen.answers[:, at, self.other]
        equal = np.where((one >= 0) & (other >= 0), (one == other).astype(np.float64), np.nan)
        return seen.where_texts_are_known(equal)

    def live(self, seen: LiveView) -> float:
        at = self._step(seen.step)
        if at < 0:
            return NAN
        one, other = seen.answers[-1][self.place], seen.answers[at][self.other]
        return NAN if one is None or other is None else float(one == other)


class _Votes(NamedTuple):
    """The largest share of all answers so far that are the same; unknown without an answer."""

    def table(self, seen: LogView) -> Floats:
        flat = seen.answers.reshape(seen.n, -1)
        most = np.zeros(seen.n, dtype=np.int64)
        for at in range(flat.shape[1]):
            held = flat[:, at]
            np.maximum(most, ((flat == held[:, None]) & (held >= 0)[:, None]).sum(axis=1), out=most)
        among = (flat >= 0).sum(axis=1)
        return seen.where_texts_are_known(_share(most, among, among > 0))

    def live(self, seen: LiveView) -> float:
        given = seen.given
        return max(map(given.count, given)) / len(given) if given else NAN


class _Distinct(NamedTuple):
    """How many different answers there are so far."""

    def table(self, seen: LogView) -> Floats:
        flat = seen.answers.reshape(seen.n, -1)
        count = np.zeros(seen.n, dtype=np.float64)
        for at in range(flat.shape[1]):
            held = flat[:, at]
            count += (held >= 0) & ~(flat[:, :at] == held[:, None]).any(axis=1)
        return seen.where_texts_are_known(count)

    def live(self, seen: LiveView) -> float:
        return float(len(set(seen.given)))


class _AnswersHere(NamedTuple):
    """How many candidates the latest step has."""

    def table(self, seen: LogView) -> Floats:
        return np.asarray((seen.answers[:, -1] >= 0).sum(axis=1), dtype=np.float64)

    def live(self, seen: LiveView) -> float:
        return float(sum([candidate is not None for candidate in seen.placed[-1]]))


class _Tokens(NamedTuple):
    """Input and output tokens of all steps so far; unknown where any count is."""

    def table(self, seen: LogView) -> Floats:
        return _sum_so_far(seen.history.tokens, seen.step)

    def live(self, seen: LiveView) -> float:
        return _sum_live(seen.steps, _tokens_of)


class _Cost(NamedTuple):
    """Nano-USD of all steps so far; unknown where any cost is."""

    def table(self, seen: LogView) -> Floats:
        return _sum_so_far(seen.history.cost, seen.step)

    def live(self, seen: LiveView) -> float:
        return _sum_live(seen.steps, _cost_of)


class _Asked(NamedTuple):
    """A number of the question's text."""

    name: str

    def table(self, seen: LogView) -> Floats:
        return seen.asked(self.name)

    def live(self, seen: LiveView) -> float:
        return seen.asked.get(self.name, NAN)


def _share(same: Ints, among: Ints, known: Bools) -> Floats:
    """Return same / among, NaN where nothing is known or there is nothing to share."""
    there = known & (among > 0)
    shares: Floats = np.divide(same, among, out=np.full(same.shape, np.nan), where=there)
    return shares


def _sum_so_far(values: Floats, step: int) -> Floats:
    total: Floats = values[:, 0] + 0.0
    for t in range(1, step):
        total += values[:, t]
    return total


def _sum_live(steps: Sequence[Step], of: Callable[[Step], int | None]) -> float:
    total = 0.0
    for step in steps:
        value = of(step)
        if value is None:
            return NAN
        total += value
    return total


def _tokens_of(step: Step) -> int | None:
    """Return what a step's calls read and wrote, in tokens, as a log of it says; None where a count is unknown.

    A call that brought nothing back has no row in a log, and counts for nothing here.
    """
    total: int | None = None
    for call in step.calls:
        if call.completion is not None:
            read, written = call.completion.usage[:2]
            if read is None or written is None:
                return None
            total = (total or 0) + read + written
    return total


def _cost_of(step: Step) -> int | None:
    """Return what a step's calls cost, in nano-USD, as a log of it says; None where a cost is unknown."""
    total: int | None = None
    for call in step.calls:
        if call.completion is not None:
            if call.cost_nano_usd is None:
                return None
            total = (total or 0) + call.cost_nano_usd
    return total


# --- names

ASKED = "asked."
VIEW = re.compile(r"(?P<series>.+)\.(?P<view>first|previous|change|least|most|at[1-9][0-9]?)")
CONFIDENCE = re.compile(r"confidence\[(?P<place>[^\[\]]+)\]")
COMPARES = re.compile(r"(?P<what>agrees|repeats|same|follows)\[(?P<places>[^\[\]]+)\]")
EQUALS = re.compile(r"equals\.at(?P<number>[1-9][0-9]?)")
_PLAIN: Mapping[str, Column] = {
    "votes": _Votes(),
    "distinct": _Distinct(),
    "answers_here": _AnswersHere(),
    "tokens_so_far": _Tokens(),
    "cost_so_far": _Cost(),
}


def place_names(sources: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the places are called in a feature's name: a second of one name has its number.

    >>> place_names(("base", "guide")), place_names(("answer", "answer"))
    (('base', 'guide'), ('answer', 'answer 2'))
    """
    return tuple([name if name not in sources[:at] else f"{name} {at + 1}" for at, name in enumerate(sources)])


def column(name: str, sources: tuple[str, ...]) -> Column | None:
    """Return what a name means, None where it speaks of a place that is not among the sources."""
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith(ASKED):
        return _Asked(name.removeprefix(ASKED))
    names = place_names(sources)
    if found := EQUALS.fullmatch(name):
        return _Equal(0, 0, None, int(found["number"]))
    if found := COMPARES.fullmatch(name):
        return _compared(found["what"], found["places"].split(","), names)
    return _viewed(name, names)


def looks(found: Sequence[Column]) -> Looks:
    """Return what features look at when they are read live."""
    answers = any(isinstance(one, _Agrees | _Equal | _Votes | _Distinct) for one in found)
    placed = any(isinstance(getattr(one, "series", one), _Confidence | _AnswersHere) for one in found)
    return Looks(answers or placed, answers, any(isinstance(one, _Asked) for one in found))


def is_signal(name: str) -> bool:
    """Whether a name means a signal of that name, and nothing else of the grammar.

    >>> is_signal("p_yes"), is_signal("p_yes.change"), is_signal("votes"), is_signal("a score, 1.5")
    (True, False, False, True)
    """
    return column(name, ()) == _Latest(_Signal(name))


def _compared(what: str, said: Sequence[str], names: tuple[str, ...]) -> Column | None:
    """Return what compares the answers of one place, or of two, None where there are no such places."""
    many = 2 if what in {"same", "follows"} else 1
    if len(said) != many or not set(said) <= set(names):
        return None
    one, other = names.index(said[0]), names.index(said[-1])
    return _Agrees(one) if what == "agrees" else _Equal(one, other, 0 if what == "same" else 1, None)


def _viewed(name: str, names: tuple[str, ...]) -> Column | None:
    """Return a view of a signal or of a place's confidence."""
    found = VIEW.fullmatch(name)
    base, view = (found["series"], found["view"]) if found else (name, "")
    placed = CONFIDENCE.fullmatch(base)
    if placed and placed["place"] not in names:
        return None
    series: Series = _Confidence(names.index(placed["place"])) if placed else _Signal(base)
    if view.startswith("at"):
        return _AtStep(series, int(view[2:]))
    return _VIEWS[view](series)


_VIEWS: Mapping[str, Callable[[Series], Column]] = {
    "": _Latest,
    "first": lambda series: _AtStep(series, 1),
    "previous": _Previous,
    "change": _Change,
    "least": lambda series: _Extreme(series, 1),
    "most": lambda series: _Extreme(series, -1),
}
