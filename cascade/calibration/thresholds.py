"""One rule for each kind of guarantee: from calibration questions to the threshold that it is promised at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from cascade.calibration.reference import ends_in_reference, reference_known, reference_right
from cascade.calibration.scores import scored
from cascade.conformal.arrays import Bools, Floats, ScoreArrays
from cascade.conformal.calibrate import Calibration, calibrate
from cascade.conformal.critical import critical_kappa
from cascade.conformal.guarantee import Guarantee
from cascade.conformal.identity import hangs_on_identity
from cascade.conformal.ltt import learn_then_test, order_path
from cascade.conformal.needed import Forecast, chance_said, forecast
from cascade.conformal.risk import calibrate_budget, calibrate_risk, cost_levels, loss_levels
from cascade.conformal.rollout import Levels, levels
from cascade.conformal.segments import calibrate_segments
from cascade.conformal.served import PathPoint, Served, served
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.policies.base import Policy
from cascade.text import counted

Path: TypeAlias = tuple[PathPoint, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Questions with what a policy makes of them; the table's confidences are the policy's, where it has its own."""

    table: EpisodeTable
    scores: ScoreArrays
    levels: Levels
    is_reference: bool = False
    """Whether the policy asks the reference alone, so that what is served is what regret is held against."""

    def critical(self) -> Floats:
        """Return the critical values, float64 (n,)."""
        return critical_kappa(self.table.arrays, self.levels)

    def served(self, kind: str, *, abstain: bool = False, kappa: float | None = None) -> Served:
        """Return the single answers at every threshold, and which of them count against a guarantee.

        Args:
            kind: "error" or "regret".
            abstain: whether how sure the cascade is of them matters too.
            kappa: the threshold, where only one will be looked at.

        Raises:
            UsageError: votes decide what is served, and whose they are is not on record (`check_identity`).
        """
        check_identity(self, abstain=abstain, kappa=kappa)
        reference = reference_right(self.table) if kind == "regret" else None
        table = self.table
        return served(table.arrays, self.levels, table.confidence, sure=table.sure, reference_right=reference)


def check_identity(sample: Sample, *, abstain: bool = False, kappa: float | None = None) -> None:
    """Refuse a promise on the one answer where it hangs on which answers are the same, and the log does not say it.

    There `EpisodeTable` takes all right answers for one: they would vote for each other, and the wrong ones not.

    Raises:
        UsageError: so it is of some question.
    """
    table, what, advice = sample.table, "Which one answer is served is decided by votes", ""
    many = untold(sample, kappa=kappa)
    if abstain and not many:
        what, advice = "How sure the cascade is of its answer hangs on those that equal it", "do not abstain, "
        many = untold(sample, abstain=True, kappa=kappa)
    if many:
        raise UsageError(
            f"{what} on {many} of {table.n} questions of {table.dataset}, and which of their answers are the same is "
            "not on record: the texts are not, or a model was told whether it was right. Log the answers' texts "
            f"(traces: content full), {advice}or promise coverage, which needs none."
        )


def untold(sample: Sample, *, abstain: bool = False, kappa: float | None = None) -> int:
    """Return on how many questions the one answer hangs on which answers are the same, and the log does not say it."""
    table = sample.table
    rows = np.flatnonzero(~table.texts_known)
    sure, levels_there = table.sure[rows] if abstain else None, sample.levels.take(rows)
    present = (table.arrays.present & table.arrays.complete[:, None, None])[rows]
    hangs = hangs_on_identity(levels_there, table.confidence[rows], sure=sure, kappa=kappa, present=present)
    return int(np.count_nonzero(hangs))


def at_every_depth(table: EpisodeTable) -> Sample:
    """Return questions as they stand after 1, 2, … steps, every answer kept: what looks at nothing comes to these."""
    onward = np.broadcast_to(-np.arange(1.0, table.arrays.horizon + 1), table.arrays.cost.shape)
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)
    return Sample(table, scores, levels(table.arrays, scores))


def sample_of(table: EpisodeTable, policy: Policy) -> Sample:
    """Return questions with a policy's scores on them."""
    judged, scores = scored(policy, table)
    takes = policy.takes
    return Sample(judged, scores, levels(judged.arrays, scores), takes is not None and takes.reference)


class Found(NamedTuple):
    """A threshold and how it came about.

    Attributes:
        segment: the questions that it serves: a segment's, or where None all that no other threshold serves.
        rows: bool (n,), the calibration questions that it serves.
        n: the questions that it was set on.
        kappa: the threshold.
        k: its rank; None where it was set otherwise.
        misses: calibration questions that count against the promise at the threshold; None where none are counted.
        keeps_everything: whether the questions were too few, so that everything is kept.
        abstain_below: nothing is served below this confidence; None without abstention.
        needed_n: how many questions would have done, where they were too few and that is known.
        chance: the probability that so many do; None where they do for certain, or where that is not known.
        refused: why nothing can be promised, in words; None where it can.
    """

    segment: str | None
    rows: Bools
    n: int
    kappa: float
    k: int | None = None
    misses: int | None = None
    keeps_everything: bool = False
    abstain_below: float | None = None
    needed_n: int | None = None
    chance: float | None = None
    refused: str | None = None


def find(sample: Sample, guarantee: Guarantee, path: Path | None = None) -> list[Found]:
    """Return the thresholds at which a guarantee can be promised: one, or one a segment and one for all others.

    Args:
        sample: the calibration questions.
        guarantee: what is asked for.
        path: for the single answer, the points to test; fixed without these questions.

    Raises:
        UsageError: the questions lack what the guarantee needs: a reference, confidences, costs.
    """
    return _RULES[guarantee.kind](sample, guarantee, path)


def _set(sample: Sample, guarantee: Guarantee, _: Path | None) -> list[Found]:
    """Coverage: of all questions, or of those that some step answers rightly.

    A question whose record ends early without a right answer may be solvable. It counts as one that is missed at every
    threshold, which makes the threshold no higher: with j of those among n, the rank rises by j at the most, ⌊alpha·(n
    + 1)⌋ ≤ ⌊alpha·(n − j + 1)⌋ + j, and the j values of −∞ come first.
    """
    critical, alpha = sample.critical(), _alpha(guarantee)
    counted = spoken_of(sample.table, guarantee.kind)
    if not guarantee.separate:
        return [_of(calibrate(critical[counted], alpha, delta=guarantee.delta), None, counted)]
    names = sample.table.segments
    segments, delta = np.array(names, dtype=object), guarantee.each_delta(len(set(names)))
    some = calibrate_segments(critical[counted], list(segments[counted]), alpha, delta=delta)
    own = [name for name in some.by_segment if name not in set(some.pooled_segments)]
    found = [_of(some.by_segment[name], name, counted & (segments == name)) for name in sorted(own)]
    rest = counted & ~np.array([name in set(own) for name in names], dtype=np.bool_)
    return [*found, _of(some.unknown, None, rest)]


def _of(calibration: Calibration, segment: str | None, rows: Bools) -> Found:
    return Found(
        segment=segment,
        rows=rows,
        n=calibration.n,
        kappa=calibration.kappa,
        k=calibration.k,
        misses=calibration.misses,
        keeps_everything=calibration.keeps_everything,
        needed_n=calibration.needed_n if calibration.keeps_everything else None,
        refused=_vacuous(calibration) if calibration.vacuous else None,
    )


def _vacuous(calibration: Calibration) -> str:
    return (
        f"of {calibration.n} calibration questions {calibration.misses} are missed at every threshold, and at most "
        f"{calibration.k - 1} may be: the policy gives their right answers, or steps on the way, the score −∞, or "
        "their records end early"
    )


def _single(sample: Sample, guarantee: Guarantee, path: Path | None) -> list[Found]:
    """Error and regret of the one answer served, with a budget or without."""
    _need_costs(sample, guarantee)
    assert guarantee.delta is not None  # noqa: S101 - `Guarantee` has checked it
    answered = sample.served(guarantee.kind, abstain=guarantee.abstain)
    if sample.is_reference and guarantee.kind == "regret" and guarantee.budget_nano_usd is None:
        # What is served is the reference: no test is needed, and no number of questions.
        everywhere = np.ones(sample.table.n, dtype=np.bool_)
        return [Found(None, everywhere, sample.table.n, -math.inf, misses=0)]
    if path is None and not strict_first(sample, guarantee):
        raise UsageError(f"{guarantee.kind} needs a path of thresholds that was ordered on other questions.")
    path = every_threshold(sample) if path is None else path
    result = learn_then_test(
        answered.along(path),
        alpha=_alpha(guarantee),
        delta=guarantee.delta,
        budget_nano_usd=guarantee.budget_nano_usd,
        most_nano_usd=guarantee.most_nano_usd,
    )
    n, everywhere = sample.table.n, np.ones(sample.table.n, dtype=np.bool_)
    if result.point is None or result.silent:
        ahead = result.forecast or Forecast(None, 0.0)
        said = f"{result.losses} of {n} calibration questions count against it at the safest of {len(path)} points"
        if ahead.questions is None:
            unsure = answered.at(path[0])
            said += _hopeless(result.losses, int(np.count_nonzero(unsure.loss & unsure.cut)), n, guarantee)
        silent = "only answering nothing keeps the promise" if result.silent else f"no point passes: {said}"
        chance = None if ahead.questions is None else ahead.chance
        return [Found(None, everywhere, n, math.nan, needed_n=ahead.questions, chance=chance, refused=silent)]
    below = result.point.abstain_below if guarantee.abstain else None
    return [Found(None, everywhere, n, result.point.kappa, misses=result.losses, abstain_below=below)]


def strict_first(sample: Sample, guarantee: Guarantee) -> bool:
    """Whether thresholds are tested from the strictest to the laxest, each of them, so that no question orders them.

    So it is for a promise of regret alone, in a ladder whose last answer is the reference's and is served once it is
    asked for: at the strictest threshold nothing is lost. The order rests on no outcome, and is fixed before any log.
    """
    table = sample.table
    alone = guarantee.kind == "regret" and not guarantee.abstain and guarantee.budget_nano_usd is None
    return alone and ends_in_reference(table) and _last_is_served(table)


def _last_is_served(table: EpisodeTable) -> bool:
    """Whether the answer of the last step is served whenever there is one: it is surer than any before, or one of two.

    Of two answers that differ, each with one vote and no known confidence, the later is served (`conformal.single`).
    """
    sure = table.confidence
    if table.arrays.horizon == 1 or (table.arrays.horizon == 2 and np.isnan(sure).all()):
        return True
    last, before = sure[:, -1].max(axis=1), np.fmax.reduce(sure[:, :-1], axis=(1, 2), initial=-np.inf)
    present = table.arrays.present[:, -1].any(axis=1)
    return bool((last[present] > before[present]).all())


def every_threshold(sample: Sample) -> Path:
    """Return every threshold at which a decision changes, the strictest first: nobody has chosen among them."""
    reach = sample.levels.reach
    levels = np.unique(reach[np.isfinite(reach)])
    return tuple([PathPoint(kappa) for kappa in (-np.inf, *levels.tolist(), np.inf)])


def _hopeless(losses: int, unsure: int, n: int, guarantee: Guarantee) -> str:
    """Return what to do where hardly any number of questions would be certified at the safest threshold.

    Args:
        losses: questions that count as lost there.
        unsure: those of them whose record ends before a step that the policy may ask for: what comes there is not
            known, so they count as lost.
        n: all questions.
        guarantee: what is asked for.
    """
    assert guarantee.delta is not None  # noqa: S101 - `Guarantee` has checked it
    said = ""
    if unsure:
        said = f", {unsure} of them since {_EARLY}: log each question to its last step (cascade collect)"
    ahead = forecast(losses - unsure, n, _alpha(guarantee), guarantee.delta)
    if ahead.questions is not None:
        return said
    instead = "" if guarantee.abstain else ", or let it abstain"
    lost = f"{losses - unsure:,} of {counted(n, 'question')} {'is' if losses - unsure == 1 else 'are'} lost"
    chance = _with_chance(ahead.chance)
    few = f"if as large a share of other questions is, a log of any size is certified with a chance {chance}"
    return f"{said}. More questions hardly help: {lost} at the safest threshold; {few}. Ask for a higher alpha{instead}"


def _with_chance(chance: float) -> str:
    said = chance_said(chance)
    return f"of {said}" if said.startswith("about") else said


_EARLY = "their record ends before the last step, and what comes there is not known"


def check_told(found: Sequence[Found], table: EpisodeTable) -> None:
    """Refuse a log that ends early and keeps no texts, where nothing can be promised from it: both are to be mended.

    Args:
        found: the thresholds for a promise on the single answer.
        table: the calibration questions, as logged.

    Raises:
        UsageError: as `check_identity` does, of the answers after 1, 2, … steps.
    """
    if table.arrays.complete.all() or not any(one.refused is not None and one.needed_n is None for one in found):
        return
    try:
        check_identity(at_every_depth(table))
    except UsageError as error:
        early = int(np.count_nonzero(~table.arrays.complete))
        raise UsageError(f"{error} Of {early} questions the record ends early: log each to its last step.") from None


def _graded(sample: Sample, guarantee: Guarantee, _: Path | None) -> list[Found]:
    """The best F1 among the answers kept, held against the best on record."""
    table, n = sample.table, sample.table.n
    if table.quality is None:
        raise UsageError(
            f"f1 needs to know how good each answer is, and {table.dataset} says only which are right: it takes "
            "accepted answers on record, in the column gold."
        )
    losses = loss_levels(table.arrays, sample.levels, table.quality, relative=True)
    result = calibrate_risk(losses, _alpha(guarantee), delta=guarantee.delta)
    everywhere = np.ones(n, dtype=np.bool_)
    if result.certified:
        return [Found(None, everywhere, n, result.kappa)]
    if losses.at(-math.inf).any():
        said = "even at the lowest threshold, which keeps every finite score, too much is missing on average"
        return [Found(None, everywhere, n, math.nan, needed_n=result.needed_n, refused=said)]
    return [Found(None, everywhere, n, -math.inf, keeps_everything=True, needed_n=result.needed_n)]


def _budget(sample: Sample, guarantee: Guarantee, _: Path | None) -> list[Found]:
    """The most that a budget covers."""
    budget, most = guarantee.budget_nano_usd, guarantee.most_nano_usd
    assert budget is not None  # noqa: S101 - `Guarantee` has checked both
    assert most is not None  # noqa: S101
    table, n = sample.table, sample.table.n
    costs = cost_levels(table.arrays, sample.levels, most, cost_known=table.cost_known)
    result = calibrate_budget(costs, budget, most, delta=guarantee.delta)
    everywhere = np.ones(n, dtype=np.bool_)
    if result.certified:
        return [Found(None, everywhere, n, result.kappa)]
    said = (
        f"{table.n} calibration questions cost {result.total_nano_usd / n / 1e9:.6g} USD each at the cheapest threshold"
    )
    return [Found(None, everywhere, n, math.nan, needed_n=result.needed_n, refused=said)]


def order(sample: Sample, guarantee: Guarantee) -> Path:
    """Return the path that selection questions suggest for a guarantee on the single answer."""
    _need_costs(sample, guarantee)
    return order_path(
        sample.served(guarantee.kind, abstain=guarantee.abstain),
        alpha=_alpha(guarantee),
        abstain=guarantee.abstain,
        budget_nano_usd=guarantee.budget_nano_usd,
    )


def spoken_of(table: EpisodeTable, kind: str) -> Bools:
    """Return the questions that a kind of guarantee speaks of, as far as the log shows: bool (n,).

    Not those that surely no step answers rightly, where it is about others; nor, for regret, those of which it is not
    on record what the reference alone answers. Raises as `reference_known` does.
    """
    if kind == "solvable":
        return np.asarray(table.arrays.solvable | ~table.arrays.complete, dtype=np.bool_)
    return reference_known(table) if kind == "regret" else np.ones(table.n, dtype=np.bool_)


def _need_costs(sample: Sample, guarantee: Guarantee) -> None:
    if guarantee.budget_nano_usd is not None and not sample.table.cost_known:
        raise UsageError(f"A budget needs the cost of every step, and in {sample.table.dataset} some are unknown.")


def _alpha(guarantee: Guarantee) -> float:
    assert guarantee.alpha is not None  # noqa: S101 - `Guarantee` has checked it
    return guarantee.alpha


_RULES: Mapping[str, Callable[[Sample, Guarantee, Path | None], list[Found]]] = {
    "coverage": _set,
    "solvable": _set,
    "f1": _graded,
    "budget": _budget,
    "regret": _single,
    "error": _single,
}
