"""The methods of the paper's tables: each is prepared on training and calibration questions, and played on others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from cascade.calibration.samples import Doubt
from cascade.calibration.scores import Played, played_of, scored
from cascade.conformal.arrays import ScoreArrays, StepArrays, hopeless, levels
from cascade.conformal.split import critical_kappa, split_kappa
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import Ready, Scorer, Unprepared, all_kept, played_at
from cascade.guarantees.base import Guarantee
from cascade.training.dividing import allowed_loss
from cascade.training.networks.trainer import Networks
from cascade.training.stages import FitTarget

Served = Literal["argmax", "trained", "calibrated"]


class Method(Protocol):
    """One method."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        ...

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:
        """Choose on the training questions, calibrate on the others."""
        ...


@dataclass(frozen=True, slots=True)
class Logged(Unprepared):
    """A walk that was logged beside the steps, such as the guide alone or a model that decides."""

    name: str

    def play(self, table: EpisodeTable) -> Played:
        """Return what was logged."""
        walk, never = table.walks[self.name], np.zeros(table.n, dtype=np.bool_)
        covered = walk.covered | hopeless(table.arrays)
        return played_of(covered, walk.covered, walk.right, walk.cost, walk.length, walk.leaves, walk.distinct, never)


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
class PolicyNetwork:
    """A policy network, trained on the training questions.

    Args:
        name: its name in the table.
        networks: trains it; shared by methods that may use the same network.
        method: as in `fit_network`.
        served: "argmax": one action a step, the likeliest; "trained": the set at the threshold at the end of training;
            "calibrated": the set at the threshold of the calibration questions.
    """

    name: str
    networks: Networks
    method: str = "ccpo"
    served: Served = "calibrated"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:
        """Train on the training questions; only "calibrated" uses the calibration questions."""
        loss = allowed_loss(Guarantee("coverage", alpha), calibration.n)
        asked = FitTarget("coverage", loss)
        policy = self.networks.sketch(train, asked, self.method, seed=seed)

        def scores(table: EpisodeTable) -> ScoreArrays:
            return scored(policy, table)[1]

        if self.served == "calibrated":
            return calibrated(scores, calibration, alpha)
        kappa = math.inf if self.served == "argmax" else policy.kappa
        # The argmax has no threshold to vary: it keeps one action.
        dial = scores if self.served == "trained" else None
        return Ready(lambda table: played_at(table, scores(table), kappa), dial)
