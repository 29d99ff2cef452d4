"""Notes printed with a fitted policy; and, after a failed fit, how many questions would be enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cascade.calibration.calibrating import left_out_said
from cascade.calibration.remarks import lacking_cost
from cascade.calibration.scores import history_of
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import Seen
from cascade.policies.features import offered
from cascade.policies.learned import BARE, NETWORKS, LearnedPolicy
from cascade.text import counted
from cascade.training.dividing import Divided, needed_of
from cascade.training.objective import Objective
from cascade.training.simple import why_no_doubt

if TYPE_CHECKING:  # loaded only for networks
    from cascade.training.networks.progress import Training

LEAST_TRAINING = 20
"""With fewer training questions there is no comparison: the fixed depth, which learns nothing, or the requested method
is taken."""
_NAMED = 5
_WEIGHTLESS = ("depth", "threshold")
"""Methods that have no weights to start from."""


@dataclass(frozen=True, slots=True)
class Init:
    """An earlier policy that a fit starts from.

    Attributes:
        policy: the earlier policy.
        seen: the questions that it was made with: none of them may certify the new one.
    """

    policy: LearnedPolicy
    seen: Seen


def notes(
    parts: Divided, objective: Objective, lambda_set: float, policy: LearnedPolicy, init: Init | None
) -> Iterator[str]:
    """Yield the notes that are printed with a fitted policy.

    Args:
        parts: the questions.
        objective: the objective of the comparison.
        lambda_set: the option as given; `objective` may not charge it.
        policy: the fitted policy.
        init: the policy that it started from.
    """
    table, needed = parts.training, needed_of(objective.guarantee)
    if table.n and not objective.prices.in_money:
        yield "most questions of the log have no cost: policies were compared by their number of steps"
    if parts.unpriced:
        yield f"{lacking_cost(parts.unpriced)}: not used to choose and fit"
    if lambda_set and objective.guarantee.single:
        yield (
            f"--lambda-set has no effect: {objective.guarantee.kind} is a promise about the one answer "
            f"served, so all answers are kept"
        )
    yield from _about_questions(parts, objective, policy)
    if parts.calibration.n < needed:
        certify = f"{counted(parts.calibration.n, 'question')} certif{'y' if parts.calibration.n != 1 else 'ies'}"
        yield f"{certify}, but a threshold needs {needed:,}: everything is kept"
    if table.n and not table.arrays.solvable.any():
        yield "no step answers any training question rightly: there is nothing to learn from"
    if table.arrays.horizon == 1:
        yield "there is one step: the policy decides only which answers are kept"
    if init is not None:
        yield from _about_init(init, policy, table)


def _about_questions(parts: Divided, objective: Objective, policy: LearnedPolicy) -> Iterator[str]:
    """Yield notes on the questions that are left out and, if nothing is learned from the others, on the reason."""
    table = parts.training
    if parts.unknown:
        yield left_out_said(parts.unknown, objective.guarantee).rstrip(".")
    if not table.n and objective.guarantee.rules.last_is_safe(parts.calibration):
        yield (
            "nothing is learned: the score was fixed before the log was read, and thresholds are tested in order, the "
            f"strictest first. So {_all(parts.calibration.n)}"
        )
        why = why_no_doubt(parts.calibration)
        if why is not None:
            yield f"the score is the length of an answer, in tokens, because {why}"
    elif table.n < LEAST_TRAINING:
        bare = "the policy reads nothing but the step"
        taken = bare if policy.method == "depth" else f"the first {policy.method} was taken, because it was asked for"
        yield f"{_few(table.n)} too few to choose by: {taken}"


def ended_early(learning: Training | None) -> Iterator[str]:
    """Yield a note if the training of a network ended before its last step."""
    if learning is not None and learning.diverged is not None:
        held = "" if learning.method in BARE else ". The certificate still holds: it is valid for any network"
        more = ": it will cost more than necessary" if held else ". It will miss more or cost more than necessary"
        yield f"the training of the network was ended early, at {learning.diverged}{held}{more}"


def about_training(learning: Training | None) -> Iterator[str]:
    """Yield notes on how a network was trained."""
    yield from ended_early(learning)
    if learning is not None and learning.settings["device"] != "cpu":
        device = learning.settings["device"]
        yield f"trained on {device}, where the order of sums is not fixed: the same seed need not give the same network"


def _all(many: int) -> str:
    return "the one question certifies" if many == 1 else f"all {many:,} questions certify"


def _few(many: int) -> str:
    return f"{counted(many, 'training question')} {'is' if many == 1 else 'are'}"


def starts_from(init: Init, policy: LearnedPolicy) -> bool:
    """Whether a policy's weights start from those of the earlier one."""
    return policy.method not in {*_WEIGHTLESS, *NETWORKS} and init.policy.sources == policy.sources


def _about_init(init: Init, policy: LearnedPolicy, table: EpisodeTable) -> Iterator[str]:
    """Yield how the earlier policy was used: in full, in part, or only for the questions that it has seen."""
    old = init.policy
    seen = f"none of the {counted(len(init.seen.all), 'question')} that made the earlier policy certifies this one"
    if policy.method in NETWORKS:
        yield f"{seen}; nothing else of it was used: a policy network is trained from scratch"
        return
    if policy.method in _WEIGHTLESS:
        yield f"{seen}; nothing else of it was used: a {policy.method} has no weights to start from"
        return
    if not starts_from(init, policy):
        listed = ", ".join(old.rules[0].features.sources)
        yield f"{seen}; nothing else of it was used: its answers have other sources ({listed})"
        return
    trees = "; boosted trees start anew, their targets and confidences do not" if policy.method == "boosted" else ""
    yield f"the weights start from those of the earlier policy ({old.method}){trees}; {seen}"
    gone = _not_offered(old, table)
    if gone:
        named = ", ".join(gone[:_NAMED]) + (f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else "")
        yield f"the earlier policy reads features that this log lacks ({named}): it may be of another cascade"


def _not_offered(old: LearnedPolicy, table: EpisodeTable) -> list[str]:
    """Return the features that an earlier policy reads and a log does not offer, each once."""
    history = history_of(table)
    there = {step: set(offered(history, step)) for step in range(1, table.arrays.horizon + 1)}
    used = [(name, step) for step, rule in enumerate(old.rules, 1) for name in rule.features.names if step in there]
    return list(dict.fromkeys(name for name, step in used if name not in there[step]))


# --- how many would be enough ---


def in_logged(
    error: NotCertifiedError, parts: Divided, guarantee: Guarantee, share: float, logged: int
) -> NotCertifiedError:
    """Return the error with the number of logged questions needed, instead of the number of certifying questions.

    Args:
        error: the error of the calibration; `needed_n` counts the certifying questions that the promise covers.
        parts: the divided log.
        guarantee: the promise asked for.
        share: of the questions that certify.
        logged: questions in the log, each once.
    """
    if error.needed_n is None or error.why is None:
        return error
    table = parts.calibration
    certifiable = len(set(parts.training.groups)) + table.n  # one of each group
    spoken = float(guarantee.rules.counted(table).mean()) * certifiable / max(logged, parts.questions)
    needed = logged_for(error.needed_n, guarantee, share, spoken)
    where = " of such a segment" if guarantee.separate else ""
    from cascade.conformal.ltt import would_do

    said = f"About {needed:,} logged questions{where} {would_do(error.chance)}, if they are like these."
    return NotCertifiedError(f"{error.why} {said}", needed_n=needed, chance=error.chance, why=error.why)


def logged_for(certifying: int, guarantee: Guarantee, share: float, spoken: float = 1.0) -> int:
    """Return how large a log must be to have `certifying` certifying questions, and enough others to choose on.

    `dividing.divided` sets aside the least number that the promise needs from any log, and more only up to `share`.

    Args:
        certifying: questions that the promise covers.
        guarantee: the promise asked for.
        share: the share of the questions that certify.
        spoken: the share of the logged questions that the promise covers, above 0.

    >>> logged_for(22, Guarantee("regret", 0.1, 0.1), 0.3), logged_for(45, Guarantee("regret", 0.1, 0.1), 0.3)
    (42, 150)
    """
    aside = math.ceil(certifying / max(spoken, 1e-9))
    least = aside + LEAST_TRAINING
    return least if certifying <= needed_of(guarantee) else max(least, math.ceil(aside / share))


def lacks_judgements(table: EpisodeTable) -> tuple[str, ...]:
    """Return a note that certifying questions lack judgements, which may yet prove a saving; () if none lack one."""
    many = 0 if table.labels is None else int((table.labels.drawn & table.labels.unsaid).sum())
    if not many:
        return ()
    lack = f"{counted(many, 'question')} that certify lack a judgement, which counts as a loss"
    shows = "cascade review LOG --policy DIR shows the outputs that the certificate rests on"
    return (f"{lack}: {shows}, and cascade calibrate --reviews certifies again",)
