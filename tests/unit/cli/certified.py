"""A log on which every figure of a calibration is known, for the tests of `fit`, `verify` and `monitor`.

Two steps of one candidate each. Question k has the doubt (k + 1)/(n + 1) after its first step; its first answer is wrong and
its second right where k is in `hard`, so its critical value is its doubt; else the first is right.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from unit.plain import row

Row = dict[str, Any]
POLICY = "{kind: threshold, signal: p_yes, sign: -1}"
"""The policy that reads this doubt, for `fit`."""


def hard_rows(n: int, hard: Iterable[int], about: str = "number", **columns: Any) -> list[Row]:
    """Return the rows of n questions; another thing that they are `about` makes them other questions."""
    late = set(hard)
    rows = []
    for k in range(n):
        name = f"q{k:04d}"
        shared = {"question": f"What is {about} {k}?", "horizon": 2, "dataset": "made", "gold": [f"the {k}"]} | columns
        shared |= {"created_at": f"2026-11-{1 + k // 1440:02d}T{k // 60 % 24:02d}:{k % 60:02d}:00+00:00"}
        doubt = (k + 1) / (n + 1)
        for step in (1, 2):
            right = step == 2 or k not in late
            answered = {
                "correct": right,
                "answer": f"the {k}" if right else "nothing",
                "model": ("small", "large")[step - 1],
            }
            measured = {
                "signals": {"p_yes": 1 - doubt},
                "confidence": 0.9 if right else 0.2,
                "cost_nano_usd": 1_000_000 * step,
            }
            rows.append(row(name, step, source=("base", "guide")[step - 1], **answered, **(measured | shared)))
    return rows


LADDER_POLICY = "{kind: threshold, signal: reply_mean_logprob, sign: -1}"


def ladder_rows(n: int, hard: Iterable[int], **columns: Any) -> list[Row]:
    """Return the same rows with the signal of a ladder, the log-prob of a reply, in the place of a verdict."""
    rows = hard_rows(n, hard, **columns)
    return [step | {"signals": {"reply_mean_logprob": step["signals"]["p_yes"] - 1}} for step in rows]


def ladder_log(n: int, every: int = 5, **columns: Any) -> list[Row]:
    """Return a ladder of two models, undated and in no order; the small one is wrong on some where it is less sure."""
    rows = ladder_rows(n, range(n - 1, n // 2, -every), **columns)
    pairs = [rows[at : at + 2] for at in range(0, len(rows), 2)]
    random.Random(0).shuffle(pairs)
    return [row | {"source": "answer", "created_at": None} for pair in pairs for row in pair]
