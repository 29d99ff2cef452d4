"""The tables of `collect`, `evaluate` and `compare`: as many columns as the terminal has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.text import Text

from cascade.api.output import Column, figures, per_thousand, plain, table
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.splits import LEAST_QUESTIONS

if TYPE_CHECKING:
    from cascade.evaluation.compare import Comparison, Row
    from cascade.evaluation.evaluate import Evaluation

_ABOVE_80, _MIDDLE, _ROOMY, _WIDE = 88, 104, 122, 150
"""Terminal widths from which a column is shown beside the longest built-in name."""
_LEAST_NAME = 20


def compare_table(found: Comparison, width: int) -> Group:
    """Return the table of a comparison for a terminal of so many columns."""
    columns = _columns(found.row(found.reference))
    shown = figures(found.rows, columns, width, _policy_name, head="policy", least_name=_LEAST_NAME)
    return Group(_title(found), shown)


def _policy_name(row: Row, room: int) -> Text:
    """Return a row's name and how many questions it was tested on; a long name is cut, not the figures beside it."""
    judged = "" if row.questions is None else f" (on {row.questions})"
    name = Text.from_markup(_name(row.policy))
    name.truncate(room - len(judged), overflow="ellipsis")
    return name.append(judged)


def _worst(row: Row) -> str:
    return "-" if row.worst is None else f"{row.worst[1]:.3f} {plain(row.worst[0][:_LEAST_NAME])}"


def _columns(reference: Row) -> Sequence[Column[Row]]:
    def times(row: Row) -> str:
        cost, base = row.mean.cost_usd, reference.mean.cost_usd
        if cost is None or not base:
            return "-"
        sure = row.cost_difference is not None and row.cost_difference.excludes_zero
        return f"{cost / base:.2f}{'*' if sure else ' '}"

    return (
        Column("cost/1k", 0, lambda row: per_thousand(row.mean.cost_usd)),
        Column("±", _MIDDLE, lambda row: per_thousand(None if row.sd is None else row.sd.cost_usd)),
        Column("× ref", 0, times),
        Column("cover", 0, lambda row: f"{row.mean.coverage:.3f}"),
        Column("±", _MIDDLE, lambda row: _share(None if row.sd is None else row.sd.coverage)),
        Column("Δ cover (95 %)", _WIDE, _difference),
        Column("solv.", _ABOVE_80, lambda row: _share(row.mean.covered_given_solvable)),
        Column("in set", 0, lambda row: f"{row.mean.in_set:.3f}"),
        Column("right", 0, lambda row: f"{row.mean.accuracy:.3f}"),
        Column("len", 0, lambda row: f"{row.mean.avg_length:.2f}"),
        *([] if reference.worst is None else [Column("worst segment", 0, _worst)]),
        Column("kept", _ROOMY, lambda row: f"{row.mean.leaves:.2f}"),
        Column("set", 0, lambda row: f"{row.mean.set_size:.2f}"),
        Column("matched", _ROOMY, lambda row: per_thousand(row.matched_cost_usd)),
        Column("±", _WIDE, lambda row: per_thousand(row.matched_cost_sd)),
        Column("fit s", _WIDE, lambda row: f"{row.fit_seconds:.3f}"),
    )


def _difference(row: Row) -> str:
    gap = row.coverage_difference
    if gap is None or gap.low is None or gap.high is None:
        return "-"
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]".replace("[", "\\[")


def _name(text: str) -> str:
    """Return a foreign name fit for one line of a table."""
    return plain(" ".join(text.split()))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _title(found: Comparison) -> str:
    train, calibration, test = found.sizes
    repeated = f" ({found.repeated} more episodes of the same ones left out)" if found.repeated else ""
    return (
        f"[bold]{_name(found.dataset)}[/]  {found.n} questions{repeated}, T = {found.horizon}, α = {found.alpha:g}, "
        f"{found.splits} splits of {train}/{calibration}/{test}"
    )


def legend(found: Comparison, width: int) -> str:
    """Return the meaning of the columns that a terminal of so many columns shows, and notes for reading them."""
    unsolvable = f"{found.unsolvable:.1%}"
    said = {
        "cost/1k": "USD per 1,000 questions",
        "× ref": f"cost relative to {_name(found.reference)} (*: differs, at 95 %)",
        "cover": f"a right answer is kept, or no step of the question has one ({unsolvable} of the questions)",
        "solv.": "share covered of the questions that some step answers rightly",
        "in set": "a right answer is kept",
        "right": "the one answer served is right",
        "len": "steps",
        "kept": "answers kept",
        "set": "different answers kept",
        "matched": f"cost at a coverage of exactly {1 - found.alpha:g}",
        "worst segment": "the one covered least, of those with 20 questions or more",
    }
    shown = [one.head for one in _columns(found.row(found.reference)) if one.from_width <= width]
    many = sum(found.groups)
    few = "so few questions" if many == found.n else f"so few questions, of {many} groups"
    move = "varies" if many == found.n else "can vary"
    chance = f"With {few}, coverage {move} by ±{found.coverage_sd:.3f} (one sd) by chance alone."
    if many < LEAST_QUESTIONS:
        chance += f" Fewer than {LEAST_QUESTIONS} independent questions cannot tell a difference from chance: no *."
    unpriced = (
        " At least half of the questions lack a cost in the log: no cost is shown, and thresholds minimise steps."
    )
    costs = "" if found.cost_known else unpriced
    return f"{'; '.join(f'{head}: {words}' for head, words in said.items() if head in shown)}. {chance}{costs}"


def evaluation_table(found: Evaluation) -> Group:
    """Return the table of one policy."""
    asked = f"{found.n} questions" + (f" in {found.episodes} episodes" if found.episodes > found.n else "")
    title = f"[bold]{_name(found.dataset)}[/]  {asked}, T = {found.horizon}, kappa = {found.kappa:g}"
    rows = [_figure(found, name, words, getattr(found.mean, name)) for name, words in _FIGURES.items()]
    if found.reference is not None:
        rows.append(_figure(found, "times_reference", f"cost × {_name(found.reference)}", found.times_reference))
    if found.promise is not None:
        words = f"promise broken ({found.promise.kind}; at most {found.promise.alpha:g})"
        rows.append(_figure(found, "risk", words, found.promise.risk))
    return Group(title, table(("figure", "mean", "95 % interval"), rows))


def _figure(found: Evaluation, name: str, words: str, value: float | None) -> list[str]:
    low_high = found.intervals.get(name)
    shown = per_thousand if name == "cost_usd" else "{:.3f}".format
    between = "" if low_high is None else f"{shown(low_high[0])} to {shown(low_high[1])}"
    return [words, "unknown" if value is None else shown(value), between]


def evaluation_notes(found: Evaluation) -> Iterator[str]:
    """Yield notes for the reader of an evaluation."""
    if found.groups < LEAST_QUESTIONS:
        yield f"Fewer than {LEAST_QUESTIONS} independent questions are too few for an interval."
    yield from (f"{said}." for said in found.lacks)
    if found.seen is None or not found.seen.made + found.seen.calibrated:
        return
    both = {"made with": found.seen.made, "calibrated on": found.seen.calibrated}
    listed = " and ".join(f"{how} {many}" for how, many in both.items() if many)
    yield f"The policy was {listed} of these {found.n} questions, and looks better on them than it is.{_fresh(found)}"


def _fresh(found: Evaluation) -> str:
    """Return how often the promise is broken on the questions that the policy has not seen."""
    promise = found.promise
    if promise is None:
        return ""
    if promise.fresh_risk is None:
        return " No question is left to test its promise on: evaluate it on a new log."
    return f" On the other {promise.fresh} its promise is broken on {promise.fresh_risk:.1%}."


_FIGURES = {
    "cost_usd": "cost, USD per 1,000 questions",
    "coverage": "coverage (right answer kept, or none there)",
    "covered_given_solvable": "coverage of solvable questions",
    "unsolvable": "unsolvable questions",
    "in_set": "right answer kept",
    "accuracy": "the answer served is right",
    "avg_length": "steps",
    "leaves": "answers kept",
    "set_size": "different answers kept",
}


def rounds_table(episodes: EpisodeTable) -> Group:
    """Return a table by step: how often each answer was right, how often some answer so far was, and the cost."""
    steps = episodes.arrays
    title = f"[bold]{_name(episodes.dataset)}[/]  {len(set(episodes.questions))} questions, right answers by step"
    heads = ("step", *(f"{_name(source)} right" for source in episodes.sources), "some right so far", "cost/1k")
    so_far = np.logical_or.accumulate(steps.correct.any(axis=2), axis=1)
    rows = []
    for t in range(steps.horizon):
        on = episodes.has(t + 1)
        shares = (f"{steps.correct[on, t, a].mean():.1%}" if on.any() else "-" for a in range(len(episodes.sources)))
        cost = per_thousand(float(steps.cost[on, t].mean()) / 1e9) if episodes.cost_known and on.any() else "-"
        name = f"{t + 1} {_name(episodes.step_names[t])}" if any(episodes.calls) else str(t + 1)
        rows.append([name, *shares, f"{so_far[:, t].mean():.1%}", cost])
    return Group(title, table(heads, rows, left=0))
