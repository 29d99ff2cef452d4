"""Baselines: methods without a fitted policy, including the reference, and the clairvoyant bound.

Savings are measured against the cost of the reference, which the user pays today. `fit`, its card, and `prove` take
all their baselines from this module. `worth_of` estimates whether a certified policy saves money, on the questions
that set its threshold.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from cascade.calibration.calibrating import Calibrated
from cascade.calibration.samples import PER_RUNG, Doubt, doubt_of, rung_doubt, why_no_doubt
from cascade.calibration.scores import Played, play, scored
from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays, StepArrays, hopeless
from cascade.conformal.split import allowed_misses
from cascade.episodes.schema import BASE_ONLY, GUIDE_ONLY, LAST_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Kind
from cascade.guarantees.questions import MOSTLY, REFERENCES
from cascade.policies.artifact import EVERYTHING
from cascade.policies.artifact import Threshold as KappaRule
from cascade.policies.learned import LearnedPolicy
from cascade.training.stages import FitTarget

ALL_STEPS = "all steps"
FIRST_STEP = "first step"
GUIDE, ALL = "guide", "all"
MIXTURE = "depth mixture"
PER_RUNG_TUNED = f"{PER_RUNG}, tuned"
CLAIRVOYANT = "clairvoyant bound"
NAMES = {
    GUIDE_ONLY: "the guide alone",
    LAST_ONLY: "the last model alone",
    BASE_ONLY: "the base alone",
    FIRST_STEP: "the first step",
    ALL_STEPS: "running every step",
}
"""The names of baselines within a sentence."""


def label(name: str) -> str:
    """Return the label of a baseline in a table or a plot.

    >>> label(GUIDE_ONLY), label(ALL_STEPS)
    ('guide alone', 'all steps')
    """
    return name if name == ALL_STEPS else NAMES.get(name, name).removeprefix("the ")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The outcomes of one method without a fitted policy, for each question.

    Attributes:
        name: the baseline's name.
        known: bool (n,), whether the log has it for the question; if not, the other fields mean nothing.
        right: bool (n,), whether its one answer is right.
        in_set: bool (n,), whether a right answer is among the answers kept.
        cost: float64 (n,), nano-USD.
        length, answers: float64 (n,), steps paid, different answers kept.
    """

    name: str
    known: Bools
    right: Bools
    in_set: Bools
    cost: Floats
    length: Floats
    answers: Floats

    def take(self, rows: Ints | Bools) -> Baseline:
        """Return the chosen questions."""
        truths = self.known[rows], self.right[rows], self.in_set[rows]
        return Baseline(self.name, *truths, self.cost[rows], self.length[rows], self.answers[rows])


def walked(table: EpisodeTable, name: str) -> Baseline | None:
    """Return a walk of the log if the log has it for more than half of the questions, else None."""
    walk = table.walks.get(name)
    if walk is None or not walk.known.mean() > MOSTLY:
        return None
    cost, length, answers = (column.astype(np.float64) for column in (walk.cost, walk.length, walk.distinct))
    return Baseline(name, walk.known, walk.right & walk.known, walk.covered & walk.known, cost, length, answers)


def all_steps(table: EpisodeTable) -> Baseline:
    """Return the outcome of running every step and keeping every answer; one of them is served."""
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), np.full(table.arrays.cost.shape, np.inf))
    return _of_played(ALL_STEPS, play(table, scores, EVERYTHING))


def first_step(table: EpisodeTable) -> Baseline:
    """Return the outcome of stopping after the first step and keeping all its answers."""
    return depth(table, 1, FIRST_STEP)


def depth(table: EpisodeTable, steps: int, name: str = "depth") -> Baseline:
    """Return the outcome of a fixed number of steps, with all their answers kept."""
    return _of_played(name, Depth(steps).play(table))


def _of_played(name: str, played: Played) -> Baseline:
    known = np.ones(played.right.size, dtype=np.bool_)
    return Baseline(name, known, played.right > 0, played.in_set > 0, played.cost, played.length, played.distinct)


def reference_of(table: EpisodeTable, wanted: str | None = None) -> Baseline:
    """Return the reference that savings are compared with.

    "guide" is the guide alone, or a ladder's last model; "all" is every step. By default it is "guide" if the log has
    it for most questions.
    """
    found = None if wanted == ALL else next((one for name in REFERENCES if (one := walked(table, name))), None)
    if found is None and wanted == GUIDE:
        listed = " or ".join(repr(name) for name in REFERENCES)
        raise UsageError(f"{table.dataset} has no walk {listed} for most of its questions.")
    return found or all_steps(table)


def other_baselines(table: EpisodeTable, reference: Baseline) -> list[Baseline]:
    """Return the baselines other than the reference, always in this order: the base alone, the first step, all steps.

    If the first step is one model's answer, the base alone and the first step are the same, and only the base alone is
    returned.
    """
    base = walked(table, BASE_ONLY)
    first = first_step(table)
    found = [] if base is None else [base]
    if base is None or not (np.array_equal(base.right, first.right) and np.array_equal(base.cost, first.cost)):
        found.append(first)
    return [*found, *([] if reference.name == ALL_STEPS else [all_steps(table)])]


def rung_thresholds(table: EpisodeTable, kind: Kind, alpha: float) -> LearnedPolicy | None:
    """Return one threshold for each rung of a ladder, tuned on these questions to lose alpha; None if not possible."""
    doubt = rung_doubt(table)
    if doubt is None:
        return None
    from cascade.training.simple import threshold_per_rung  # of a ladder alone

    return threshold_per_rung(table, doubt, FitTarget(kind.name, alpha))


def per_rung(table: EpisodeTable, policy: LearnedPolicy) -> Baseline:
    """Return the outcome of tuned thresholds, one for each rung, on these questions; nothing is certified."""
    (found,) = per_rung_along(table, policy, [policy.kappa], PER_RUNG_TUNED)
    return found


def per_rung_along(
    table: EpisodeTable, policy: LearnedPolicy, kappas: Sequence[float], name: str = PER_RUNG
) -> Iterator[Baseline]:
    """Yield the outcome of the thresholds at several levels, in this order."""
    ranked, scores = scored(policy, table)
    yield from (_of_played(name, played_at(ranked, scores, kappa)) for kappa in kappas)


class Clairvoyant(NamedTuple):
    """The best outcome possible for a policy that knows every answer beforehand.

    Attributes:
        cost_nano_usd: the least mean cost of a question; None if no policy can keep the promise.
        lost: the number of questions that break the promise under every policy.
    """

    cost_nano_usd: float | None
    lost: float


def clairvoyant(table: EpisodeTable, kind: Kind, alpha: float, reference_right: Bools | None) -> Clairvoyant | None:
    """Return the lower bound on the cost of a promise: the cost of a policy that knows every answer beforehand.

    Such a policy pays for the steps up to the first right one if a miss would break the promise, otherwise for one
    step. It gives up the most expensive questions, as many as alpha allows. No policy over these steps keeps the
    promise for less. All costs must be known. Return None if it is unknown which questions break the promise
    (`Kind.broken`).
    """
    steps, nothing = table.arrays, np.zeros(table.n, dtype=np.bool_)
    worst = kind.broken(table, nothing, nothing, reference_right)
    best = kind.broken(table, steps.solvable, steps.solvable, reference_right)
    if worst is None or best is None:
        return None
    lost = best > 0
    wanted, counted = (worst > 0) & ~lost, int(np.count_nonzero(~np.isnan(worst)))
    may = math.floor(alpha * counted + 1e-9) - int(np.count_nonzero(lost))
    share = float(np.count_nonzero(lost)) / max(counted, 1)
    if may < 0:
        return Clairvoyant(None, share)
    stop = steps.correct.any(axis=2).argmax(axis=1)
    beyond = np.where(wanted, np.cumsum(steps.cost, axis=1)[np.arange(table.n), stop] - steps.cost[:, 0], 0)
    kept = np.sort(beyond)[: max(0, table.n - may)]
    return Clairvoyant(float(steps.cost[:, 0].mean() + kept.sum() / table.n), share)


# --- their figures, for one promise ---


class BaselineFigures(NamedTuple):
    """Means over questions of one baseline.

    Attributes:
        name: the baseline's name.
        cost_usd: a question's cost; None if costs are unknown.
        length: steps; None for the clairvoyant.
        kept: the share of the questions covered by the promise on which it is kept; None if it is not measured by
            question.
        right: the share whose one answer is right; None for the clairvoyant.
    """

    name: str
    cost_usd: float | None
    length: float | None
    kept: float | None
    right: float | None


def reference_right_of(table: EpisodeTable, kind: Kind) -> Bools | None:
    """Return whether the reference is right, bool (n,), True if the log lacks it; None if that is not needed.

    Also None if running every step is the only reference that the log has.
    """
    reference = reference_of(table)
    return reference.right | ~reference.known if kind.needs_reference and reference.name != ALL_STEPS else None


def clairvoyant_cost(table: EpisodeTable, kind: Kind, alpha: float) -> float | None:
    """Return the clairvoyant's mean cost, nano-USD; None if costs are unknown or the promise cannot be kept."""
    found = clairvoyant(table, kind, alpha, reference_right_of(table, kind)) if table.cost_known else None
    return None if found is None else found.cost_nano_usd


def baseline_figures(table: EpisodeTable, kind: Kind, alpha: float) -> list[BaselineFigures]:
    """Return the figures of the baselines, always in this order.

    The reference, the others (`other_baselines`), UALA, one threshold per rung, the depth mixture and the clairvoyant
    bound. The thresholds and the mixture's weight are tuned on these same questions; on other questions they cost at
    least as much on average. `alpha` is the loss at which the candidates are compared.
    """
    reference, right = reference_of(table), reference_right_of(table, kind)
    found = [reference, *other_baselines(table, reference)]
    doubt = doubt_of(table)
    if doubt is not None and table.arrays.horizon > 1:
        uala = Uala(doubt)
        played = uala.prepare(table, table, alpha, 0).play(table)
        found.append(_of_played(uala.name, played))
    if (tuned := rung_thresholds(table, kind, alpha)) is not None:
        found.append(per_rung(table, tuned))
    figures = [_figures(table, one, kind, right) for one in found]
    figures += _mixture(table, kind, alpha, right)
    if (cost := clairvoyant_cost(table, kind, alpha)) is not None:
        figures.append(BaselineFigures(CLAIRVOYANT, cost / 1e9, None, 1 - alpha, None))
    return figures


def baselines_left_out(table: EpisodeTable) -> Iterator[str]:
    """Yield which baselines `baseline_figures` leaves out of a log of several steps, and why."""
    if table.arrays.horizon == 1:
        return
    why = why_no_doubt(table)
    if why is not None:
        yield f"Baselines that tune a threshold on how sure a model is (UALA) are left out: {why}."


def _mixture(table: EpisodeTable, kind: Kind, alpha: float, right: Bools | None) -> Iterator[BaselineFigures]:
    """Yield the cheapest random mixture of two depths that breaks the promise on at most alpha of the questions.

    Such a mixture costs at most as much as any fixed depth and uses no signal. If a policy costs less, its signals save
    the difference. Yield nothing if no mixture keeps the promise.
    """
    depths = [_figures(table, depth(table, k), kind, right) for k in range(1, table.arrays.horizon + 1)]
    coins = [_coin(one, other, alpha) for one in depths for other in depths]
    able = [one for one in coins if one is not None]
    if able:
        yield min(able, key=lambda one: (one.length or 0.0) if one.cost_usd is None else one.cost_usd)


def _coin(one: BaselineFigures, other: BaselineFigures, alpha: float) -> BaselineFigures | None:
    """Return the mixture that keeps the promise on exactly 1 − alpha, or the one depth that keeps it more often."""
    if one.kept is None or other.kept is None or one.kept < 1 - alpha:
        return None
    share = 0.0 if other.kept >= 1 - alpha else (one.kept - (1 - alpha)) / (one.kept - other.kept)

    def mixed(first: float | None, second: float | None) -> float | None:
        return None if first is None or second is None else (1 - share) * first + share * second

    return BaselineFigures(MIXTURE, *(mixed(a, b) for a, b in zip(one[1:], other[1:], strict=True)))


def _figures(table: EpisodeTable, one: Baseline, kind: Kind, reference_right: Bools | None) -> BaselineFigures:
    known, lost, kept = one.known, kind.broken(table, one.right, one.in_set, reference_right), None
    if lost is not None:
        kept = None if np.isnan(lost[known]).all() else float(1 - np.nanmean(lost[known]))
    return BaselineFigures(
        one.name,
        float(one.cost[known].mean()) / 1e9 if table.cost_known else None,
        float(one.length[known].mean()),
        kept,
        float(one.right[known].mean()),
    )


class Worth(NamedTuple):
    """A certified policy's decisions and costs on its calibration questions.

    Attributes:
        keeps_everything: whether it keeps every answer of every step there, so that it decides nothing.
        times_reference: its cost as a multiple of the guide alone, or of a ladder's last model; None if unknown.
        is_reference: whether it asks the reference alone, at once.
    """

    keeps_everything: bool
    times_reference: float | None
    is_reference: bool = False

    @property
    def saves(self) -> bool:
        """Whether serving the policy may save money; if costs are unknown, whether it stops early on some question."""
        times = self.times_reference
        return times < 1 if times is not None else not self.keeps_everything

    def describe(self, reference: str) -> str | None:
        """Return a note if the policy saves or decides nothing, else None.

        `reference` is a name such as "the guide alone".
        """
        more = "do not serve it. Log more questions, or ask for a higher alpha"
        times = "" if self.times_reference is None else f"costs {self.times_reference:.2f} × what {reference} costs"
        if self.is_reference and self.times_reference is None:
            return (
                f"No saving is certified: it asks {reference}, at once. It is safe to serve. The log has no costs, so "
                f"steps were counted, and one step of {reference} is the least possible: log what calls cost "
                "(cost_nano_usd; in a wide table NAME_cost), and fit again."
            )
        if self.is_reference:
            return (
                f"No saving is certified: it asks {reference}, at once, and costs the same. It is safe to serve. To "
                "save, log more questions or ask for a higher alpha."
            )
        if not self.keeps_everything:
            return None if self.saves else f"It {times}, and saves nothing: {more}."
        if self.saves:
            return f"It keeps every answer of every step, as running all steps does: it decides nothing, and {times}."
        return f"It keeps every answer of every step{times and f' and {times}'}: it saves nothing, so {more}."


def worth_of(done: Calibrated) -> Worth:
    """Return a certified policy's decisions and costs on its calibration questions."""
    own, everything, reference = done.realised, done.everything, done.reference_cost_nano_usd
    decides = (own.length, own.set_size, own.abstained) != (
        everything.length,
        everything.set_size,
        everything.abstained,
    )
    times = None if own.cost_nano_usd is None or not reference else own.cost_nano_usd / reference
    silent = done.artifact.policy.get("takes") == "calls" and all(
        one.kappa == math.inf for one in done.artifact.certificates
    )
    return Worth(
        not decides,
        times,
        is_reference=done.artifact.asks_reference or silent,
    )


# --- methods that need no choice: a fixed number of steps, and one threshold tuned on the judged answer ---


def played_at(table: EpisodeTable, scores: ScoreArrays, kappa: float) -> Played:
    """Return the outcome of a policy's scores at one threshold; it never abstains."""
    return play(table, scores, KappaRule(kappa))


Scorer: TypeAlias = Callable[[EpisodeTable], ScoreArrays]


class Ready(NamedTuple):
    """A prepared method. `scores` is set if the method has a threshold that trades cost for coverage."""

    play: Callable[[EpisodeTable], Played]
    scores: Scorer | None = None


class Unprepared(ABC):
    """A method that needs no preparation: subclasses define only `play`."""

    __slots__ = ()

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Do nothing: this method needs no preparation."""
        return Ready(self.play)

    @abstractmethod
    def play(self, table: EpisodeTable) -> Played:
        """Return its outcomes on questions."""


@dataclass(frozen=True, slots=True)
class Depth(Unprepared):
    """Every answer of the first `depth` steps."""

    depth: int

    @property
    def name(self) -> str:
        """The name, with the depth."""
        return f"all answers, depth {self.depth}"

    def play(self, table: EpisodeTable) -> Played:
        """Return the outcome of a fixed number of steps."""
        onward = np.where(np.arange(table.arrays.horizon) < self.depth - 1, np.inf, -np.inf)
        shape = table.arrays.cost.shape
        return played_at(table, all_kept(table, np.broadcast_to(onward, shape).astype(np.float64)), 0.0)


def all_kept(table: EpisodeTable, onward: Floats) -> ScoreArrays:
    """Return scores that keep every answer and go on by `onward`, float64 (n, T)."""
    return ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)


@dataclass(frozen=True, slots=True)
class Uala:
    """UALA: keep the judged answer of the first step whose doubt is below a threshold tuned on training questions.

    The search is exact: it finds the cheapest threshold that covers 1 − alpha of the training questions or, if none
    does, the one that covers most.
    """

    doubt: Doubt

    @property
    def name(self) -> str:
        """The name, with the number that it reads."""
        return f"UALA on {self.doubt.name}, tuned"

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Choose the threshold on the training questions."""
        threshold = self._tuned(train, alpha)
        return Ready(lambda table: played_at(table, self.scores(table, threshold), threshold))

    def scores(self, table: EpisodeTable, threshold: float) -> ScoreArrays:
        """Return the scores of `policies.threshold`."""
        doubt = self.doubt.read(table)
        chosen = self.doubt.chosen(table)
        steps = table.arrays
        stops = (doubt < threshold) | _very_last(steps)
        keeps = stops[:, :, None] & (np.arange(steps.answer.shape[2]) == chosen[:, :, None])
        return ScoreArrays(np.where(keeps, np.inf, -np.inf), doubt)

    def _tuned(self, train: EpisodeTable, alpha: float) -> float:
        """Return the best of all thresholds, by running sums over the steps at which a walk can stop."""
        steps, chosen = train.arrays, self.doubt.chosen(train)
        doubt = np.where(chosen < 0, np.inf, self.doubt.read(train))  # without an answer a walk cannot stop
        on_record, last = np.arange(steps.horizon) < steps.steps[:, None], _very_last(steps)
        reach = np.full(doubt.shape, np.inf)
        np.minimum.accumulate(doubt[:, :-1], axis=1, out=reach[:, 1:])
        right = np.take_along_axis(steps.correct, np.maximum(chosen, 0)[:, :, None], axis=2)[:, :, 0] & (chosen >= 0)
        low = np.where(last, -np.inf, doubt)
        stops_right = on_record & right & (low < reach)
        finite = np.unique(doubt[on_record & np.isfinite(doubt)])
        options = np.append(finite, np.nextafter(finite[-1], np.inf) if finite.size else 0.0)
        covered = _at_least(reach[stops_right], options) - _at_least(low[stops_right], options)
        covered = covered + np.count_nonzero(hopeless(steps))
        order = np.argsort(reach[on_record])
        price = steps.cost if train.cost_known else np.ones_like(steps.cost)
        spent = np.append(np.cumsum(price[on_record][order][::-1])[::-1], 0)
        cost = spent[np.searchsorted(reach[on_record][order], options, side="left")]
        enough = covered >= steps.n - allowed_misses(steps.n, alpha)
        if enough.any():
            return float(options[np.where(enough, cost, np.iinfo(np.int64).max).argmin()])
        return float(options[np.lexsort((cost, -covered))[0]])


def _very_last(steps: StepArrays) -> Bools:
    """Mark the steps after which none can follow, bool (n, T): the last step of each complete question."""
    last = np.arange(steps.horizon) == steps.steps[:, None] - 1
    return np.asarray(last & steps.complete[:, None], dtype=np.bool_)


def _at_least(levels_: Floats, options: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return for each option the number of levels that are at least as large."""
    ordered = np.sort(levels_)
    return np.asarray(ordered.size - np.searchsorted(ordered, options, side="left"), dtype=np.int64)
