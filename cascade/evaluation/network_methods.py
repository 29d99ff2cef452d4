"""Policy networks as methods: CPO, CPO batch, CPO online and CCPO (`training.networks`).

They need torch and take longer than all other methods together, so they are not among `methods.methods`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cascade.calibration.scores import scored
from cascade.conformal.arrays import ScoreArrays
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import Ready, Scorer, played_at
from cascade.evaluation.methods import Method, calibrated
from cascade.guarantees.base import Guarantee
from cascade.policies.learned import LearnedPolicy
from cascade.training.dividing import allowed_loss
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.trainer import Networks, require_torch
from cascade.training.stages import FitTarget

CPO, CPO_BATCH, CPO_ONLINE, CCPO = "CPO", "CPO batch, conformal", "CPO online", "CCPO, conformal"
Served = Literal["argmax", "trained", "calibrated"]


def network_methods(table: EpisodeTable, config: CCPOConfig | None = None) -> list[Method]:
    """Return the policy networks that can be trained on a log; none if its questions have one step."""
    networks = Networks(config)
    require_torch(networks.config.device)
    if table.arrays.horizon < 2:
        return []
    # The first three are one network: CPO online also moves a threshold, which the network does not read. The time of
    # training counts for the method that is prepared first.
    return [
        PolicyNetwork(CPO, networks, "cpo_online", "argmax"),
        PolicyNetwork(CPO_BATCH, networks, "cpo_online", "calibrated"),
        PolicyNetwork(CPO_ONLINE, networks, "cpo_online", "trained"),
        PolicyNetwork(CCPO, networks),
    ]


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
        scores = _scorer(policy)
        if self.served == "calibrated":
            return calibrated(scores, calibration, alpha)
        kappa = math.inf if self.served == "argmax" else policy.kappa
        # The argmax has no threshold to vary: it keeps one action.
        dial = scores if self.served == "trained" else None
        return Ready(lambda table: played_at(table, scores(table), kappa), dial)


def _scorer(policy: LearnedPolicy) -> Scorer:
    def scores(table: EpisodeTable) -> ScoreArrays:
        return scored(policy, table)[1]

    return scores
