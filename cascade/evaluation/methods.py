"""The ways to answer that policies are compared with. Each is prepared on a training and a calibration split.

A method may use the training questions to choose and the calibration questions to set its threshold by split
conformal, and nothing of the test questions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias
from zlib import crc32

import numpy as np

from cascade.calibration.scores import Played, play, played_of, scored
from cascade.conformal.arrays import Bools, Floats, ScoreArrays, StepArrays, hopeless, levels
from cascade.conformal.split import allowed_misses, critical_kappa, split_kappa
from cascade.episodes.schema import BASE_ONLY, GUIDE_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import Threshold as KappaRule
from cascade.policies.base import Policy
from cascade.training.dividing import allowed_loss
from cascade.training.fitting import choice_on
from cascade.training.objective import Objective
from cascade.training.portfolio import sees_something
from cascade.training.simple import PER_RUNG, Doubt, doubt_of, rung_doubt, threshold_per_rung, why_no_doubt
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, fit_net_benefit

# --- The outcomes of the compared ways to answer on n questions, and the means that are reported ---


@dataclass(frozen=True, slots=True)
class Means:
    """Means over questions; None if a cost is unknown, or no question is solvable."""

    coverage: float
    covered_given_solvable: float | None
    unsolvable: float
    in_set: float
    accuracy: float
    cost_usd: float | None
    avg_length: float
    leaves: float
    set_size: float


def played_at(table: EpisodeTable, scores: ScoreArrays, kappa: float) -> Played:
    """Return the outcome of a policy's scores at one threshold; it never abstains."""
    return play(table, scores, KappaRule(kappa))


def played_walk(table: EpisodeTable, walk: Walk) -> Played:
    """Return the outcome of a logged walk; a question without this walk counts as missed, at no cost."""
    covered, never = walk.covered | hopeless(table.arrays), np.zeros(table.n, dtype=np.bool_)
    return played_of(covered, walk.covered, walk.right, walk.cost, walk.length, walk.leaves, walk.distinct, never)


def means(table: EpisodeTable, played: Played) -> Means:
    """Return the means over a table's questions."""
    solvable = table.arrays.solvable
    return Means(
        coverage=float(played.covered.mean()),
        covered_given_solvable=float(played.in_set[solvable].mean()) if solvable.any() else None,
        unsolvable=float(hopeless(table.arrays).mean()),
        in_set=float(played.in_set.mean()),
        accuracy=float(played.right.mean()),
        cost_usd=float(played.cost[table.priced].mean()) / 1e9 if table.shows_cost else None,
        avg_length=float(played.length.mean()),
        leaves=float(played.leaves.mean()),
        set_size=float(played.distinct.mean()),
    )


# --- methods ---

Scorer: TypeAlias = Callable[[EpisodeTable], ScoreArrays]


class Ready(NamedTuple):
    """A prepared method. `scores` is set if the method has a threshold that trades cost for coverage."""

    play: Callable[[EpisodeTable], Played]
    scores: Scorer | None = None


class Method(Protocol):
    """One way to answer."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        ...

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:
        """Choose on the training questions, calibrate on the others."""
        ...


def methods(table: EpisodeTable) -> list[Method]:
    """Return the methods for which a log has the numbers, cheap and simple ones first."""
    logged = [name for name, walk in table.walks.items() if walk.known.any()]
    order = sorted(logged, key=lambda name: (name != BASE_ONLY, name != GUIDE_ONLY, name))
    found: list[Method] = [Chance(), *(Logged(name) for name in order)]
    found += [Depth(depth) for depth in range(1, table.arrays.horizon + 1)]
    if table.arrays.horizon > 1:
        found.append(Mixture())
        doubt = doubt_of(table)
        if doubt is not None:
            found += [Uala(doubt), Threshold(doubt)]
        rung = rung_doubt(table)
        if rung is not None:
            found.append(RungThresholds(rung))
        if sees_something(table):
            found.append(NetBenefit())
    return found


def left_out(table: EpisodeTable) -> Iterator[str]:
    """Yield which rows `methods` leaves out of a log of several steps, and why."""
    if table.arrays.horizon == 1:
        return
    why = why_no_doubt(table)
    if why is not None:
        yield f"The rows of a threshold and of UALA are left out: {why}."
    if not sees_something(table):
        yield "The row of net benefit is left out: the log has no signal that differs between questions."


class Unprepared(ABC):
    """A way to answer that needs no preparation: subclasses define only `play`."""

    __slots__ = ()

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Do nothing: this method needs no preparation."""
        return Ready(self.play)

    @abstractmethod
    def play(self, table: EpisodeTable) -> Played:
        """Return what it does on questions."""


@dataclass(frozen=True, slots=True)
class Logged(Unprepared):
    """A walk that was logged beside the steps, such as the guide alone or a model that decides."""

    name: str

    def play(self, table: EpisodeTable) -> Played:
        """Return what was logged."""
        return played_walk(table, table.walks[self.name])


@dataclass(frozen=True, slots=True)
class Chance(Unprepared):
    """A uniform random choice among the step's candidates and going on; its exact expectation."""

    name: str = "random"

    def play(self, table: EpisodeTable) -> Played:
        """Return the expectation."""
        return _chance(table.arrays)


def _chance(steps: StepArrays) -> Played:
    reach, kept_right, kept = np.ones(steps.n), np.zeros(steps.n), np.zeros(steps.n)
    cost, length = np.zeros(steps.n), np.zeros(steps.n)
    for t in range(steps.horizon):
        last = steps.steps == t + 1
        candidates = steps.present[:, t].sum(axis=1)
        options = np.maximum(candidates + ~last, 1)
        cost += reach * steps.cost[:, t]
        length += reach
        kept_right += reach * steps.correct[:, t].sum(axis=1) / options
        kept += reach * candidates / options
        reach = np.where(last, 0.0, reach / options)
    covered = np.where(hopeless(steps), 1.0, kept_right)
    return Played(covered, kept_right, kept_right, cost, length, kept, kept, abstained=np.zeros(steps.n))


@dataclass(frozen=True, slots=True)
class Depth(Unprepared):
    """Every answer of the first `depth` steps."""

    depth: int

    @property
    def name(self) -> str:
        """The name, with the depth."""
        return f"all answers, depth {self.depth}"

    def play(self, table: EpisodeTable) -> Played:
        """Return the outcome of so many steps."""
        onward = np.where(np.arange(table.arrays.horizon) < self.depth - 1, np.inf, -np.inf)
        shape = table.arrays.cost.shape
        return played_at(table, _all_kept(table, np.broadcast_to(onward, shape).astype(np.float64)), 0.0)


def _all_kept(table: EpisodeTable, onward: Floats) -> ScoreArrays:
    return ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)


def calibrated(scores: Scorer, calibration: EpisodeTable, alpha: float) -> Ready:
    """Return a method of scores whose threshold is set on the calibration questions, by split conformal."""
    critical = critical_kappa(calibration.arrays, levels(calibration.arrays, scores(calibration)))
    kappa = split_kappa(critical, alpha)
    return Ready(lambda table: played_at(table, scores(table), kappa), scores)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A calibrated coin between two depths, every answer kept: the best possible policy without signals."""

    name: str = "depth mixture, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Set the coin on the calibration questions."""

        def scores(table: EpisodeTable) -> ScoreArrays:
            # Each set of questions gets its own coins, so that the test's differ from the calibration's.
            coin = np.random.default_rng([seed, crc32("\n".join(table.ids).encode("utf-8", "replace"))]).random(table.n)
            return _all_kept(table, -np.arange(table.arrays.horizon)[None, :] - coin[:, None])

        return calibrated(scores, calibration, alpha)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Go on while in doubt; every answer kept; the threshold calibrated."""

    doubt: Doubt

    @property
    def name(self) -> str:
        """The name, with the number that it reads."""
        return f"threshold on {self.doubt.name}, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Set the threshold on the calibration questions."""
        return calibrated(lambda table: _all_kept(table, self.doubt.read(table)), calibration, alpha)


@dataclass(frozen=True, slots=True)
class RungThresholds:
    """In a ladder, go on while the doubt is above the threshold of the model that answered; keep every answer.

    The thresholds are tuned together on the training questions (`training.simple`); how lax they are is set on
    the calibration questions.
    """

    doubt: Doubt
    name: str = f"{PER_RUNG}, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Tune on the training questions, set the level on the calibration questions."""
        loss = allowed_loss(Guarantee("coverage", alpha), calibration.n)
        return _served(threshold_per_rung(train, self.doubt, FitTarget("coverage", loss)), calibration, alpha)


@dataclass(frozen=True, slots=True)
class Uala:
    """UALA: one answer, the judged one, of the first step that is not in doubt; the threshold is tuned on training.

    The search is exact: it takes the cheapest threshold that covers 1 − alpha of the training questions or, if none
        does,
    the one that covers most.
    """

    doubt: Doubt

    @property
    def name(self) -> str:
        """The name, with the number that it reads."""
        return f"UALA on {self.doubt.name}, tuned"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Choose the threshold on the training questions."""
        threshold = self._tuned(train, alpha)
        return Ready(lambda table: played_at(table, self.scores(table, threshold), threshold))

    def scores(self, table: EpisodeTable, threshold: float) -> ScoreArrays:
        """Return the scores of `policies.threshold`."""
        doubt = self.doubt.read(table)
        chosen = self.doubt.chosen(table)
        steps = table.arrays
        stops = (doubt < threshold) | _very_last(steps)
        keeps = stops[:, :, None] & (np.arange(steps.answer.shape[2]) == chosen[:, :, None])
        return ScoreArrays(np.where(keeps, np.inf, -np.inf), doubt)

    def _tuned(self, train: EpisodeTable, alpha: float) -> float:
        """Return the best of all thresholds, by running sums over the steps at which a walk can stop."""
        steps, chosen = train.arrays, self.doubt.chosen(train)
        doubt = np.where(chosen < 0, np.inf, self.doubt.read(train))  # without an answer a walk cannot stop
        on_record, last = np.arange(steps.horizon) < steps.steps[:, None], _very_last(steps)
        reach = np.full(doubt.shape, np.inf)
        np.minimum.accumulate(doubt[:, :-1], axis=1, out=reach[:, 1:])
        right = np.take_along_axis(steps.correct, np.maximum(chosen, 0)[:, :, None], axis=2)[:, :, 0] & (chosen >= 0)
        low = np.where(last, -np.inf, doubt)
        stops_right = on_record & right & (low < reach)
        finite = np.unique(doubt[on_record & np.isfinite(doubt)])
        options = np.append(finite, np.nextafter(finite[-1], np.inf) if finite.size else 0.0)
        covered = _at_least(reach[stops_right], options) - _at_least(low[stops_right], options)
        covered = covered + np.count_nonzero(hopeless(steps))
        order = np.argsort(reach[on_record])
        price = steps.cost if train.cost_known else np.ones_like(steps.cost)
        spent = np.append(np.cumsum(price[on_record][order][::-1])[::-1], 0)
        cost = spent[np.searchsorted(reach[on_record][order], options, side="left")]
        enough = covered >= steps.n - allowed_misses(steps.n, alpha)
        if enough.any():
            return float(options[np.where(enough, cost, np.iinfo(np.int64).max).argmin()])
        return float(options[np.lexsort((cost, -covered))[0]])


@dataclass(frozen=True, slots=True)
class NetBenefit:
    """Optimal stopping fitted on the training questions (`training.net_benefit`), its threshold calibrated."""

    name: str = "net benefit, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:
        """Fit on the training questions, set the threshold on the calibration questions."""
        loss = allowed_loss(Guarantee("coverage", alpha), calibration.n)
        return _served(
            fit_net_benefit(build(train, FitTarget("coverage", loss), confidences=False, seed=seed)), calibration, alpha
        )


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The candidate that `cascade fit` would choose, with its threshold calibrated."""

    name: str = "cascade fit, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:
        """Choose and fit on the training questions, set the threshold on the calibration questions."""
        guarantee = Guarantee("coverage", alpha)
        objective = Objective.of(train, guarantee, allowed_loss(guarantee, calibration.n))
        return _served(choice_on(train, objective, seed=seed).chosen.fit(train), calibration, alpha)


@dataclass(frozen=True, slots=True)
class Given:
    """A policy set by hand or a user's own policy, with its threshold calibrated.

    A policy whose scores depend on its threshold (`Policy.depends_on_kappa`) is played at its own threshold.
    """

    policy: Policy
    kind: str

    @property
    def name(self) -> str:
        """The name, with its kind."""
        return f"{self.kind}, given"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Set the threshold on the calibration questions."""
        if not self.policy.depends_on_kappa:
            return _served(self.policy, calibration, alpha)
        return Ready(lambda table: played_at(table, scored(self.policy, table)[1], self.policy.kappa))


def _served(policy: Policy, calibration: EpisodeTable, alpha: float) -> Ready:
    return calibrated(lambda table: scored(policy, table)[1], calibration, alpha)


def _very_last(steps: StepArrays) -> Bools:
    """Mark the steps after which none can follow, bool (n, T): the last step of each complete question."""
    last = np.arange(steps.horizon) == steps.steps[:, None] - 1
    return np.asarray(last & steps.complete[:, None], dtype=np.bool_)


def _at_least(levels_: Floats, options: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return for each option the number of levels that are at least as large."""
    ordered = np.sort(levels_)
    return np.asarray(ordered.size - np.searchsorted(ordered, options, side="left"), dtype=np.int64)
