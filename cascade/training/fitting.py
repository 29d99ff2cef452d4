"""Make a certified policy from a log: divide, choose, fit, calibrate.

1. Whole groups with a share of the questions are set aside for the certificate alone (`dividing`).
2. The candidates are compared on the training questions, each scored by a model that has not seen it (`choosing`).
3. The chosen candidate is fitted on all training questions.
4. For a promise on the single answer, the scores of step 2 order the path of thresholds.
5. The threshold is set on the questions of step 1 (`calibration.calibrating`), which nothing has used before.

So the certificate holds regardless of how the policy was chosen and how good it is.

If a score was named before the log was read, all questions certify a threshold on it. A learned policy is also tested
on a part of the questions, at the part of delta that the first exact test does not use. The cheaper policy is served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cascade.calibration.calibrating import Calibrated, Draw, calibrate_policy, order_terms
from cascade.calibration.fingerprint import log_differences
from cascade.calibration.samples import FOLDS, doubt_of, folds, one_a_group, only_unknown
from cascade.calibration.scores import play_found, realised, reference_cost, sample_of
from cascade.checks import refuse
from cascade.conformal.binomial import most_losses
from cascade.conformal.served import PathPoint
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import has_reference
from cascade.policies import model_file
from cascade.policies.artifact import MODEL_FILE, PolicyArtifact, Seen
from cascade.policies.learned import CERTIFIABLE, LearnedPolicy
from cascade.text import counted
from cascade.training.choosing import Candidate, Choice, Judged, choose, unchosen
from cascade.training.dividing import (
    LEAST_TRAINING,
    REGRET_SHARE,
    SHARE,
    Divided,
    about_training,
    allowed_by,
    divided,
    in_logged,
    lacks_judgements,
    needed_of,
    notes,
    questions_of,
)
from cascade.training.estimators import one_thread
from cascade.training.objective import Objective
from cascade.training.portfolio import AUTO, DEPTH, REFERENCE, best_steps, may_leave_out, on_steps, portfolio
from cascade.training.simple import plain_threshold

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.training.networks.trainer import Networks, Training

BESIDE = "purchases"
"""The method that is tested beside a named score. It reads every number and decides before each call. It is not chosen
among several, since on a few hundred questions a choice costs more than it gains (`design/fitting.md`).
"""

_CHEAPER = "it is the cheaper of two that were tested"


class Sizes(NamedTuple):
    """Numbers of different questions: all that the promise covers, those that made the policy, those that certify."""

    questions: int
    training: int
    calibration: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted and certified policy, and how it was made.

    Attributes:
        policy: the fitted policy; its own threshold is not the certified one.
        artifact: for `policies.artifact.write`: settings, numbers, certificate.
        calibrated: the certificate and the policy's figures on the calibration questions.
        choice: the compared candidates, and why this one was chosen.
        sizes: how many questions were used for each purpose.
        training: the questions that it was chosen and fitted on.
        notes: notes for the user, in words.
        learning: how a policy network was trained; None for other policies.
        refused: why the chosen policy was not certified, if the reference alone took its place.
    """

    policy: LearnedPolicy
    artifact: PolicyArtifact
    calibrated: Calibrated
    choice: Choice
    sizes: Sizes
    training: EpisodeTable = field(repr=False)
    notes: tuple[str, ...] = ()
    learning: Training | None = None
    refused: NotCertifiedError | None = None


class FitSettings(NamedTuple):
    """The options of `fit_policy` on how to fit, in its order."""

    method: str = AUTO
    config: CascadeConfig | None = None
    seed: int = 0
    expires_days: int | None = None
    allow_everything: bool = False
    today: date | None = None
    networks: Networks | None = None


@one_thread()
def fit_policy(
    tables: Sequence[EpisodeTable],
    guarantee: Guarantee,
    *,
    method: str = AUTO,
    config: CascadeConfig | None = None,
    seed: int = 0,
    calibration_share: float | None = None,
    expires_days: int | None = None,
    allow_everything: bool = False,
    today: date | None = None,
    networks: Networks | None = None,
) -> Fitted:
    """Fit policies on a log, choose one by cross-fitting, and certify it.

    Args:
        tables: the log; several data sets of one cascade are taken as one.
        guarantee: the promise to make.
        method: "auto" compares all candidates; one of `policies.learned.METHODS` compares those of that method.
        config: the cascade that will serve, for `Certificate.made_for`; without it only the log's facts are known.
        seed: the seed of the parts, the folds and the bootstrap. The same log and seed give the same bytes, in any
            order of the log.
        calibration_share: the share of the questions that is set aside to certify; never fewer than the guarantee
            needs, if the log has them. By default 0.3; for a promise of regret 0.7;
            for a score named beforehand all questions, and seven tenths for the policy that is tested beside it.
        expires_days: how long the certificates hold; by default they do not expire.
        allow_everything: if the questions are too few for a threshold, keep every answer instead of refusing.
        today: the day of the certificates, UTC.
        networks: how policy networks are trained, and whether "auto" tries them; by default it does not.

    Guarantee: the one of `calibrate_policy`. The certifying questions are used for nothing else.

    Raises:
        UsageError: the log cannot be fitted on: there is no question, it is of another cascade than the configuration,
            or lacks what the guarantee or the method needs.
        NotCertifiedError: the questions are too few, or the policy misses too many at every threshold; `needed_n` says
            about how many questions the log would need.

    Reference: `design/fitting.md`.
    """
    how = FitSettings(method, config, seed, expires_days, allow_everything, today, networks)
    plans = _plans(tables, guarantee, how, calibration_share)
    return _cheapest(plans, [_carried_out(plan, tables, how) for plan in plans])


class _FitPlan(NamedTuple):
    """A divided log, its certifying share, the promise, and a candidate to take without a comparison, if any."""

    parts: Divided
    share: float
    guarantee: Guarantee
    taken: Candidate | None = None


def _carried_out(plan: _FitPlan, tables: Sequence[EpisodeTable], how: FitSettings) -> Fitted:
    """Fit and certify as planned; an error says how many logged questions would be enough. Raises as `fit_policy`."""

    def told(error: NotCertifiedError) -> NotCertifiedError:
        return in_logged(error, plan.parts, plan.guarantee, plan.share, logged_in(tables))

    try:
        fitted = fit_parts(plan.parts, plan.guarantee, how, taken=plan.taken)
    except NotCertifiedError as error:
        raise told(error) from None
    if fitted.refused is None:
        return fitted
    refused = told(fitted.refused)
    return replace(fitted, refused=refused, notes=(*fitted.notes, str(refused).rstrip(".")))


def _cheapest(plans: Sequence[_FitPlan], found: Sequence[Fitted]) -> Fitted:
    """Return the cheapest policy on the questions that certify the last plan; note what the others would have cost.

    All certificates hold at once with probability 1 − delta, so this choice may use any question.
    """
    if len(found) == 1:
        return found[0]
    shown = plans[-1].parts.calibration
    shares = [_cost_on(shown, one) / (reference_cost(shown) or math.inf) for one in found]
    best = found[shares.index(min(shares))]
    judged = [replace(one, why=_CHEAPER) if one.chosen and one.name != REFERENCE else one for one in best.choice.judged]
    said = list(best.notes)
    for plan, one, share in zip(plans, found, shares, strict=True):
        if one is not best and plan.taken is not None:
            saves = (
                f"certified at {share:.2f} × the reference's cost, and {best.choice.chosen.name} at {min(shares):.2f} ×"
            )
            why = "no saving is certified" if one.policy.method == "reference" else saves
            judged.append(replace(one.choice.of(plan.taken.name), chosen=False, why=why))
            said.append(f"{plan.taken.name} was tested too, on {counted(plan.parts.calibration.n, 'question')}: {why}")
    return replace(best, choice=replace(best.choice, judged=tuple(judged)), notes=tuple(said))


def _cost_on(table: EpisodeTable, fitted: Fitted) -> float:
    """Return the mean cost of a certified policy, nano-USD; +∞ if no cost is known."""
    thresholds = [one.found for one in fitted.calibrated.segments]
    did = realised(table, play_found(sample_of(table, fitted.policy), thresholds))
    return math.inf if did is None or did.cost_nano_usd is None else did.cost_nano_usd


def _plans(
    tables: Sequence[EpisodeTable], guarantee: Guarantee, how: FitSettings, share: float | None
) -> list[_FitPlan]:
    """Return the plans to fit and certify; by default all questions certify a policy that needs no learning."""

    def part(share: float, asked: Guarantee = guarantee) -> Divided:
        return divided(tables, asked, share=share, seed=how.seed)

    if share is None and _unasked(how) and guarantee.reference_keeps_it:
        whole = questions_of(tables, guarantee)
        named = named_score(whole.table, guarantee)
        if named is not None:
            nothing = whole.table.take(np.zeros(0, dtype=np.int64))
            certify = one_a_group(whole.table, seed=how.seed)
            beside = whole.table.n - certify.n
            parts = Divided(nothing, certify, whole.repeated, beside, whole.unknown)
            return [_FitPlan(parts, 1.0, guarantee, named), *_beside(parts.calibration, guarantee, how, part)]
    if share is None and _unasked(how) and guarantee.abstain:
        from cascade.training.abstaining import CERTIFIES, has_one_bar, one_bar

        if has_one_bar(questions_of(tables, guarantee).table, guarantee):
            parts = part(CERTIFIES)
            return [_FitPlan(parts, CERTIFIES, guarantee, one_bar(parts.training, guarantee))]
    if share is None:
        share = REGRET_SHARE if guarantee.reference_keeps_it else SHARE
    return [_FitPlan(part(share), share, guarantee)]


# --- The score that is named before the log is read, for promises that the reference keeps: it needs no training ---

# With n certifying questions a policy may lose a share `most_losses(n, α, δ)` / n, which rises towards α; so most
# questions certify. A learned policy is tested too, at the part of delta that the first test leaves.
LEARNS_FROM = 2_000
"""With fewer questions than this, all questions of a pair of models certify one named score at delta, and the learned
policy gets the rest of delta: setting questions aside mostly costs more than learning saves (`design/regret.md`)."""
LEAST_LOSSES = 10
"""Nothing is learned if the test allows fewer losses than this on seven of ten questions: questions set aside to learn
from would then cost the certificate more than learning saves (`design/regret.md`)."""


def named_score(table: EpisodeTable, guarantee: Guarantee) -> Candidate | None:
    """Return the threshold that needs no learning, if learning would cost more than it gains; else None.

    Score, sign and order are named before the log is read: the first signal of `calibration.samples.KNOWN` that the log
    has, or the tokens of an answer if it has none. The function reads which signals the log has and how many questions;
    it reads no answer and no outcome.
    """
    if guarantee.abstain or table.arrays.horizon < 2 or not guarantee.rules.last_is_safe(table):
        return None
    groups = len(set(table.groups))  # one question of each certifies
    assert guarantee.alpha is not None  # noqa: S101 - a promise of regret has both
    assert guarantee.delta is not None  # noqa: S101 - the same
    few = (most_losses(round(REGRET_SHARE * groups), guarantee.alpha, guarantee.delta) or 0) < LEAST_LOSSES
    if not few and (table.arrays.horizon > 2 or groups >= LEARNS_FROM):
        return None
    if only_unknown(table):
        return None  # a threshold on a number without a known meaning saves almost nothing (`design/fitting.md`)
    doubt = doubt_of(table)
    if doubt is None:
        name, sign = "tokens_so_far", 1.0
        if np.isnan(table.tokens).all():
            return None
    else:
        name, sign = doubt.signal, doubt.sign

    policy = plain_threshold(table, name, sign, guarantee.rules)  # it reads only the steps and models of the log
    return Candidate(f"threshold on {name}", "threshold", 1, lambda _: policy)


def _beside(
    certify: EpisodeTable, guarantee: Guarantee, how: FitSettings, part: Callable[[float, Guarantee], Divided]
) -> Iterator[_FitPlan]:
    """Yield the plan of the policy that is tested beside a named score, if it can learn and certify anything.

    `certify` has the questions on which the named score is tested for `guarantee`; the other test gets the rest of
    delta.
    """
    from cascade.guarantees.served_answer import tested_alpha

    asked = replace(guarantee, tested_before=certify.n)
    if how.method != AUTO or not asked.level or not reference_cost(certify):
        return  # without costs there is no figure to choose by
    if tested_alpha(guarantee, certify) != guarantee.alpha:
        return  # people judge a share of the questions, so alpha does not determine what the first test spends
    parts = part(REGRET_SHARE, asked)
    if parts.training.n < LEAST_TRAINING or parts.calibration.n < needed_of(asked):
        return
    offered = portfolio(parts.training, objective_of(parts, asked), seed=how.seed)
    yield from (_FitPlan(parts, REGRET_SHARE, asked, one) for one in offered if one.method == BESIDE)


def _unasked(how: FitSettings) -> bool:
    """Return whether the options allow a policy that needs no learning."""
    if how.method not in {AUTO, "threshold"}:
        return False
    return how.networks is None or not how.networks.offered


def logged_in(tables: Sequence[EpisodeTable]) -> int:
    """Return the number of different questions in a log."""
    return len({question for table in tables for question in table.questions})


@one_thread()
def fit_parts(parts: Divided, guarantee: Guarantee, how: FitSettings, *, taken: Candidate | None = None) -> Fitted:
    """Fit and certify as `fit_policy` does, on a log that has been divided.

    `parts` were divided for this guarantee, or for one that takes more questions. `taken` is a candidate to take
    without a comparison, instead of those of `how.method`.

    Raises:
        UsageError, NotCertifiedError: as `fit_policy`; `needed_n` counts the questions that certify.
    """
    networks = how.networks
    if networks is None and how.method in CERTIFIABLE:
        from cascade.training.networks.trainer import Networks

        networks = Networks()  # it remembers how the network was trained
    check_parts(parts, guarantee, how.config)
    objective = objective_of(parts, guarantee)
    if taken is None:
        choice = choice_on(parts.training, objective, how.method, how.seed, networks)
        policy = choice.chosen.whole(parts.training)
    else:
        choice = unchosen(parts.training, taken, [taken], objective)
        policy = taken.whole(parts.training)
    learning = None if networks is None else networks.training_of(policy)
    made = _cheaper(_ChosenPolicy(policy, choice), parts, guarantee, how)
    sizes = Sizes(parts.questions, parts.training.n, parts.calibration.n)
    calibrated = replace(made.calibrated, repeated=parts.repeated)
    said = (*notes(parts, objective, made.policy), *made.notes, *about_training(learning))
    bare = Fitted(made.policy, calibrated.artifact, calibrated, made.choice, sizes, parts.training, said, learning)
    return replace(bare, refused=made.refused)


class _ChosenPolicy(NamedTuple):
    """A policy and how it was chosen."""

    policy: LearnedPolicy
    choice: Choice


class _Certified(NamedTuple):
    """A certified policy, how it was chosen, and the notes to print with it."""

    policy: LearnedPolicy
    choice: Choice
    calibrated: Calibrated
    notes: tuple[str, ...] = ()
    refused: NotCertifiedError | None = None


def _cheaper(made: _ChosenPolicy, parts: Divided, guarantee: Guarantee, how: FitSettings) -> _Certified:
    """Return the certified policy; return the reference alone if the certified policy would not cost less.

    The reference has no regret by definition, so it may replace a policy even after a look at the calibration
    questions.
    """
    if not guarantee.reference_keeps_it:
        return _Certified(*made, _calibrated(made, parts, guarantee, how))
    try:
        calibrated = _calibrated(made, parts, guarantee, how)
    except NotCertifiedError as error:
        found = _reference(made.choice, parts, guarantee, how, "no saving certified: the reference alone is asked")
        return found._replace(refused=error)
    lacking = lacks_judgements(parts.calibration)
    if lacking and made.policy.method != "reference":
        return _Certified(*made, calibrated, lacking)
    cost, reference = calibrated.realised.cost_nano_usd, calibrated.reference_cost_nano_usd
    if cost is None or not reference or cost < reference or made.policy.method == "reference":
        said = ("no saving certified: the reference alone costs least",) if made.policy.method == "reference" else ()
        return _Certified(*made, calibrated, said)
    times = f"{cost / reference:.2f} × what the reference alone costs"
    return _reference(
        made.choice, parts, guarantee, how, f"no saving certified: {made.choice.chosen.name} costs {times}"
    )


def _reference(choice: Choice, parts: Divided, guarantee: Guarantee, how: FitSettings, said: str) -> _Certified:
    """Return the reference alone, certified, instead of the chosen policy."""
    from cascade.training.simple import reference_alone  # seldom served

    policy = reference_alone(parts.calibration)
    taken = Candidate(REFERENCE, "reference", 0, reference_alone)
    alone = Judged(REFERENCE, "reference", 0, None, None, None, 0.0, chosen=True, why="nothing cheaper is certified")
    others = [replace(one, chosen=False) for one in choice.judged if one.name != REFERENCE]
    compared = [replace(one, chosen=True, why=alone.why) for one in choice.judged if one.name == REFERENCE]
    judged = (*others, *(compared or [alone]))
    table = choice.sample.table
    # Without training questions the table has no reference.
    sample = sample_of(table, policy) if has_reference(table) else choice.sample
    choice = replace(choice, chosen=taken, judged=judged, sample=sample)
    made = _ChosenPolicy(policy, choice)
    return _Certified(*made, _calibrated(made, parts, guarantee, how), (said,))


def _calibrated(made: _ChosenPolicy, parts: Divided, guarantee: Guarantee, how: FitSettings) -> Calibrated:
    """Certify a policy on the questions that were set aside for it. Raises as `calibrate_policy`."""
    held = _held(made, parts, guarantee, how)
    return calibrate_policy(
        [parts.calibration],
        made.policy,
        held.policy,
        guarantee,
        config=how.config,
        seed=how.seed,
        expires_days=how.expires_days,
        held=held,
        allow_everything=how.allow_everything,
        today=how.today,
        unknown=parts.unknown,
    )


def check_parts(parts: Divided, guarantee: Guarantee, config: CascadeConfig | None) -> None:
    """Raise UsageError for a fit that cannot work, before any time is spent on it.

    Raises:
        UsageError: lists every problem.
    """
    table = parts.training if parts.training.n else parts.calibration
    problems = list[str]()
    if guarantee.by_segment and not parts.training.n and parts.questions == len(set(parts.calibration.segments)):
        problems.append(
            f"a promise for each segment was requested, but each of the {parts.questions:,} segments has one question: "
            "ask for one promise for all, without --by-segment, or log in the column segment what questions belong to"
        )
    problems += [
        f"{table.dataset} was made by another cascade than the configuration describes: {one}"
        for one in log_differences(table, config)
    ]
    refuse(problems)


def objective_of(parts: Divided, guarantee: Guarantee) -> Objective:
    """Return the objective: candidates are compared at the loss that the calibration questions will allow."""
    table = parts.training if parts.training.n else parts.calibration
    return Objective.of(table, guarantee, allowed_by(parts, guarantee))


@one_thread()
def choice_on(
    training: EpisodeTable, objective: Objective, method: str = AUTO, seed: int = 0, networks: Networks | None = None
) -> Choice:
    """Choose on training questions; if they are too few, take the fixed depth or the requested method."""
    candidates = portfolio(training, objective, method, seed=seed, networks=networks)
    if len(candidates) == 1 or training.n < LEAST_TRAINING or len(set(training.groups)) < 2:
        taken = next((one for one in candidates if one.name == DEPTH), candidates[0])
        return unchosen(training, taken, candidates, objective)
    fewer = _on_fewer_steps(training, objective, method, seed)
    if fewer:  # a policy on all steps would pay for steps that were found not to be worth it
        candidates = [one for one in candidates if one.complexity <= 2 or one.method == "purchases"]
    return choose(training, [*candidates, *fewer], objective, folds(training, FOLDS, seed), seed=seed)


def _on_fewer_steps(table: EpisodeTable, objective: Objective, method: str, seed: int) -> list[Candidate]:
    """Return candidates without the models of a ladder that cost more than they save; an empty list if all pay."""
    if not may_leave_out(table, objective):
        return []

    def learned(steps: tuple[int, ...]) -> Candidate | None:
        found = on_steps(table, objective, steps, seed=seed)
        return next((one for one in found if one.method == "net_benefit"), None)

    steps = best_steps(table, folds(table, 2, seed), objective, learned)
    if len(steps) == table.arrays.horizon:
        return []
    return [one for one in on_steps(table, objective, steps, method, seed=seed) if one.method != "depth"]


def _held(made: _ChosenPolicy, parts: Divided, guarantee: Guarantee, how: FitSettings) -> PolicyArtifact:
    """Return the policy with the questions that it has seen, before it is certified."""
    policy, choice = made
    numbers = model_file.dumps(policy)
    training = tuple(sorted(set(parts.training.questions)))
    told = choice.figures(parts.training.n, parts.calibration.n)
    settings = model_file.settings(policy, numbers, told)
    bare = PolicyArtifact(settings, Seen(training), files={MODEL_FILE: numbers})
    rules = guarantee.rules
    if not rules.tests_a_path or not parts.training.n or rules.strict_first(choice.sample.table, guarantee):
        return bare  # without training questions calibration itself sets some aside, if it needs any
    path: tuple[PathPoint, ...] | None = None
    if guarantee.abstain:
        from cascade.training.abstaining import bars

        path = bars(policy, parts.calibration, guarantee)
    return replace(
        bare,
        path=path or rules.order(choice.sample, guarantee),
        ordered_for=order_terms(guarantee, Draw(None, how.seed)),
    )
