"""Divide a log into questions that certify and questions that make the policy, and say whether they are enough.

The questions that certify must not be used for anything else. So a hash of their names sets whole groups aside, and the
remaining groups are divided into folds for the choice (`folds`). In each group that is set aside, one question drawn at
random certifies (`samples.one_a_group`); the others of the group are left out. `notes` are printed with a fitted
policy; `in_logged` says after a failed fit how many questions would be enough.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cascade.calibration.calibrating import Questions, left_out_said, questions_in
from cascade.calibration.samples import drawn, joined, one_a_group, rows_a_group, tied, why_no_doubt
from cascade.calibration.scores import lacking_cost
from cascade.conformal.arrays import Bools
from cascade.conformal.split import needed_n
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.policies.learned import LearnedPolicy
from cascade.text import counted
from cascade.training.objective import Objective

if TYPE_CHECKING:
    from cascade.training.networks.trainer import Training


SHARE, REGRET_SHARE = 0.3, 0.7
"""The default share of the questions that certify (`design/fitting.md`), and that for a promise of regret."""

_SPARE = 1.25
"""A segment gets its own threshold if it has this many times the questions needed; a fifth then trains."""


class Divided(NamedTuple):
    """A log in two parts that share no question and no group.

    Attributes:
        training: the questions that make and choose the policy, one row each, in an order that does not depend on the
            log's.
        calibration: the questions that certify it: one of each group.
        repeated: episodes left out because another episode has the same question.
        beside: questions left out because another question of their group certifies.
        unknown: questions left out because the log lacks the reference's answer.
        unpriced: questions left out of the training part because the log lacks some of their costs.
    """

    training: EpisodeTable
    calibration: EpisodeTable
    repeated: int
    beside: int = 0
    unknown: int = 0
    unpriced: int = 0

    @property
    def questions(self) -> int:
        """The number of questions of the log: those in the two parts and those left out."""
        return self.training.n + self.calibration.n + self.beside + self.unpriced


def divided(
    tables: Sequence[EpisodeTable],
    guarantee: Guarantee,
    *,
    share: float = SHARE,
    seed: int = 0,
) -> Divided:
    """Divide a log.

    Each group is in one part. With a promise for each segment, every segment is divided. The calibration part has at
    least as many counting groups as the guarantee needs, if the log has them; if that takes all groups, none is left to
    learn from.

    Args:
        tables: the log.
        guarantee: the promise.
        share: the share of the questions that should certify.
        seed: the seed of the hash.

    Raises:
        UsageError: there is no question, the tables are of different cascades, or the share lies outside (0, 1).
    """
    if not 0 < share < 1:
        raise UsageError(f"The share of questions that certify must lie between 0 and 1, not {share:g}.")
    table, repeated, unknown = _questions(_whole(tables), guarantee)
    needed, separate = needed_of(guarantee, len(set(table.segments))), guarantee.by_segment
    certify = np.zeros(table.n, dtype=np.bool_)  # if its group is set aside
    certify[rows_a_group(table, separate=separate, seed=seed)] = True
    counts = guarantee.rules.counted(table) & certify
    if separate:
        aside = _of_each_segment(table, counts, share, needed, seed)
    else:
        aside = _some(table.groups, counts, _Enough(round(share * table.n), needed), seed)
    calibration = one_a_group(table.take(aside), separate=separate, seed=seed)
    beside = int(np.count_nonzero(aside)) - calibration.n
    others = table.take(~aside)
    training = others.costed()
    return Divided(training, calibration, repeated, beside, unknown, others.n - training.n)


def questions_of(tables: Sequence[EpisodeTable], guarantee: Guarantee) -> Questions:
    """Return the questions of a log that a promise could be about, in an order that does not depend on the log's."""
    return _questions(_whole(tables), guarantee)


def _whole(tables: Sequence[EpisodeTable]) -> EpisodeTable:
    """Return all episodes of a log. Groups that share a question are joined before any episode is left out."""
    return tied(joined([table.as_listed() for table in tables]))


def _questions(whole: EpisodeTable, guarantee: Guarantee) -> Questions:
    found = questions_in(whole, guarantee)
    if not found.table.n:
        raise UsageError("This log has no question that the promise could cover.")
    return found._replace(table=_in_order(found.table))


def _in_order(table: EpisodeTable) -> EpisodeTable:
    """Return the rows sorted by question and segment, so that sums over them do not depend on the log's order."""
    order = sorted(range(table.n), key=lambda row: (table.questions[row], table.segments[row] or ""))
    return table.take(np.array(order, dtype=np.int64))


def _of_each_segment(table: EpisodeTable, counts: Bools, share: float, needed: int, seed: int) -> Bools:
    """Return a share of the groups of each segment; a group with all its rows.

    Each share has as many counting groups as a threshold needs, if that leaves some to learn from.
    """
    chosen: set[str] = set()
    for name in sorted(set(table.segments), key=lambda one: one or ""):
        own = np.flatnonzero([one == name for one in table.segments])
        groups = [table.groups[row] for row in own.tolist()]
        has = int(np.count_nonzero(counts[own]))
        enough = _Enough(round(share * own.size), needed if has >= _SPARE * needed else 0)
        chosen |= {groups[row] for row in np.flatnonzero(_some(groups, counts[own], enough, seed))}
    return np.fromiter((group in chosen for group in table.groups), dtype=np.bool_, count=table.n)


class _Enough(NamedTuple):
    """The least number of rows to set aside, and the least number of them that must count for the promise."""

    rows: int
    counted: int


def _some(names: Sequence[str], counts: Bools, enough: _Enough, seed: int) -> Bools:
    """Return rows, bool (n,), all of a name or none: names are drawn with the seed until there are enough rows.

    At least one name is drawn; all are drawn only if one fewer would leave too few that count, or if there is only one.
    """
    rows, counted = Counter(names), Counter([name for name, one in zip(names, counts, strict=True) if one])
    taken: list[str] = []
    many = certain = 0
    for name in drawn(names, seed):
        if taken and many >= enough.rows and certain >= enough.counted:
            break
        taken.append(name)
        many, certain = many + rows[name], certain + counted[name]
    if len(taken) == len(rows) > 1 and certain - counted[taken[-1]] >= enough.counted:
        taken.pop()
    chosen = frozenset(taken)
    return np.fromiter((name in chosen for name in names), dtype=np.bool_, count=len(names))


def needed_of(guarantee: Guarantee, segments: int = 1) -> int:
    """Return the least number of questions that can certify a threshold, `segments` being the number of segments."""
    return needed_n(guarantee.alpha, guarantee.level if segments == 1 else guarantee.delta)


def allowed_loss(guarantee: Guarantee, n: int) -> float:
    """Return the mean loss that n calibration questions will allow: alpha minus the margin that certifying needs.

    If n is too small to certify any threshold, return alpha, which remains the aim.
    """
    return guarantee.rules.certain_loss(n, guarantee.alpha, guarantee.level) or guarantee.alpha


def allowed_by(parts: Divided, guarantee: Guarantee) -> float:
    """Return the mean loss that the calibration part will allow, over the questions that the promise covers.

    With a promise for each segment, the mean is over the thresholds, each weighted by the questions that it covers. A
    segment that is too small for a threshold is left out. The number of calibration questions that count is estimated
    from the training questions, since the questions set aside are not read.
    """
    sizes = _sizes(parts, guarantee)
    if len(sizes) == 1:
        return allowed_loss(guarantee, sizes[0])
    total = sum(n * guarantee.rules.certain_loss(n, guarantee.alpha, guarantee.delta) for n in sizes)
    return total / sum(sizes) if total else guarantee.alpha


def _sizes(parts: Divided, guarantee: Guarantee) -> list[int]:
    """Return how many calibration questions each threshold will be set on."""
    training, names = parts.training, parts.calibration.segments
    needed = needed_of(guarantee, len({*training.segments, *names}))
    counts = guarantee.rules.counted(training) if training.n else np.ones(1, dtype=np.bool_)
    if not guarantee.by_segment:
        return [_counted(parts.calibration.n, len(set(training.groups)), counts, needed)]
    sizes = list[int]()
    for name, n in sorted(Counter(one for one in names if one is not None).items()):
        own = counts[[one == name for one in training.segments]] if training.n else counts
        sizes.append(_counted(n, own.size, own if own.size else counts, needed))
    return [n for n in sizes if n >= needed]


def _counted(n: int, others: int, counts: Bools, needed: int) -> int:
    """Estimate how many of n calibration questions count, from the share that counts among the other questions.

    If both parts together have more than enough, return at least `needed`: the log was divided to give that many.
    """
    share = float(counts.mean())
    spare = share * (n + others) >= _SPARE * needed
    return min(n, max(math.floor(share * n), needed if spare else 0))


# --- notes printed with a fitted policy, and how many questions would be enough ---

LEAST_TRAINING = 20
"""With fewer training questions there is no comparison: the fixed depth, which learns nothing, or the requested method
is taken."""


def notes(parts: Divided, objective: Objective, policy: LearnedPolicy) -> Iterator[str]:
    """Yield the notes that are printed with a fitted policy."""
    table, needed = parts.training, needed_of(objective.guarantee)
    if table.n and not objective.prices.in_money:
        yield "most questions of the log have no cost: policies were compared by their number of steps"
    if parts.unpriced:
        yield f"{lacking_cost(parts.unpriced)}: not used to choose and fit"
    yield from _about_questions(parts, objective, policy)
    if parts.calibration.n < needed:
        certify = f"{counted(parts.calibration.n, 'question')} certif{'y' if parts.calibration.n != 1 else 'ies'}"
        yield f"{certify}, but a threshold needs {needed:,}: everything is kept"
    if table.n and not table.arrays.solvable.any():
        yield "no step answers any training question rightly: there is nothing to learn from"
    if table.arrays.horizon == 1:
        yield "there is one step: the policy decides only which answers are kept"


def _about_questions(parts: Divided, objective: Objective, policy: LearnedPolicy) -> Iterator[str]:
    """Yield notes on the questions that are left out and, if nothing is learned from the others, on the reason."""
    table, many = parts.training, parts.calibration.n
    if parts.unknown:
        yield left_out_said(parts.unknown, objective.guarantee).rstrip(".")
    if not table.n and objective.guarantee.rules.last_is_safe(parts.calibration):
        yield (
            "nothing is learned: the score was fixed before the log was read, and thresholds are tested in order, the "
            f"strictest first. So {'the one question certifies' if many == 1 else f'all {many:,} questions certify'}"
        )
        why = why_no_doubt(parts.calibration)
        if why is not None:
            yield f"the score is the length of an answer, in tokens, because {why}"
    elif table.n < LEAST_TRAINING:
        bare = "the policy reads nothing but the step"
        taken = bare if policy.method == "depth" else f"the first {policy.method} was taken, because it was requested"
        be = "is" if table.n == 1 else "are"
        yield f"{counted(table.n, 'training question')} {be} too few to choose by: {taken}"


def ended_early(learning: Training | None) -> Iterator[str]:
    """Yield a note if the training of a network ended before its last step."""
    if learning is not None and learning.diverged is not None:
        held = "The certificate still holds: it is valid for any network: it will cost more than necessary"
        yield f"the training of the network was ended early, at {learning.diverged}. {held}"


def about_training(learning: Training | None) -> Iterator[str]:
    """Yield notes on how a network was trained."""
    yield from ended_early(learning)
    if learning is not None and learning.settings["device"] != "cpu":
        device = learning.settings["device"]
        yield f"trained on {device}, where the order of sums is not fixed: the same seed need not give the same network"


# --- how many would be enough ---


def in_logged(
    error: NotCertifiedError, parts: Divided, guarantee: Guarantee, share: float, logged: int
) -> NotCertifiedError:
    """Return the error with the number of logged questions needed, instead of the number of certifying questions.

    `logged` counts the log's questions, each once; `share` of them certifies.
    """
    if error.needed_n is None or error.why is None:
        return error
    table = parts.calibration
    certifiable = len(set(parts.training.groups)) + table.n  # one of each group
    spoken = float(guarantee.rules.counted(table).mean()) * certifiable / max(logged, parts.questions)
    needed = logged_for(error.needed_n, guarantee, share, spoken)
    where = " of such a segment" if guarantee.by_segment else ""
    from cascade.conformal.ltt import would_do

    said = f"About {needed:,} logged questions{where} {would_do(error.chance)}, if they are like these."
    advice = "" if error.advice is None else f" {error.advice}"
    about = {"why": error.why, "advice": error.advice}
    return NotCertifiedError(f"{error.why} {said}{advice}", needed_n=needed, chance=error.chance, **about)


def logged_for(certifying: int, guarantee: Guarantee, share: float, spoken: float = 1.0) -> int:
    """Return how large a log must be to have `certifying` certifying questions, and enough others to choose on.

    `divided` sets aside the least number that the promise needs from any log, and more only up to the share `share` of
    the questions. The promise must cover `certifying` of those set aside. `spoken`, above 0, is the share of all
    questions that the promise covers.

    >>> logged_for(22, Guarantee("regret", 0.1, 0.1), 0.3), logged_for(45, Guarantee("regret", 0.1, 0.1), 0.3)
    (42, 150)
    """
    aside = math.ceil(certifying / max(spoken, 1e-9))
    least = aside + LEAST_TRAINING
    return least if certifying <= needed_of(guarantee) else max(least, math.ceil(aside / share))


def lacks_judgements(table: EpisodeTable) -> tuple[str, ...]:
    """Return a note on the certifying questions without a judgement, which could prove a saving; () without any."""
    many = 0 if table.labels is None else int((table.labels.drawn & table.labels.unsaid).sum())
    if not many:
        return ()
    lack = f"{counted(many, 'question')} that certify lack a judgement, which counts as a loss"
    shows = "cascade review LOG --policy DIR shows the outputs that the certificate rests on"
    return (f"{lack}: {shows}, and cascade fit --reviews certifies again",)
