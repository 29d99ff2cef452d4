"""The table of `collect`."""

from __future__ import annotations

import numpy as np
from rich.console import Group

from cascade.api.output import per_thousand, plain, table
from cascade.episodes.rows import Read


def _name(text: str) -> str:
    """Return a foreign name fit for one line of a table."""
    return plain(" ".join(text.split()))


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
