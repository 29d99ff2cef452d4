"""Train policy networks that cannot have a certificate.

CPO takes the likeliest action, and has no threshold to certify. CPO online has a threshold from its training, learned
from questions that the network was fitted to. Both are trained on the questions that `fitting` trains on, and evaluated
on those that would certify, which they have not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cascade.calibration.scores import Realised, Sample, play, realised, reference_cost, sample_of
from cascade.conformal.arrays import Floats
from cascade.conformal.binomial import lower_bound, upper_bound
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee, Kind
from cascade.policies import model_file
from cascade.policies.artifact import MODEL_FILE, PolicyArtifact, Seen, Threshold
from cascade.policies.learned import BARE, LearnedPolicy
from cascade.training.dividing import SHARE, about_training, divided
from cascade.training.estimators import one_thread
from cascade.training.fitting import Sizes, check_parts, objective_of
from cascade.training.networks.progress import Training
from cascade.training.networks.trainer import Networks
from cascade.training.portfolio import asked_of, sees_something

if TYPE_CHECKING:
    from cascade.config import CascadeConfig

DELTA = 0.05
"""1 minus the confidence of the interval, half of it on each side."""


class ShareKept(NamedTuple):
    """The share of questions on which the promise was kept, with its 95 % interval.

    The interval is Clopper and Pearson's, or Hoeffding's for graded losses; without a question the share is None.
    """

    n: int
    share: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Uncertified:
    """A policy network without a certificate.

    Attributes:
        policy: the trained policy, at its own threshold.
        artifact: for `policies.artifact.write`: settings and numbers, no certificate.
        learning: how it was trained.
        wanted: the requested promise, which it does not make.
        sizes: how many questions were used for each purpose; `calibration` counts those that it was evaluated on.
        kept: how often the requested promise was kept on them.
        realised: the policy's figures on them.
        reference_cost_nano_usd: the mean cost of the guide alone, or of a ladder's last model, on them, if known.
        training: the questions that it was trained on.
        notes: notes for the user, in words.
    """

    policy: LearnedPolicy
    artifact: PolicyArtifact
    learning: Training
    wanted: Guarantee
    sizes: Sizes
    kept: ShareKept
    realised: Realised
    reference_cost_nano_usd: float | None
    training: EpisodeTable
    notes: tuple[str, ...] = ()


@one_thread()
def fit_uncertified(
    tables: Sequence[EpisodeTable],
    guarantee: Guarantee,
    *,
    method: str,
    networks: Networks | None = None,
    config: CascadeConfig | None = None,
    seed: int = 0,
    calibration_share: float = SHARE,
) -> Uncertified:
    """Train a policy network without a certificate, and evaluate it on questions that it has not seen.

    The method is "cpo" or "cpo_online"; the policy does not promise `guarantee`, which is the target of its training. A
    share of the questions, which would certify another policy, evaluates it. Other arguments are those of
    `fitting.fit_policy`.

    Guarantee: none.

    Raises:
        MissingExtraError: torch is not installed.
        UsageError: another method, or the log cannot be fitted on.
    """
    if method not in BARE:
        raise UsageError(f"Only {' and '.join(BARE)} are trained without a certificate, not {method}.")
    trains = networks or Networks()
    parts = divided(tables, guarantee, share=calibration_share, seed=seed)
    check_parts(parts, guarantee, config)
    if not parts.training.n or not sees_something(parts.training):
        raise UsageError(f"{parts.calibration.dataset} has no feature that a network could learn from.")
    policy = trains.policy(parts.training, asked_of(objective_of(parts, guarantee)), method, seed=seed)
    learning = trains.training_of(policy)
    assert learning is not None  # noqa: S101 - it was made to be served
    sample = sample_of(parts.calibration, policy)
    played = play(sample.table, sample.scores, Threshold(policy.kappa))
    done = realised(sample.table, played)
    assert done is not None  # noqa: S101 - `check_parts` wants a question
    numbers = model_file.dumps(policy)
    told = {"chosen": method, "training": parts.training.n, "judged_on": parts.calibration.n}
    settings = model_file.settings(policy, numbers, told)
    seen = Seen(tuple(sorted(parts.training.questions)))
    return Uncertified(
        policy,
        PolicyArtifact(settings, seen, files={MODEL_FILE: numbers}),
        learning,
        guarantee,
        Sizes(parts.questions, parts.training.n, parts.calibration.n),
        kept_at(sample, guarantee.rules, policy.kappa),
        done,
        reference_cost(sample.table),
        parts.training,
        tuple(about_training(learning)),
    )


def kept_at(sample: Sample, kind: Kind, kappa: float) -> ShareKept:
    """Return how often a promise was kept at a threshold, on questions that the network has not seen."""
    some, losses = kind.counted(sample.table), kind.losses(sample)
    lost: Floats = (losses.at(kappa) / losses.units)[some]
    n = int(lost.size)
    if not n:
        return ShareKept(0, None, 0.0, 1.0)
    total = float(lost.sum())
    if not kind.graded:
        missed = round(total)
        low, high = lower_bound(missed, n, DELTA / 2), upper_bound(missed, n, DELTA / 2)
        return ShareKept(n, 1 - missed / n, 1 - high, 1 - low)
    half = math.sqrt(math.log(2 / DELTA) / (2 * n))
    share = 1 - total / n
    return ShareKept(n, share, max(0.0, share - half), min(1.0, share + half))
