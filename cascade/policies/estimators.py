"""What a learned policy scores with, as it is served: numpy alone, no training in it.

Each form takes the raw features of a step, NaN where one is missing, and gives one number a row. Missing is a value
like others where training saw it (an indicator column; a side at each node of a tree). Where it did not, the stated
fallback is +inf, `design.GO_ON`: go on, keep the answer. Never is a missing value taken for 0.

The same numbers come to the bit from one row and from many; `design` says how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.errors import ConfigError
from cascade.policies.design import GO_ON, Array, Design, Memo, Reading, Scored, fixed, or_go_on, weighed

__all__ = [
    "GO_ON",
    "SCORERS",
    "Best",
    "Constant",
    "Design",
    "Gain",
    "Linear",
    "Logistic",
    "Mean",
    "Piecewise",
    "Scorer",
    "Signal",
    "from_arrays",
    "probability",
]

Scorer = Scored
"""Any of the forms below."""
_Read = TypeVar("_Read")
_STEEP = 700.0
"""A logit beyond this is taken for it: exp(709.8) is the most that a float64 holds."""


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
        """Return the features that no indicator column stands for, bool (d,)."""
        return ~self.design.foreseen

    def arrays(self) -> dict[str, Array]:
        """Return design, weights and intercept."""
        own = {"weights": self.weights, "intercept": np.array(self.intercept)}
        return own | _under("design", self.design.arrays())

    @classmethod
    def read(cls, held: Reading, width: int) -> Linear | None:
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
        design = Design.read(held.inside("design"), width)
        intercept = held.number("intercept")
        weights = held.take("weights", np.float64, (None if design is None else design.columns,))
        if design is None or weights is None or intercept is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            most = abs(intercept) + float((design.most() * np.abs(weights)).sum())
        if not math.isfinite(most):
            held.note("weights: they are so large that a score need not be finite")
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
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
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
class Gain(Scored):
    """What is newly covered for its price, looking k more steps ahead: max_k (p·q_k − (1 − p)·r_k) / c_k.

    p is the chance that stopping here misses (`loss`), q_k that k more steps then find it (`gained`), r_k that they
    lose what was right (`lost`; None: nothing can be lost, as with sets of answers), c_k what k more steps cost:
    what `price` expects of this question, at least `cost`; `cost` itself where there is none.

    Attributes:
        loss, gained, lost, price: as said; K entries in the last three, each ahead.
        cost: float64 (K,), above 0.

    Reference: the estimator `index2` of `design/learned.md`.
    """

    kind = "gain"
    loss: Logistic
    gained: tuple[Logistic, ...]
    lost: tuple[Logistic | None, ...]
    cost: Floats
    price: tuple[Linear | None, ...] = ()
    _ahead: tuple[tuple[Logistic, Logistic | None, Linear | None, float], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", fixed(self.cost, np.float64))
        object.__setattr__(self, "price", tuple(self.price) or (None,) * self.cost.size)
        if not len(self.gained) == len(self.lost) == len(self.price) == self.cost.size > 0:
            said = "gained, lost, price and cost: one entry each for each number of steps ahead, at least one"
            raise ConfigError([said])
        ahead = zip(self.gained, self.lost, self.price, self.cost.tolist(), strict=True)
        object.__setattr__(self, "_ahead", tuple(ahead))

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the gains, float64 (…, d) -> (…)."""
        memo = memo or Memo(raw)
        p = self.loss.values(raw, memo)
        strange: Bools = p == GO_ON
        best: Any = -np.inf
        for gained, lost, price, cost in self._ahead:
            q = gained.values(raw, memo)
            r = np.zeros_like(q) if lost is None else lost.values(raw, memo)
            c = np.full_like(q, cost) if price is None else np.maximum(price.values(raw, memo), cost)
            strange = strange | (q == GO_ON) | (r == GO_ON) | (c == GO_ON)
            # Where any is unknown the sum is not used; a probability in its place keeps the arithmetic plain.
            p_, q_, r_ = (np.minimum(one, 1.0) for one in (p, q, r))
            best = np.maximum(best, (p_ * q_ - (1.0 - p_) * r_) / c)
        return or_go_on(strange, best)

    @property
    def _parts(self) -> tuple[Logistic | Linear, ...]:
        return (self.loss, *self.gained, *(one for one in (*self.lost, *self.price) if one is not None))

    def needs(self, width: int) -> Bools:
        """Return what any part needs, bool (d,)."""
        return np.asarray(np.any([part.needs(width) for part in self._parts], axis=0))

    def arrays(self) -> dict[str, Array]:
        """Return all parts; of `lost` and `price` those that are there."""
        found: dict[str, Array] = {"cost": self.cost, **_under("loss", self.loss.arrays())}
        for name, many in (("gained", self.gained), ("lost", self.lost), ("price", self.price)):
            for place, one in enumerate(many):
                found |= {} if one is None else _under(f"{name}.{place}", one.arrays())
        return found

    @classmethod
    def read(cls, held: Reading, width: int) -> Gain | None:
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
        loss = Logistic.read(held.inside("loss"), width)
        cost = held.take("cost", np.float64, (None,))
        if cost is None or not cost.size or not (cost > 0).all():
            held.note("there is one above 0 for each number of steps ahead", "cost")
            return None
        gained = [Logistic.read(held.inside("gained").inside(str(k)), width) for k in range(cost.size)]
        lost = _some(held.inside("lost"), cost.size, lambda one: Logistic.read(one, width))
        price = _some(held.inside("price"), cost.size, lambda one: Linear.read(one, width))
        whole = [one for one in gained if one is not None]
        if loss is None or lost is None or price is None or len(whole) < cost.size:
            return None
        with np.errstate(over="ignore"):
            if not np.isfinite(1.0 / cost).all():
                held.note("it is too small to divide by", "cost")
                return None
        return cls(loss, tuple(whole), lost, cost, price)


def _some(held: Reading, many: int, read: Callable[[Reading], _Read | None]) -> tuple[_Read | None, ...] | None:
    """Return the parts 0 to many − 1 of a file, None for those that are not there; None where one is broken."""
    there = set(held.names())
    found = [read(held.inside(str(k))) if str(k) in there else None for k in range(many)]
    broken = any(one is None and str(k) in there for k, one in enumerate(found))
    return None if broken else tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Signal(Scored):
    """One feature as the doubt itself: sign · x; a missing one is full doubt, +inf."""

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
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
        feature, sign = held.take("feature", np.int64, ()), held.number("sign")
        if feature is None or sign is None:
            return None
        if not 0 <= int(feature) < width or abs(sign) != 1.0:
            held.note(f"feature is one of {width}, and sign is 1 or −1")
            return None
        return cls(int(feature), sign)


@dataclass(frozen=True, slots=True, eq=False)
class Piecewise(Scored):
    """A piecewise linear function of one feature, constant beyond its first and last knot; a missing one gives +inf.

    Args:
        feature: which feature it is of.
        knots: float64 (K,), rising, at least one.
        scores: float64 (K,), what it gives at the knots.

    Raises:
        ConfigError: the knots do not rise, or there are not as many scores as knots.

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
        # A rounded sum may lie beyond the knot's own score, and the order of scores must be that of the knots.
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
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
        feature, knots = held.take("feature", np.int64, ()), held.take("knots", np.float64, (None,))
        scores = held.take("scores", np.float64, (None,))
        if feature is None or knots is None or scores is None:
            return None
        problems = [*piecewise_problems(knots, scores)]
        if not 0 <= int(feature) < width:
            problems.append(f"feature is one of {width}")
        for said in problems:
            held.note(said)
        return None if problems else cls(int(feature), knots, scores)


def piecewise_problems(knots: Floats, scores: Floats) -> Iterator[str]:
    """Yield what is wrong with the knots and scores of a `Piecewise`."""
    if not knots.size or knots.shape != scores.shape:
        yield "knots and scores: as many of one as of the other, at least one"
        return
    with np.errstate(over="ignore", invalid="ignore"):
        spans = np.array([knots[-1] - knots[0], np.max(scores) - np.min(scores)])
        if not (np.isfinite(spans).all() and (np.diff(knots) > 0).all()):
            yield "the knots rise, and the range of knots and of scores is finite"


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Scored):
    """The same number always; +inf and −inf are allowed, and mean always and never."""

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
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
        number = held.number("number", finite=False)
        return None if number is None else cls(number)


@dataclass(frozen=True, slots=True, eq=False)
class Mean(Scored):
    """The mean of several forms: it errs less than one that had to be chosen among them.

    >>> Mean((Constant(1.0), Constant(4.0))).value([])
    2.5
    """

    kind = "mean"
    scorers: tuple[Scored, ...]

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the means, float64 (…, d) -> (…), added in the order of the forms."""
        made = memo or Memo(raw)
        total = self.scorers[0].values(raw, made)
        for one in self.scorers[1:]:
            total = total + one.values(raw, made)
        return np.asarray(total / len(self.scorers))

    def value(self, raw: Sequence[float] | Floats, memo: Memo | None = None) -> float:
        """Return the mean of one row: the same number to the bit."""
        total = self.scorers[0].value(raw, memo)
        for one in self.scorers[1:]:
            total += one.value(raw, memo)
        return total / len(self.scorers)

    def needs(self, width: int) -> Bools:
        """Return what any of them needs, bool (d,)."""
        return np.asarray(np.any([one.needs(width) for one in self.scorers], axis=0))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the forms by their places."""
        return _by_place(self.scorers)

    @classmethod
    def read(cls, held: Reading, width: int) -> Mean | None:
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
        found = [_one(held.inside(str(place)), width, MEAN_OF) for place in range(len(set(held.names())))]
        made = tuple([one for one in found if one is not None])
        if not found:
            held.note("a mean is of one form or more")
        return cls(made) if made and len(made) == len(found) else None


@dataclass(frozen=True, slots=True, eq=False)
class Best(Scored):
    """The best of several offers that can be bought next: the one of the highest value, which is counted per cost.

    Args:
        offers: int64 (k,), the numbers of the offers, rising, at least one.
        costs: float64 (k,), what each is divided by once it is the best; above 0.
        scorers: k of them, what buying each is worth.

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
        """Return what buying the best is worth per cost, float64 (…, d) -> (…)."""
        return self.picks(raw, memo)[0]

    def picks(self, raw: Floats, memo: Memo | None = None) -> tuple[Floats, Ints]:
        """Return the same, and the number of the offer, the first of equals: float64 and int64 (…)."""
        made = memo or Memo(raw)
        worth = np.stack([one.values(raw, made) for one in self.scorers], axis=-1)
        best = worth.argmax(axis=-1)
        highest = np.take_along_axis(worth, best[..., None], axis=-1)[..., 0]
        return np.asarray(highest / self.costs[best]), np.asarray(self.offers[best])

    def pick(self, raw: Floats, memo: Memo | None = None) -> tuple[float, int]:
        """Return both of one row: the same numbers to the bit."""
        worth = [one.value(raw, memo) for one in self.scorers]
        best = worth.index(max(worth))
        return worth[best] / float(self.costs[best]), int(self.offers[best])

    def needs(self, width: int) -> Bools:
        """Return the features without which some offer's worth is unknown, bool (d,)."""
        return np.asarray(np.logical_or.reduce([one.needs(width) for one in self.scorers]), dtype=np.bool_)

    def arrays(self) -> dict[str, Array]:
        """Return offers, costs, and the arrays of the scorers by their places."""
        return {"offers": self.offers, "costs": self.costs, **_by_place(self.scorers)}

    @classmethod
    def read(cls, held: Reading, width: int) -> Best | None:
        """Return it from a file's arrays; None, and the problems noted, where they make none."""
        offers = held.take("offers", np.int64, (None,))
        costs = held.take("costs", np.float64, (None if offers is None else offers.size,))
        if offers is None or costs is None:
            return None
        if not offers.size or offers[0] < 1 or (np.diff(offers) < 1).any() or not (costs > 0).all():
            held.note("offers are numbers from 1 that rise, at least one, and costs above 0")
            return None
        found = [_one(held.inside(str(place)), width, BOUGHT_BY) for place in range(offers.size)]
        made = tuple([one for one in found if one is not None])
        return cls(offers, costs, made) if len(made) == offers.size else None


def _by_place(scorers: Sequence[Scored]) -> dict[str, Array]:
    """Return the arrays of several scorers, each under its place and its kind."""
    found: dict[str, Array] = {}
    for place, one in enumerate(scorers):
        found |= _under(f"{place}.{one.kind}", one.arrays())
    return found


def _one(held: Reading, width: int, kinds: Sequence[str]) -> Scored | None:
    """Return the scorer in one place; None, and noted, where there is none of the kinds that belong there."""
    there = held.names()
    if len(there) != 1 or there[0] not in kinds:
        held.note(f"one scorer belongs here, of the kinds {', '.join(kinds)}")
        return None
    return form_of(there[0]).read(held.inside(there[0]), width)


MEAN_OF = ("linear", "trees", "constant")
BOUGHT_BY = (*MEAN_OF, "mean")
"""What a mean can be of, and what an offer's worth can be, by the names that a file gives them."""
SCORERS = ("linear", "logistic", "trees", "gain", "signal", "piecewise", "constant", "action", "best", "mean")
"""The names that a file gives the forms."""
_FORMS: tuple[type[Scored], ...] = (Linear, Logistic, Gain, Signal, Piecewise, Constant, Best, Mean)


def form_of(kind: str) -> type[Scored]:
    """Return a form by its name, one of `SCORERS`. Trees and networks are loaded where a policy has them."""
    if kind == "trees":
        from cascade.policies.trees import Trees

        return Trees
    if kind == "action":
        from cascade.policies.network import Action

        return Action
    return next(one for one in _FORMS if one.kind == kind)


def from_arrays(kind: str, arrays: Mapping[str, Array], features: int) -> Scorer:
    """Return a scorer of d features from its arrays, as `arrays()` gave them.

    Raises:
        ConfigError: everything that is wrong: a missing, unknown or ill-shaped array, a number that is not finite, an
            index out of range, trees that are none.
    """
    held = Reading(arrays)
    made = form_of(kind).read(held, features) if kind in SCORERS else None
    if kind not in SCORERS:
        held.note(f"there is no scorer {kind!r}; there are {', '.join(SCORERS)}")
    else:
        held.problems += [f"{name}: there is no such array in it" for name in held.left()]
    if made is None or held.problems:
        raise ConfigError(held.problems)
    return made


def _under(name: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{name}.{part}": values for part, values in arrays.items()}
