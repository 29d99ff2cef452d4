"""The scorers of a learned policy in service: numpy only, without training code.

A scorer maps the raw features of a step, NaN if missing, to one number per row. If training had missing values of a
feature, they are handled like other values (an indicator column; a side at each node of a tree). If not, the score is
+inf, `design.GO_ON`: go on, keep the answer. A missing value is never taken as 0.

One row and many rows give the same bits; see `design`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.errors import ConfigError
from cascade.policies.design import GO_ON, Array, Design, Memo, Reading, Scored, fixed, or_go_on, weighed

Scorer = Scored
"""Any of the forms below."""
_STEEP = 700.0
"""Logits are clipped at this absolute value: exp(709.8) is the largest float64."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Scored):
    """intercept + Σ_j weights_j · column_j, added in this order.

    >>> design = Design(np.zeros(1), np.ones(1), np.array([-9.0]), np.array([9.0]), np.array([]), np.empty((0, 2)))
    >>> line = Linear(design, np.array([2.0]), 1.0)
    >>> line.value([3.0]), line.values(np.array([[3.0], [np.nan]])).tolist()
    (7.0, [7.0, inf])
    """

    kind = "linear"
    design: Design
    weights: Floats
    intercept: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", fixed(self.weights, np.float64))
        object.__setattr__(self, "intercept", float(self.intercept))

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the sums, float64 (…, d) -> (…)."""
        made = (memo or Memo(raw)).designed(self.design)
        return made.scored(weighed(self.intercept, self.weights, made.rows))

    def needs(self, width: int) -> Bools:  # noqa: ARG002 - as every scorer
        """Return the features without an indicator column, bool (d,)."""
        return ~self.design.foreseen

    def arrays(self) -> dict[str, Array]:
        """Return design, weights and intercept."""
        own = {"weights": self.weights, "intercept": np.array(self.intercept)}
        return own | _under("design", self.design.arrays())

    @classmethod
    def read(cls, held: Reading, width: int) -> Linear | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        design = Design.read(held.inside("design"), width)
        intercept = held.number("intercept")
        weights = held.take("weights", np.float64, (None if design is None else design.columns,))
        if design is None or weights is None or intercept is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            most = abs(intercept) + float((design.most() * np.abs(weights)).sum())
        if not math.isfinite(most):
            held.note("weights: they are so large that a score may be infinite")
            return None
        return cls(design, weights, intercept)


@dataclass(frozen=True, slots=True, eq=False)
class Logistic(Scored):
    """A probability: 1 / (1 + exp(−(slope · z + offset))) with z of a linear form; slope and offset are Platt's."""

    kind = "logistic"
    linear: Linear
    slope: float = 1.0
    offset: float = 0.0

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the probabilities, float64 (…, d) -> (…)."""
        made = (memo or Memo(raw)).designed(self.linear.design)
        total = weighed(self.linear.intercept, self.linear.weights, made.rows)
        return made.scored(probability(self.slope * total + self.offset))

    def needs(self, width: int) -> Bools:
        """Return what the linear form needs, bool (d,)."""
        return self.linear.needs(width)

    def arrays(self) -> dict[str, Array]:
        """Return the linear form, slope and offset."""
        own = {"slope": np.array(float(self.slope)), "offset": np.array(float(self.offset))}
        return own | _under("linear", self.linear.arrays())

    @classmethod
    def read(cls, held: Reading, width: int) -> Logistic | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        linear = Linear.read(held.inside("linear"), width)
        slope, offset = held.number("slope"), held.number("offset")
        if linear is None or slope is None or offset is None:
            return None
        if abs(slope) > 1e100 or abs(offset) > 1e100:
            held.note("slope or offset: it is too large for a logit")
            return None
        return cls(linear, slope, offset)


def probability(logit: Floats) -> Floats:
    """Return 1 / (1 + exp(−logit)), element by element with `math.exp`, since numpy's may differ by a bit.

    >>> probability(np.array([0.0, 800.0, -800.0])).tolist()
    [0.5, 1.0, 9.85967654375977e-305]
    """
    held = np.maximum(np.minimum(logit, _STEEP), -_STEEP)
    turned = np.fromiter(map(math.exp, (-held).ravel().tolist()), np.float64, held.size)
    return np.asarray(1.0 / (1.0 + turned.reshape(held.shape)))


@dataclass(frozen=True, slots=True, eq=False)
class Signal(Scored):
    """A feature as doubt: sign · x; a missing value is full doubt, +inf."""

    kind = "signal"
    feature: int
    sign: float = 1.0

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:  # noqa: ARG002 - as every scorer
        """Return the doubts, float64 (…, d) -> (…)."""
        doubt = self.sign * raw[..., self.feature] + 0.0  # one zero, whatever the sign
        return or_go_on(np.isnan(doubt), doubt)

    def needs(self, width: int) -> Bools:
        """Return the one feature, bool (d,)."""
        return np.asarray(np.arange(width) == self.feature)

    def arrays(self) -> dict[str, Array]:
        """Return feature and sign."""
        return {"feature": np.array(self.feature, dtype=np.int64), "sign": np.array(float(self.sign))}

    @classmethod
    def read(cls, held: Reading, width: int) -> Signal | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        feature, sign = held.take("feature", np.int64, ()), held.number("sign")
        if feature is None or sign is None:
            return None
        if not 0 <= int(feature) < width or abs(sign) != 1.0:
            held.note(f"feature must be one of {width}, and sign 1 or −1")
            return None
        return cls(int(feature), sign)


@dataclass(frozen=True, slots=True, eq=False)
class Piecewise(Scored):
    """A piecewise linear function of a feature, constant beyond its first and last knot; +inf if it is missing.

    `knots`, float64 (K,), rise, at least one; `scores` are the values there.

    >>> rising = Piecewise(0, np.array([0.0, 2.0]), np.array([1.0, 5.0]))
    >>> rising.values(np.array([[-1.0], [1.0], [9.0], [np.nan]])).tolist(), rising.value([0.5])
    ([1.0, 3.0, 5.0, inf], 2.0)
    """

    kind = "piecewise"
    feature: int
    knots: Floats
    scores: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "knots", fixed(self.knots, np.float64))
        object.__setattr__(self, "scores", fixed(self.scores, np.float64))
        problems = [*piecewise_problems(self.knots, self.scores)]
        if problems:
            raise ConfigError(problems)

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:  # noqa: ARG002 - as every scorer
        """Return the scores, float64 (…, d) -> (…)."""
        knots, scores, found = self.knots, self.scores, raw[..., self.feature]
        if knots.size == 1:
            return np.where(np.isnan(found), GO_ON, scores[0])
        held = np.minimum(np.maximum(found, knots[0]), knots[-1])
        left = np.minimum(np.searchsorted(knots, held, side="right") - 1, knots.size - 2)
        low, high = scores[left], scores[left + 1]
        between = low + (high - low) * ((held - knots[left]) / (knots[left + 1] - knots[left]))
        # A rounded sum may exceed the knot's own score, but the scores must have the order of the knots.
        inside = np.minimum(np.maximum(between, np.minimum(low, high)), np.maximum(low, high))
        return np.where(np.isnan(found), GO_ON, np.where(held == knots[left + 1], high, inside))

    def needs(self, width: int) -> Bools:
        """Return the one feature, bool (d,)."""
        return np.asarray(np.arange(width) == self.feature)

    def arrays(self) -> dict[str, Array]:
        """Return feature, knots and scores."""
        return {"feature": np.array(self.feature, dtype=np.int64), "knots": self.knots, "scores": self.scores}

    @classmethod
    def read(cls, held: Reading, width: int) -> Piecewise | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        feature, knots = held.take("feature", np.int64, ()), held.take("knots", np.float64, (None,))
        scores = held.take("scores", np.float64, (None,))
        if feature is None or knots is None or scores is None:
            return None
        problems = [*piecewise_problems(knots, scores)]
        if not 0 <= int(feature) < width:
            problems.append(f"feature must be one of {width}")
        for said in problems:
            held.note(said)
        return None if problems else cls(int(feature), knots, scores)


def piecewise_problems(knots: Floats, scores: Floats) -> Iterator[str]:
    """Yield the problems of a `Piecewise`'s knots and scores."""
    if not knots.size or knots.shape != scores.shape:
        yield "knots and scores: there must be as many of each, at least one"
        return
    with np.errstate(over="ignore", invalid="ignore"):
        spans = np.array([knots[-1] - knots[0], np.max(scores) - np.min(scores)])
        if not (np.isfinite(spans).all() and (np.diff(knots) > 0).all()):
            yield "the knots must rise, and the range of knots and of scores must be finite"


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Scored):
    """A constant score; +inf means always, −inf never."""

    kind = "constant"
    number: float

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:  # noqa: ARG002 - as every scorer
        """Return the number for each row, float64 (…, d) -> (…)."""
        return np.full(raw.shape[:-1], float(self.number))

    def needs(self, width: int) -> Bools:
        """Return no feature, bool (d,)."""
        return np.zeros(width, dtype=np.bool_)

    def arrays(self) -> dict[str, Array]:
        """Return the number."""
        return {"number": np.array(float(self.number))}

    @classmethod
    def read(cls, held: Reading, width: int) -> Constant | None:  # noqa: ARG003 - as every scorer
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        number = held.number("number", finite=False)
        return None if number is None else cls(number)


@dataclass(frozen=True, slots=True, eq=False)
class Mean(Scored):
    """The mean of several scorers, which has a smaller error than one chosen among them.

    >>> Mean((Constant(1.0), Constant(4.0))).value([])
    2.5
    """

    kind = "mean"
    scorers: tuple[Scored, ...]

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the means, float64 (…, d) -> (…), added in the order of the scorers."""
        made = memo or Memo(raw)
        total = self.scorers[0].values(raw, made)
        for one in self.scorers[1:]:
            total = total + one.values(raw, made)
        return np.asarray(total / len(self.scorers))

    def value(self, raw: Sequence[float] | Floats, memo: Memo | None = None) -> float:
        """Return the mean of one row, with the same bits."""
        total = self.scorers[0].value(raw, memo)
        for one in self.scorers[1:]:
            total += one.value(raw, memo)
        return total / len(self.scorers)

    def needs(self, width: int) -> Bools:
        """Return the features that any of them needs, bool (d,)."""
        return np.asarray(np.any([one.needs(width) for one in self.scorers], axis=0))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the scorers, by their positions."""
        return _by_place(self.scorers)

    @classmethod
    def read(cls, held: Reading, width: int) -> Mean | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        found = [_one(held.inside(str(place)), width, MEAN_OF) for place in range(len(set(held.names())))]
        made = tuple([one for one in found if one is not None])
        if not found:
            held.note("a mean needs at least one form")
        return cls(made) if made and len(made) == len(found) else None


@dataclass(frozen=True, slots=True, eq=False)
class Best(Scored):
    """The best of several offers to buy next: the one with the highest value; its score is the value per cost.

    `offers`, int64 (k,), are their numbers, rising, at least one; `costs`, above 0, the divisor of each offer's value
    if it is the best; `scorers` the scorers of these values.

    >>> best = Best(np.array([2, 3]), np.array([0.5, 4.0]), (Constant(1.0), Constant(2.0)))
    >>> best.pick(np.zeros(0)), best.value([])
    ((0.5, 3), 0.5)
    """

    kind = "best"
    offers: Ints
    costs: Floats
    scorers: tuple[Scored, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "offers", fixed(self.offers, np.int64))
        object.__setattr__(self, "costs", fixed(self.costs, np.float64))

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the value per cost of the best offer, float64 (…, d) -> (…)."""
        return self.picks(raw, memo)[0]

    def picks(self, raw: Floats, memo: Memo | None = None) -> tuple[Floats, Ints]:
        """Return the same, and the number of the offer, the first of equals: float64 and int64 (…)."""
        made = memo or Memo(raw)
        worth = np.stack([one.values(raw, made) for one in self.scorers], axis=-1)
        best = worth.argmax(axis=-1)
        highest = np.take_along_axis(worth, best[..., None], axis=-1)[..., 0]
        return np.asarray(highest / self.costs[best]), np.asarray(self.offers[best])

    def pick(self, raw: Floats, memo: Memo | None = None) -> tuple[float, int]:
        """Return both for one row, with the same bits."""
        worth = [one.value(raw, memo) for one in self.scorers]
        best = worth.index(max(worth))
        return worth[best] / float(self.costs[best]), int(self.offers[best])

    def needs(self, width: int) -> Bools:
        """Return the features without which any offer's value is unknown, bool (d,)."""
        return np.asarray(np.logical_or.reduce([one.needs(width) for one in self.scorers]), dtype=np.bool_)

    def arrays(self) -> dict[str, Array]:
        """Return offers, costs, and the arrays of the scorers by their positions."""
        return {"offers": self.offers, "costs": self.costs, **_by_place(self.scorers)}

    @classmethod
    def read(cls, held: Reading, width: int) -> Best | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        offers = held.take("offers", np.int64, (None,))
        costs = held.take("costs", np.float64, (None if offers is None else offers.size,))
        if offers is None or costs is None:
            return None
        if not offers.size or offers[0] < 1 or (np.diff(offers) < 1).any() or not (costs > 0).all():
            held.note("offers must be rising numbers from 1, at least one, and costs above 0")
            return None
        found = [_one(held.inside(str(place)), width, BOUGHT_BY) for place in range(offers.size)]
        made = tuple([one for one in found if one is not None])
        return cls(offers, costs, made) if len(made) == offers.size else None


def _by_place(scorers: Sequence[Scored]) -> dict[str, Array]:
    """Return the arrays of several scorers, each under its position and its kind."""
    found: dict[str, Array] = {}
    for place, one in enumerate(scorers):
        found |= _under(f"{place}.{one.kind}", one.arrays())
    return found


def _one(held: Reading, width: int, kinds: Sequence[str]) -> Scored | None:
    """Return the scorer at a position; return None and note the problem if none of the allowed kinds is there."""
    there = held.names()
    if len(there) != 1 or there[0] not in kinds:
        held.note(f"there must be one scorer here, of the kinds {', '.join(kinds)}")
        return None
    return form_of(there[0]).read(held.inside(there[0]), width)


MEAN_OF = ("linear", "trees", "constant")
BOUGHT_BY = (*MEAN_OF, "mean")
"""The scorers that a `Mean` or a `Best` may contain, by their names in files."""
SCORERS = ("linear", "logistic", "trees", "signal", "piecewise", "constant", "action", "best", "mean")
"""All scorers by their names in files."""
_FORMS: tuple[type[Scored], ...] = (Linear, Logistic, Signal, Piecewise, Constant, Best, Mean)


def form_of(kind: str) -> type[Scored]:
    """Return a scorer class by its name, one of `SCORERS`. Trees and networks are imported only when needed."""
    if kind == "trees":
        from cascade.policies.trees import Trees

        return Trees
    if kind == "action":
        from cascade.policies.network import Action

        return Action
    return next(one for one in _FORMS if one.kind == kind)


def _under(name: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{name}.{part}": values for part, values in arrays.items()}
