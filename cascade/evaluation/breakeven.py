"""Compare the cost of a verdict with the cost of asking the guide outright, to see when judging pays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from cascade.episodes.schema import GUIDE_ONLY
from cascade.money import usd
from cascade.types import ACT


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The costs of judging and of asking outright, and the answer length at which they are equal.

    Attributes:
        base_usd: the cost of the base's answer, USD a question.
        judging_usd: the cost of the guide's verdict, USD a question.
        outright_usd: the cost of the guide's own answer, USD a question.
        guide_tokens: the mean length of the guide's own answers.
        guide_tokens_needed: the length of the guide's own answers at which both ways cost the same: 0 if judging is
            cheaper at any length, None if the log's costs do not determine the price of a token.
    """

    base_usd: Decimal
    judging_usd: Decimal
    outright_usd: Decimal
    guide_tokens: float
    guide_tokens_needed: float | None

    @property
    def share_needed(self) -> float | None:
        """The share of the base's answers that must be kept for judging to pay; None if no share is enough."""
        checked = self.base_usd + self.judging_usd
        return None if checked >= self.outright_usd else float(checked / self.outright_usd)

    def describe(self) -> str:
        """Describe the break-even in words."""
        checked = self.base_usd + self.judging_usd
        share = self.share_needed
        verdict = f"Judging costs {'MORE' if share is None else 'less'} than asking the guide outright"
        tail = (
            "so on answers this short no threshold can be cheaper than guide only"
            if share is None
            else f"so it saves money once more than {share:.0%} of the base's answers are kept without asking further"
        )
        return (
            f"{verdict}: one answer of the base and its verdict cost ${checked:.6f}, the guide's own answer "
            f"${self.outright_usd:.6f}, {tail}.{self._lengths()}"
        )

    def _lengths(self) -> str:
        if self.guide_tokens_needed is None:
            return ""
        if self.guide_tokens_needed <= 0:
            return " That holds however short the guide's own answers are: reading the question alone costs it more."
        return (
            f" The two meet where the guide's own answers are {self.guide_tokens_needed:.0f} tokens long; "
            f"here they are {self.guide_tokens:.0f}."
        )


def break_even(
    base_nano_usd: int,
    judging_nano_usd: int,
    outright_nano_usd: int,
    guide_tokens: int,
    count: int,
    per_token: float | None,
) -> BreakEven:
    """Return the break-even from totals over `count` questions; `per_token` is the guide's nano-USD an output token."""
    mean_tokens = guide_tokens / count
    gap = (base_nano_usd + judging_nano_usd - outright_nano_usd) / count
    needed = None if not per_token else max(0.0, mean_tokens + gap / per_token)
    base, judging, outright = (usd(total) / count for total in (base_nano_usd, judging_nano_usd, outright_nano_usd))
    return BreakEven(base, judging, outright, mean_tokens, needed)


def break_evens(rows: Iterable[Mapping[str, Any]]) -> dict[str, BreakEven]:
    """Return the break-even of each data set that has verdicts and the guide's own answers, all with known costs.

    Prices are estimated from the log: cost = a·input tokens + b·output tokens, by least squares over the guide's calls.
    """
    gathered: dict[str, _Gathered] = defaultdict(_Gathered)
    for row in rows:
        gathered[row["dataset"] or "log"].add(row)
    found = {dataset: one.result() for dataset, one in gathered.items()}
    return {dataset: one for dataset, one in found.items() if one is not None}


@dataclass(slots=True)
class _Gathered:
    """A data set's costs of judging, by episode: [base, verdict], and [the guide's own answer, its tokens]."""

    first: dict[str, list[int]] = field(default_factory=dict)
    outright: dict[str, list[int]] = field(default_factory=dict)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    unknown: bool = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, if it is of the first step or of the guide alone."""
        purpose = ((row["signals"] or {}).get("replay") or {}).get("purpose")
        cost, tokens_in, tokens_out = row["cost_nano_usd"], row["input_tokens"], row["output_tokens"]
        alone = row["walk"] == GUIDE_ONLY
        judging = row["walk"] is None and row["step"] == 1 and purpose == "judge"
        answering = row["walk"] is None and row["step"] == 1 and purpose in {"answer", ACT}
        if not (alone or judging or answering):
            return
        if cost is None or tokens_in is None or tokens_out is None:
            self.unknown = True
            return
        if alone:
            paid = self.outright.setdefault(row["episode_id"], [0, 0])
            paid[0], paid[1] = paid[0] + cost, paid[1] + tokens_out
        else:
            self.first.setdefault(row["episode_id"], [0, 0])[judging] += cost
        if alone or judging:
            self.calls.append((tokens_in, tokens_out, cost))

    def result(self) -> BreakEven | None:
        """Return the break-even over the episodes that have both."""
        both = [name for name in self.outright if name in self.first and self.first[name][1]]
        if self.unknown or not both:
            return None
        base, judged = (sum(self.first[name][k] for name in both) for k in (0, 1))
        direct, tokens = (sum(self.outright[name][k] for name in both) for k in (0, 1))
        return break_even(base, judged, direct, tokens, len(both), _price_per_output_token(self.calls))


def _price_per_output_token(calls: list[tuple[int, int, int]]) -> float | None:
    """Return nano-USD an output token, as the log's own costs imply; None if they do not fit one price."""
    data = np.array(calls, dtype=np.float64)
    design, cost = data[:, :2], data[:, 2]
    found, _, rank, _ = np.linalg.lstsq(design, cost, rcond=None)
    off = np.abs(design @ found - cost).sum()
    return float(found[1]) if rank == 2 and found[1] > 0 and off <= 0.01 * cost.sum() else None
