"""What a feature's name means, as arithmetic on logged steps and on the step that is live: one definition for both.

A view (`views`) gives the values of n logged questions, float64 (n,), or of the one that is being answered. The same
operations give the same float64 bits for both, since a certified threshold is the score of a logged step: values are
copied, compared and counted, and the only rounded operations are one subtraction, one division of two counts, and sums
in the order of the steps. `features` says which names there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from cascade.policies.views import NOWHERE, Values, View, Whole


class Column(Protocol):
    """One feature."""

    def of(self, seen: View) -> Values:
        """Return its value at the latest step: (n,) of logged questions, one number of the live one; NaN = unknown."""
        ...


class _Signal(NamedTuple):
    """A signal's value at each step."""

    name: str

    def at(self, seen: View, t: int) -> Values:
        return seen.signal(self.name, t)


class _Confidence(NamedTuple):
    """The confidence of the candidate in one place at each step."""

    place: int

    def at(self, seen: View, t: int) -> Values:
        return seen.confidence(self.place, t)


Series: TypeAlias = _Signal | _Confidence


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


class _Previous(NamedTuple):
    """The value at the step before the latest; unknown at step 1."""

    series: Series

    def of(self, seen: View) -> Values:
        return self.series.at(seen, seen.step - 2) if seen.step > 1 else seen.unknown()


class _Change(NamedTuple):
    """The latest value minus the previous; unknown where either is."""

    series: Series

    def of(self, seen: View) -> Values:
        if seen.step < 2:
            return seen.unknown()
        with np.errstate(invalid="ignore"):  # of two infinities the difference is unknown
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


class _Agrees(NamedTuple):
    """The share of all answers of earlier steps that equal this place's latest; unknown without either."""

    place: int

    def of(self, seen: View) -> Values:
        latest, earlier = seen.answers[..., -1, self.place], seen.answers[..., :-1, :]
        there = earlier >= 0
        same = ((earlier == latest[..., None, None]) & there).sum(axis=(-2, -1))
        return seen.where_texts_are_known(_share(same, there.sum(axis=(-2, -1)), latest >= 0))


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

    def of(self, seen: View) -> Values:
        at = self._step(seen.step)
        if at < 0:
            return seen.unknown()
        one, other = seen.answers[..., -1, self.place], seen.answers[..., at, self.other]
        return seen.where_texts_are_known(np.where((one >= 0) & (other >= 0), one == other, np.nan))


class _Votes(NamedTuple):
    """The largest share of all answers so far that are the same; unknown without an answer."""

    def of(self, seen: View) -> Values:
        most, among = seen.alike.sum(axis=-1).max(axis=-1), (seen.answers >= 0).sum(axis=(-2, -1))
        return seen.where_texts_are_known(_share(most, among, among > 0))


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
    """A sum over all steps so far, "tokens" (read and written) or "cost" (nano-USD); unknown where one step's is."""

    what: str

    def of(self, seen: View) -> Values:
        of = seen.tokens if self.what == "tokens" else seen.cost
        total = of(0) + 0.0
        for t in range(1, seen.step):
            total = total + of(t)
        return total


class _Asked(NamedTuple):
    """A number of the question's text."""

    name: str

    def of(self, seen: View) -> Values:
        return seen.asked(self.name)


def _share(same: Whole, among: Whole, known: Whole) -> Values:
    """Return same / among, NaN where nothing is known or there is nothing to share."""
    return np.divide(same, among, out=np.full(np.shape(same), np.nan), where=known & (among > 0))


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
    "tokens_so_far": _SoFar("tokens"),
    "cost_so_far": _SoFar("cost"),
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
