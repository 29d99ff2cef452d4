"""The tables of `collect` and `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Group

from cascade.api.output import per_thousand, plain, table
from cascade.evaluation.evaluate import LEAST_QUESTIONS, Evaluation
from cascade.house.rows import Read


def _name(text: str) -> str:
    """Return a foreign name fit for one line of a table."""
    return plain(" ".join(text.split()))


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


def rounds_table(read: Read) -> Group:
    """Return a table by step: how often each answer was right, how often some answer so far was, and the cost."""
    log, sources = read.log, read.facts.sources
    title = f"[bold]{_name(log.name)}[/]  {len(set(log.ids))} questions, right answers by step"
    heads = ("step", *(f"{_name(source)} right" for source in sources), "some right so far", "cost/1k")
    so_far, rows = np.logical_or.accumulate(log.right == 1, axis=1), []
    for step, last in enumerate(np.flatnonzero(log.decides).tolist(), 1):
        at = np.flatnonzero(log.steps == log.steps[last])
        on = log.bought[:, last]
        shares = [f"{np.mean(log.right[on, node] == 1):.1%}" if on.any() else "-" for node in at]
        cost = log.cost_nano_usd[on][:, at]
        spent = per_thousand(float(cost.sum(axis=1).mean()) / 1e9) if on.any() and (cost >= 0).all() else "-"
        name = f"{step} {_name(log.nodes[last].name)}" if any(read.facts.callers) and len(at) == 1 else str(step)
        rows.append([name, *shares, f"{so_far[:, last].mean():.1%}", spent])
    return Group(title, table(heads, rows, left=0))
