"""The ways to fit that are judged, each as one function from training questions to a policy for each alpha."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from cascade.calibration.scores import scored
from cascade.conformal.arrays import ScoreArrays
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.policies.base import Policy
from cascade.training.dividing import allowed_loss
from cascade.training.fitting import choice_on
from cascade.training.objective import Objective
from cascade.training.portfolio import AUTO, Estimator
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, fit_net_benefit

from .splitting import sizes
from .trial import Fitted, Method

PORTFOLIO = "portfolio"


def fit(train: EpisodeTable, alphas: Sequence[float], seed: int, *, method: str) -> Mapping[float, Fitted]:
    """Choose and fit as `cascade fit` does, for the calibration questions that this split has."""
    calibration = sizes(train.n * 5 // 3)[1]
    return {alpha: _fitted(train, alpha, calibration, seed, method) for alpha in alphas}


def _fitted(train: EpisodeTable, alpha: float, calibration: int, seed: int, method: str) -> Fitted:
    guarantee = Guarantee("coverage", alpha)
    objective = Objective.of(train, guarantee, allowed_loss(guarantee, calibration))
    chosen = choice_on(train, objective, method, seed).chosen
    return Fitted(partial(scores_of, chosen.fit(train)), chosen.name)


def scores_of(policy: Policy, table: EpisodeTable) -> ScoreArrays:
    """Return a policy's scores on a log."""
    return scored(policy, table)[1]


def alone(train: EpisodeTable, alphas: Sequence[float], seed: int, *, make: Maker) -> Mapping[float, Fitted]:
    """Fit one learned method, without a choice among several."""
    calibration = sizes(train.n * 5 // 3)[1]
    allowed = {alpha: allowed_loss(Guarantee("coverage", alpha), calibration) for alpha in alphas}
    asked = {alpha: FitTarget("coverage", loss) for alpha, loss in allowed.items()}
    return {alpha: Fitted(partial(scores_of, make(train, one, seed=seed))) for alpha, one in asked.items()}


Maker: TypeAlias = Callable[..., Policy]


def made(fit: Estimator, train: EpisodeTable, asked: FitTarget, *, seed: int = 0) -> Policy:
    """Fit one learned method without confidences."""
    return fit(build(train, asked, confidences=False, seed=seed))


LEARNED: Mapping[str, Maker] = {"net benefit": partial(made, fit_net_benefit)}
METHODS: Mapping[str, Method] = {
    PORTFOLIO: Method(PORTFOLIO, partial(fit, method=AUTO)),
    **{name: Method(name, partial(alone, make=make)) for name, make in LEARNED.items()},
}


def methods(names: Sequence[str]) -> list[Method]:
    """Return the methods of these names."""
    return [METHODS[name] for name in names]
