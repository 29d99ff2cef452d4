"""Cross-calibration: fit and certify a policy on all questions of a log, with a weaker bound.

1. The questions are divided into folds; each group is in one fold (`calibration.samples.folds`).
2. For each fold a member is chosen and fitted on all other folds, with the whole choice of `fitting`.
3. A member's scores are ranked among its fold's critical values; the mean of the members' ranks decides.

At the threshold alpha a question is missed with probability at most 2·alpha.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import numpy as np

from cascade.calibration import crossing
from cascade.calibration.calibrating import Calibrated, Chosen, certified, report
from cascade.calibration.fingerprint import holds_for, refuse_other_cascade
from cascade.calibration.samples import FOLDS, folds, one_a_group, rows_a_group
from cascade.conformal.arrays import Ints
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee, kinds_that
from cascade.guarantees.certificate import expiry
from cascade.policies import cross as cross_file
from cascade.policies.artifact import MODEL_FILE, PolicyArtifact, Seen
from cascade.policies.cross import CrossPolicy
from cascade.policies.learned import LearnedPolicy
from cascade.training.choosing import Choice
from cascade.training.dividing import LEAST_TRAINING, allowed_loss, questions_of
from cascade.training.estimators import one_thread
from cascade.training.fitting import choice_on
from cascade.training.objective import Objective
from cascade.training.portfolio import AUTO

if TYPE_CHECKING:
    from cascade.config import CascadeConfig


@dataclass(frozen=True, slots=True)
class Crossed:
    """A cross-calibrated policy, and how it was made.

    Attributes:
        policy: the members, at the certified threshold.
        artifact: for `policies.artifact.write`: settings, numbers, certificate.
        calibrated: the certificate; its figures are those of each question under the one member that has not seen it.
        choices: the candidates compared for each member, and why its policy was chosen.
        alpha: the requested alpha, which is the threshold. The certificate's alpha is twice that.
        training: the questions.
        notes: notes for the user, in words.
    """

    policy: CrossPolicy
    artifact: PolicyArtifact
    calibrated: Calibrated
    choices: tuple[Choice, ...]
    alpha: float
    training: EpisodeTable
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each member's candidate."""
        return tuple([one.chosen.name for one in self.choices])


@one_thread()
def fit_crossed(
    tables: Sequence[EpisodeTable],
    guarantee: Guarantee,
    *,
    method: str = AUTO,
    config: CascadeConfig | None = None,
    seed: int = 0,
    expires_days: int | None = None,
    today: date | None = None,
) -> Crossed:
    """Fit each member on all folds but one, and certify the mean of their ranks.

    The promise is coverage or solvable, on average over calibrations, and its alpha is the threshold. The other
    arguments are those of `fitting.fit_policy`; the same log and seed give the same bytes.

    Guarantee: a fresh question is missed with probability at most twice alpha, if it and the log's are exchangeable.

    Raises:
        UsageError: cross-calibration has no bound for this kind of promise, or the log cannot be fitted on.
        NotCertifiedError: the questions are too few to stop at any step; `needed_n` says how many would be enough.
    """
    check_crossable(guarantee)
    assert guarantee.alpha is not None  # noqa: S101 - the kinds that it is known for have one
    table, repeated, _ = questions_of(tables, guarantee)
    refuse_other_cascade(table, config)
    fold = folds(table, FOLDS, seed)
    choices, members = _members(table, fold, guarantee, method, seed)
    rows = rows_a_group(table, seed=seed)  # all questions make the members; one of each group certifies
    drawn = one_a_group(table, seed=seed)
    critical = crossing.critical_values(drawn, fold[rows], members, guarantee.rules)
    crossing.demand(critical, guarantee.alpha, guarantee.rules)
    policy = CrossPolicy(members, critical, guarantee.alpha)
    numbers = cross_file.dumps(policy)
    told = [one.figures(one.n, values.size) for one, values in zip(choices, critical, strict=True)]
    settings = cross_file.settings(policy, numbers, seed, told)
    sample = crossing.out_of_fold(drawn, fold[rows], policy)
    found = [crossing.found_at(sample, guarantee.rules, guarantee.alpha)]
    promised = replace(guarantee, alpha=2 * guarantee.alpha)
    day = today or datetime.now(UTC).date()
    chosen = Chosen(drawn, Seen(tuple(sorted(set(table.questions)))))
    made = holds_for(drawn, config, promised, PolicyArtifact(settings))
    how = crossing.rests_on(guarantee.alpha, len(members))
    artifact = certified(found, chosen, settings, promised, made, (day.isoformat(), expiry(day, expires_days)), how)
    artifact = replace(artifact, files={MODEL_FILE: numbers})
    calibrated = replace(report(sample, found, artifact, promised), repeated=repeated)
    return Crossed(policy, artifact, calibrated, choices, guarantee.alpha, table, tuple(_notes(choices)))


def check_crossable(guarantee: Guarantee, besides: Sequence[str] = ()) -> None:
    """Raise UsageError if a promise cannot be cross-calibrated; `besides` has conflicting options that were given."""
    crossable = kinds_that(lambda kind: kind.crossable)
    problems = [] if guarantee.rules.crossable else [f"promises {crossable} alone, not {guarantee.kind}"]
    problems += ["holds on average over calibrations, and has no delta"] if guarantee.delta is not None else []
    problems += ["has no budget"] if guarantee.budget_nano_usd is not None else []
    problems += ["has one threshold for all segments"] if guarantee.by_segment else []
    if guarantee.alpha is not None and 2 * guarantee.alpha >= 1:
        problems += [f"misses up to twice alpha, and twice {guarantee.alpha:g} is no promise"]
    problems += [f"cannot be combined with {', '.join(besides)}"] if besides else []
    if problems:
        raise UsageError(
            f"Cross-calibration {'; '.join(problems)}. Without it a part of the log is set aside for that."
        )


def _members(
    table: EpisodeTable, fold: Ints, guarantee: Guarantee, method: str, seed: int
) -> tuple[tuple[Choice, ...], tuple[LearnedPolicy, ...]]:
    """Return for each fold the choice made without it, and the chosen policy fitted without it."""
    choices, members = [], []
    for number in range(int(fold.max()) + 1):
        training = table.take(np.flatnonzero(fold != number))
        objective = Objective.of(training, guarantee, allowed_loss(guarantee, table.n))
        choice = choice_on(training, objective, method, seed)
        policy = choice.chosen.fit(training)  # without fitted confidences: the strategy's own rank the answers
        choices.append(choice)
        members.append(policy)
    return tuple(choices), tuple(members)


def _notes(choices: Sequence[Choice]) -> Iterator[str]:
    if not choices[0].objective.prices.in_money:
        yield "the log does not say what every step cost: policies were compared by their steps"
    if any(one.n < LEAST_TRAINING for one in choices):
        yield "the training questions of a member are too few to choose by: nothing is compared"
    if choices[0].sample.table.arrays.horizon == 1:
        yield "there is one step: nothing to decide"
