"""The methods that policies are compared with. Each is prepared on a training and a calibration split.

A method may use the training questions to choose and the calibration questions to set its threshold by split
conformal, and nothing of the test questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np

from cascade.calibration.samples import PER_RUNG, Doubt, doubt_of, rung_doubt, why_no_doubt
from cascade.calibration.scores import Played, played_of, scored
from cascade.conformal.arrays import ScoreArrays, StepArrays, hopeless, levels
from cascade.conformal.split import critical_kappa, split_kappa
from cascade.episodes.schema import BASE_ONLY, GUIDE_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.evaluation.baselines import (
    Depth,
    Ready,
    Scorer,
    Uala,
    Unprepared,
    all_kept,
    played_at,
)
from cascade.guarantees.base import Guarantee
from cascade.policies.base import Policy
from cascade.training.dividing import allowed_loss
from cascade.training.fitting import choice_on
from cascade.training.objective import Objective
from cascade.training.portfolio import sees_something
from cascade.training.simple import threshold_per_rung
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, fit_net_benefit

# --- The outcomes of the compared methods on n questions, and the reported means ---


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


class Method(Protocol):
    """One method."""

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


def calibrated(scores: Scorer, calibration: EpisodeTable, alpha: float) -> Ready:
    """Return a method of scores whose threshold is set on the calibration questions, by split conformal."""
    critical = critical_kappa(calibration.arrays, levels(calibration.arrays, scores(calibration)))
    kappa = split_kappa(critical, alpha)
    return Ready(lambda table: played_at(table, scores(table), kappa), scores)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A calibrated random mixture of two depths, every answer kept: the best possible policy without signals."""

    name: str = "depth mixture, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Set the weight of the mixture on the calibration questions."""

        def scores(table: EpisodeTable) -> ScoreArrays:
            # Each set of questions gets its own random draws, so that the test's differ from the calibration's.
            coin = np.random.default_rng([seed, crc32("\n".join(table.ids).encode("utf-8", "replace"))]).random(table.n)
            return all_kept(table, -np.arange(table.arrays.horizon)[None, :] - coin[:, None])

        return calibrated(scores, calibration, alpha)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Go on while the doubt is above a calibrated threshold; keep every answer."""

    doubt: Doubt

    @property
    def name(self) -> str:
        """The name, with the number that it reads."""
        return f"threshold on {self.doubt.name}, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Set the threshold on the calibration questions."""
        return calibrated(lambda table: all_kept(table, self.doubt.read(table)), calibration, alpha)


@dataclass(frozen=True, slots=True)
class RungThresholds:
    """In a ladder, go on while the doubt is above the threshold of the model that answered; keep every answer.

    The thresholds are tuned together on the training questions (`training.simple`); the calibration questions set their
    common level.
    """

    doubt: Doubt
    name: str = f"{PER_RUNG}, conformal"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Tune on the training questions, set the level on the calibration questions."""
        loss = allowed_loss(Guarantee("coverage", alpha), calibration.n)
        return _served(threshold_per_rung(train, self.doubt, FitTarget("coverage", loss)), calibration, alpha)


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
