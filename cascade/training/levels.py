"""Fit and certify one policy with several levels. All levels use the same questions; each has its own alpha.

The log is divided once, for the level that needs the most questions to certify. So no training question certifies any
level, and one policy may be trained for all levels at once. Each certificate comes from `fitting.fit_parts` and holds
by itself. Nothing is promised about all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, TypeAlias

from cascade.checks import refuse
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.policies.learned import LearnedPolicy
from cascade.policies.levels import in_order, name_problems
from cascade.text import percent
from cascade.training.choosing import Candidate
from cascade.training.dividing import SHARE, Divided, divided, in_logged, needed_of
from cascade.training.estimators import one_thread
from cascade.training.fitting import FitSettings, Fitted, check_parts, fit_parts, logged_in, objective_of
from cascade.training.objective import Objective
from cascade.training.portfolio import AUTO, LOG_SIGNALS, asked_of, sees_something

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.training.networks.trainer import Networks

Conditioned: TypeAlias = Callable[[EpisodeTable, Mapping[str, Objective]], Mapping[str, LearnedPolicy]]
"""Trains one policy for all levels at once, from training questions and the target of each level."""


@one_thread()
def fit_levels(
    tables: Sequence[EpisodeTable],
    guarantee: Guarantee,
    alphas: Mapping[str, float],
    *,
    method: str = AUTO,
    make: Conditioned | None = None,
    config: CascadeConfig | None = None,
    seed: int = 0,
    calibration_share: float = SHARE,
    expires_days: int | None = None,
    allow_everything: bool = False,
    today: date | None = None,
    networks: Networks | None = None,
) -> dict[str, Fitted]:
    """Fit a policy for each level on a log, and certify each.

    Args:
        tables: the log; several data sets of one cascade are taken as one.
        guarantee: the promise to make, without its alpha.
        alphas: two or more levels by name, each with the share of questions that may be missed.
        method: as for `fitting.fit_policy`; the choice is made separately for each level.
        make: trains one policy for all levels at once; each level then takes its policy without a comparison. It is
            called once, with the training questions and the objective of each level (whose `alpha` is the loss to aim
            at), and returns each level's policy by name. If no question is left to train on, it is not called, and
            each level gets the fixed depth.
        config: the cascade that will serve; this and the following arguments are those of `fitting.fit_policy`.
        seed: the seed of the parts, the folds and the bootstrap, the same for all levels.
        calibration_share: the share of the questions set aside to certify; never fewer than the strictest level needs.
        expires_days: how long the certificates hold; by default they do not expire.
        allow_everything: if the questions are too few for a threshold, let a level keep everything.
        today: the day of the certificates, UTC.
        networks: how policy networks are trained; if `make` uses the same object, it has the figures of that training.

    Returns:
        The levels by name, the cheapest first: alpha falls.

    Guarantee: that of `fit_policy`, for each level by itself, for questions like those of the log. The level that a
    question is asked at must not depend on the question.

    Raises:
        UsageError: the levels are not valid, or as `fit_policy`. It is raised before any training.
        NotCertifiedError: a level cannot be certified; the error names it, and `needed_n` says how many questions would
        be enough.

    Reference: `design/levels.md`.
    """
    wanted = promised(guarantee, alphas)
    strictest = max(wanted.values(), key=needed_of)
    how = FitSettings(method, config, seed, expires_days, allow_everything, today, networks)
    parts = divided(tables, strictest, share=calibration_share, seed=seed)
    trained = {} if make is None else _trained(make, parts, wanted, how)
    found: dict[str, Fitted] = {}
    for name, asked in reversed(wanted.items()):  # the strictest first: it is the likeliest to fail
        try:
            found[name] = fit_parts(parts, asked, how, taken=trained.get(name))
        except NotCertifiedError as error:
            told = in_logged(error, parts, asked, calibration_share, logged_in(tables))
            raise _of_level(told, name, asked) from None
    return in_order(alphas, found)


def conditioned(networks: Networks, method: str, seed: int) -> Conditioned:
    """Return a function that trains one policy network for all levels (each has its level in its biases)."""

    def make(training: EpisodeTable, objective: Mapping[str, Objective]) -> Mapping[str, LearnedPolicy]:
        return networks.levels(training, {name: asked_of(one) for name, one in objective.items()}, method, seed=seed)

    return make


def promised(guarantee: Guarantee, alphas: Mapping[str, float]) -> dict[str, Guarantee]:
    """Return the promise of each level, the cheapest first; raise UsageError with all that is wrong with them."""
    refuse(list(level_problems(alphas)))
    return in_order(alphas, {name: replace(guarantee, alpha=alpha) for name, alpha in alphas.items()})


def level_problems(alphas: Mapping[str, float]) -> Iterator[str]:
    """Yield the problems of a set of levels, given as names with their alphas."""
    if len(alphas) < 2:
        yield "give two or more levels; for a single one, give alpha"
    yield from name_problems(alphas)
    for name, alpha in alphas.items():
        if not 0 < alpha < 1:
            yield f"the alpha of level {name} must lie between 0 and 1, not {alpha:g}"
    if len(set(alphas.values())) < len(alphas):
        yield "two levels have the same alpha"


def middle(alphas: Mapping[str, float]) -> str:
    """Return the default level: "medium" if there is one, else the middle level, the stricter of two middle ones.

    >>> middle({"low": 0.2, "medium": 0.1, "high": 0.05}), middle({"a": 0.2, "b": 0.1})
    ('medium', 'b')
    """
    ordered = list(in_order(alphas, alphas))
    return "medium" if "medium" in alphas else ordered[len(ordered) // 2]


def _trained(
    make: Conditioned, parts: Divided, wanted: Mapping[str, Guarantee], how: FitSettings
) -> dict[str, Candidate]:
    """Return each level's policy, trained for all levels at once; empty if none can be trained.

    Raises:
        UsageError: the log cannot be fitted; `fit_parts` would raise this only after the training.
    """
    check_parts(parts, next(iter(wanted.values())), how.config)  # the same at every alpha
    if not parts.training.n:
        return {}
    if not sees_something(parts.training):
        raise UsageError(f"{parts.training.dataset} has no signal that a policy for all levels can use. {LOG_SIGNALS}")
    objective = {name: objective_of(parts, asked) for name, asked in wanted.items()}
    return {name: _taken(policy) for name, policy in make(parts.training, objective).items()}


def _taken(policy: LearnedPolicy) -> Candidate:
    return Candidate(policy.method, policy.method, 0, lambda _: policy)


def _of_level(error: NotCertifiedError, name: str, asked: Guarantee) -> NotCertifiedError:
    head = f"Level {name!r} (alpha {asked.alpha:g}): "
    why = None if error.why is None else f"{head}{error.why}"
    about = {"why": why, "advice": error.advice}
    return NotCertifiedError(f"{head}{error}", needed_n=error.needed_n, chance=error.chance, **about)


LOOSE, STRICT = 0.1, "low=0.1,medium=0.05,high=0.02"
"""If the reference alone keeps the promise, a level above the first alpha promises little; the second are levels that
promise more."""


def level_notes(fitted: Mapping[str, Fitted]) -> Iterator[str]:
    """Yield a note on each level that promises little, or that costs as much as a level that promises more."""
    names = list(fitted)
    for place, name in enumerate(names):
        asked = fitted[name].calibrated.guarantee
        if asked.reference_keeps_it and asked.alpha > LOOSE:
            yield (
                f"level {name} promises little: it may break the promise of {asked.kind} on {percent(asked.alpha)} of "
                f"the questions, and the reference breaks it on none. Stricter levels: {STRICT}"
            )
        better = [other for other in names[place + 1 :] if _cost(fitted[other]) <= _cost(fitted[name])]
        if better:
            yield (
                f"level {name} costs no less on the calibration questions than {better[-1]}, which promises more: "
                "there is no reason to use it"
            )


def _cost(fitted: Fitted) -> float:
    """Return a level's cost for a calibration question: nano-USD, else steps."""
    realised = fitted.calibrated.realised
    return realised.length if realised.cost_nano_usd is None else realised.cost_nano_usd
