"""From a log to a certified policy: divide, choose, fit, calibrate, each on questions that the next has not seen.

1. A share of the questions is set aside, whole groups, for the certificate alone (`dividing`).
2. On the rest the candidates are compared, each question scored by a model that has not seen it (`choosing`).
3. The one that is chosen is fitted on all of the rest.
4. For a promise on the single answer the path of thresholds is ordered on the scores of step 2.
5. The threshold is set on the questions of step 1 (`calibration.calibrating`): the first time that they are looked at.

So what the certificate says holds however the policy was chosen and whatever it is like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple

from cascade.calibration.calibrating import Calibrated, calibrate_policy
from cascade.calibration.fingerprint import differences, made_for
from cascade.calibration.folds import FOLDS, folds
from cascade.calibration.thresholds import order
from cascade.config import CascadeConfig
from cascade.conformal.guarantee import Guarantee
from cascade.conformal.served import PathPoint
from cascade.episodes.embeddings import embedded
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.policies import model_file
from cascade.policies.artifact import MODEL_FILE, PolicyArtifact, Seen
from cascade.policies.embedding import Directions
from cascade.policies.learned import LearnedPolicy
from cascade.training.choice.choosing import Choice, choose, unchosen
from cascade.training.choice.crossfit import Candidate
from cascade.training.choice.measuring import Terms
from cascade.training.choice.portfolio import AUTO, DEPTH, portfolio
from cascade.training.constrained.curves import Training
from cascade.training.dividing import SHARE, Divided, allowed_budget, allowed_by, divided
from cascade.training.embedding import ROWS_EACH, Embedding
from cascade.training.estimators.threads import one_thread
from cascade.training.networks import Networks
from cascade.training.notes import LEAST_TRAINING, Init, about_training, in_logged, notes


class Sizes(NamedTuple):
    """Questions: those that the promise speaks of, once each; those that made the policy; those that certify it."""

    questions: int
    training: int
    calibration: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """A policy that was fitted and certified, and how that came about.

    Attributes:
        policy: as fitted; its own threshold is not the certified one.
        artifact: to be written with `policies.artifact.write`: settings, numbers, certificate.
        calibrated: the certificate and what the policy does on the questions that it was made from.
        choice: what was compared, and why this one was chosen.
        sizes: how many questions did what.
        training: the questions that it was chosen and fitted on.
        notes: what else has to be known, in words.
        learning: of a policy network, how it was trained.
    """

    policy: LearnedPolicy
    artifact: PolicyArtifact
    calibrated: Calibrated
    choice: Choice
    sizes: Sizes
    training: EpisodeTable = field(repr=False)
    notes: tuple[str, ...] = ()
    learning: Training | None = None


class How(NamedTuple):
    """The options of `fit_policy` that say how, in its order."""

    method: str = AUTO
    config: CascadeConfig | None = None
    seed: int = 0
    lambda_set: float = 0.0
    init: Init | None = None
    embedding: Embedding | None = None
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
    calibration_share: float = SHARE,
    lambda_set: float = 0.0,
    init: Init | None = None,
    embedding: Embedding | None = None,
    expires_days: int | None = None,
    allow_everything: bool = False,
    today: date | None = None,
    networks: Networks | None = None,
) -> Fitted:
    """Fit a policy on a log, choose it honestly, and certify it.

    Args:
        tables: the log; several data sets of one cascade are taken as one.
        guarantee: what is to be promised.
        method: "auto" compares all candidates, and one of `policies.learned.METHODS` those of that method.
        config: the cascade that will serve, for `Certificate.made_for`; without it only what the log says is known.
        seed: draws the parts, the folds and the bootstrap. The same log and seed give the same bytes, whatever the
            order of the log.
        calibration_share: of the questions that are set aside to certify; never fewer than the guarantee needs, if the
            log has them.
        lambda_set: what a further answer in the set is charged with, as a share of what a step costs on average.
        init: an earlier policy that what is chosen starts from; the choice is made without it. Its questions, and those
            of their groups, certify nothing.
        embedding: offers where each question's sentence embedding lies, along directions of the training questions. A
            policy that looks at them needs the sentence model to serve.
        expires_days: how long the certificates hold; without end by default.
        allow_everything: accept that everything is kept where the questions are too few for a threshold.
        today: the day of the certificates, UTC.
        networks: how policy networks are trained, and whether "auto" tries them; by default it does not.

    Guarantee: that of `calibrate_policy`. The certifying questions are used for nothing else.

    Raises:
        UsageError: the log cannot be fitted on: there is no question, it is of another cascade than the configuration,
            or lacks what the guarantee or the method needs.
        NotCertifiedError: the questions are too few, or the policy misses too many at every threshold; `needed_n` says
            about how many in the log would do.

    Reference: `design/portfolio.md`.
    """
    seen = frozenset[str]() if init is None else init.seen.all
    parts = divided(tables, guarantee, share=calibration_share, seed=seed, seen=seen)
    how = How(method, config, seed, lambda_set, init, embedding, expires_days, allow_everything, today, networks)
    try:
        return fit_parts(parts, guarantee, how)
    except NotCertifiedError as error:
        raise in_logged(error, parts, guarantee, calibration_share, logged_in(tables)) from None


def logged_in(tables: Sequence[EpisodeTable]) -> int:
    """Return how many questions there are in a log, each once."""
    return len({question for table in tables for question in table.questions})


@one_thread()
def fit_parts(parts: Divided, guarantee: Guarantee, how: How, *, taken: Candidate | None = None) -> Fitted:
    """Fit and certify as `fit_policy` does, on a log that is divided already.

    Args:
        parts: as `dividing.divided` makes them; for this guarantee, or for one that takes more questions.
        guarantee: what is to be promised.
        how: the options.
        taken: a way to make the policy that is taken without a comparison, in the place of those of `how.method`.

    Raises:
        UsageError, NotCertifiedError: as `fit_policy`; `needed_n` counts the questions that certify.
    """
    init, networks = how.init, how.networks or Networks()
    before = None if init is None else init.policy
    ready = prepared(
        parts, guarantee, config=how.config, lambda_set=how.lambda_set, embedding=how.embedding, before=before
    )
    parts, terms = ready.parts, ready.terms
    if taken is None:
        choice = choice_on(parts.training, terms, how.method, how.seed, networks)
        policy = _made(parts.training, terms, choice, how, networks)
    else:
        choice = unchosen(parts.training, taken, [taken], terms)
        policy = _whole(taken, parts.training)
    learning = networks.training_of(policy)
    policy = ready.attached(policy)
    held = _held(policy, choice, parts, guarantee, Seen() if init is None else init.seen, how.seed)
    calibrated = calibrate_policy(
        [parts.calibration],
        policy,
        held.policy,
        guarantee,
        config=how.config,
        seed=how.seed,
        expires_days=how.expires_days,
        held=held,
        allow_everything=how.allow_everything,
        today=how.today,
    )
    sizes = Sizes(parts.questions, parts.training.n, parts.calibration.n)
    calibrated = replace(calibrated, repeated=parts.repeated)
    said = (*notes(parts, terms, how.lambda_set, policy, init), *ready.notes, *about_training(learning))
    return Fitted(policy, calibrated.artifact, calibrated, choice, sizes, parts.training, said, learning)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a policy is made from.

    Attributes:
        parts: the questions; with embeddings their directions are features.
        terms: what it is made for, and compared by.
        embedding, directions: what questions were embedded with, and how; None where they were not.
        notes: what has to be known of that, in words.
    """

    parts: Divided
    terms: Terms
    embedding: Embedding | None = None
    directions: Directions | None = None
    notes: tuple[str, ...] = ()

    def attached(self, policy: LearnedPolicy) -> LearnedPolicy:
        """Return the policy with the sentence model, where it looks at what that says."""
        if self.embedding is None or self.directions is None:
            return policy
        return self.embedding.attached(policy, self.directions)


def prepared(
    parts: Divided,
    guarantee: Guarantee,
    *,
    config: CascadeConfig | None,
    lambda_set: float,
    embedding: Embedding | None,
    before: LearnedPolicy | None = None,
) -> Prepared:
    """Check a log that is divided, and embed its questions where that was asked for.

    Args:
        parts: as `dividing.divided` makes them.
        guarantee: what is to be promised, or come to.
        config: the cascade that will serve.
        lambda_set: what a further answer in the set is charged with.
        embedding: offers where each question's sentence embedding lies.
        before: an earlier policy, whose directions are taken where it has any.

    Raises:
        UsageError: everything that stands in the way of a fit.
    """
    check_parts(parts, guarantee, config, lambda_set)
    found = None if embedding is None else embedding.directions(parts.training, before)
    if embedding is None or found is None:
        few = f"embeddings are not offered: fewer than {ROWS_EACH} training questions have a text on record"
        return Prepared(parts, terms_of(parts, guarantee, lambda_set), notes=() if embedding is None else (few,))
    parts = parts.of(lambda table: embedded(table, embedding.vectors, found))
    return Prepared(parts, terms_of(parts, guarantee, lambda_set), embedding, found)


def check_parts(parts: Divided, guarantee: Guarantee, config: CascadeConfig | None, lambda_set: float) -> None:
    """Refuse what cannot be fitted before time is spent on it.

    Raises:
        UsageError: everything that stands in the way.
    """
    table = parts.training if parts.training.n else parts.calibration
    problems = [] if lambda_set >= 0 else [f"lambda is what an answer is charged with, 0 or more, not {lambda_set:g}"]
    if guarantee.budget_nano_usd is not None and not table.cost_known:
        problems.append(f"a budget needs the cost of every step, and in {table.dataset} some are unknown")
    if not parts.calibration.n:
        problems.append(
            f"all {parts.questions} questions hang together with some that the policy to start from has seen, and none "
            "is left to certify the new one; add others"
        )
    if guarantee.separate and not parts.training.n and parts.questions == len(set(parts.calibration.segments)):
        problems.append(
            f"a promise for each segment was asked for, and each of the {parts.questions:,} segments has one question: "
            "ask for one promise for all, without --by-segment, or log in the column segment what questions belong to"
        )
    if config is not None:
        said = [one.replace("the certificate", "the log") for one in differences(made_for(table), made_for(config))]
        problems += [
            f"{table.dataset} was made by another cascade than the configuration describes: {one}" for one in said
        ]
    if problems:
        raise UsageError("; ".join(problems) + ".")


def terms_of(parts: Divided, guarantee: Guarantee, lambda_set: float = 0.0) -> Terms:
    """Return what candidates are compared by: the loss that so many calibration questions will allow."""
    n, table = parts.calibration.n, parts.training if parts.training.n else parts.calibration
    return Terms.of(table, allowed_budget(guarantee, n), allowed_by(parts, guarantee), lambda_set)


@one_thread()
def choice_on(
    training: EpisodeTable, terms: Terms, method: str = AUTO, seed: int = 0, networks: Networks | None = None
) -> Choice:
    """Choose on training questions; where they are too few, the fixed depth, or what was asked for.

    No candidate starts from an earlier policy here. That one may have seen these very questions: its candidates would
    be scored on what they know, and the others on what they do not.

    Raises:
        UsageError: there is no such method, or nothing that it could look at.
    """
    candidates = _candidates(training, terms, method, seed, networks=networks)
    if len(candidates) == 1 or training.n < LEAST_TRAINING or len(set(training.groups)) < 2:
        taken = next((one for one in candidates if one.name == DEPTH), candidates[0])
        return unchosen(training, taken, candidates, terms)
    return choose(training, candidates, terms, folds(training, FOLDS, seed), seed=seed)


def _candidates(
    training: EpisodeTable,
    terms: Terms,
    method: str,
    seed: int,
    init: LearnedPolicy | None = None,
    networks: Networks | None = None,
) -> list[Candidate]:
    # Without a question there is nothing to look at: only what looks at nothing can be fitted.
    return portfolio(training, terms, method if training.n else "depth", seed=seed, init=init, networks=networks)


def _made(training: EpisodeTable, terms: Terms, choice: Choice, how: How, networks: Networks) -> LearnedPolicy:
    """Fit what was chosen on all training questions; from the earlier policy, where there is one."""
    chosen = choice.chosen
    if how.init is not None:
        again = _candidates(training, terms, how.method, how.seed, how.init.policy, networks)
        chosen = next(one for one in again if one.name == chosen.name)
    return _whole(chosen, training)


def _whole(chosen: Candidate, training: EpisodeTable) -> LearnedPolicy:
    policy = chosen.whole(training)
    assert isinstance(policy, LearnedPolicy)  # noqa: S101 - every candidate of `portfolio` makes one
    return policy


def _held(
    policy: LearnedPolicy, choice: Choice, parts: Divided, guarantee: Guarantee, seen: Seen, seed: int
) -> PolicyArtifact:
    """Return the policy with the questions that it has seen, before it is certified."""
    numbers = model_file.dumps(policy)
    training = tuple(sorted({*parts.training.questions, *seen.all}))
    told = figures(choice, parts.training.n, parts.calibration.n)
    settings = model_file.settings(policy, numbers, told)
    bare = PolicyArtifact(settings, Seen(training), files={MODEL_FILE: numbers})
    if not guarantee.single or not parts.training.n:  # without training questions calibration sets some aside itself
        return bare
    path: tuple[PathPoint, ...] = order(choice.sample, guarantee)
    asked = {name: getattr(guarantee, name) for name in ("kind", "alpha", "abstain", "budget_nano_usd")}
    return replace(bare, path=path, ordered_for={**asked, "share": None, "seed": seed})


def figures(choice: Choice, training: int, calibration: int) -> Mapping[str, Any]:
    """Return how the policy was chosen, as plain JSON values; no time, so that the same log gives the same bytes.

    Args:
        choice: how.
        training: questions that it was made from.
        calibration: questions that certify it.
    """
    return {
        "chosen": choice.chosen.name,
        "unit": choice.unit,
        "alpha": choice.alpha,
        "folds": choice.folds,
        "training": training,
        "calibration": calibration,
        "candidates": [
            {
                "name": one.name,
                "method": one.method,
                "matched": one.matched,
                "difference": None if one.difference is None else list(one.difference),
                "why": one.why,
                **({} if one.charge is None else {"charge": one.charge}),
            }
            for one in choice.judged
        ],
    }
