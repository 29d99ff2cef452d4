"""How often a model differs from itself: compare two of its own outputs to one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cascade.chat import ChatRequest
from cascade.conformal.binomial import lower_bound, upper_bound
from cascade.text import counted

_TAIL = 0.025
"""Each end of a 95 % interval."""


class OwnRun(NamedTuple):
    """One output of a model, and the request that it answers; `question` is the same for equal requests."""

    question: str
    output: str
    request: ChatRequest | None = None


class OwnDifference(NamedTuple):
    """The number of requests that a model answered twice, and for how many of them its two outputs differ.

    >>> OwnDifference("gpt-4o", 3, 60).said
    'Asked twice, gpt-4o differs from itself on 5.0 % of 60 requests (95 % interval 1.0 to 13.9 %)'
    """

    model: str
    differ: int
    n: int

    @property
    def share(self) -> float:
        """The share that differ."""
        return self.differ / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the share, over requests (Clopper and Pearson)."""
        return lower_bound(self.differ, self.n, _TAIL), upper_bound(self.differ, self.n, _TAIL)

    @property
    def said(self) -> str:
        """The same as a sentence."""
        low, high = self.interval
        sure = f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"
        seen = f"{100 * self.share:.1f} % of {counted(self.n, 'request')}"
        return f"Asked twice, {self.model} differs from itself on {seen} ({sure})"


def own_difference(
    model: str, runs: Iterable[OwnRun], same: Callable[[str, str, ChatRequest | None], bool]
) -> OwnDifference | None:
    """Return how often a model differs from itself; None if no request has two of its outputs.

    A request counts once, by the first two outputs in the order given: further ones are not independent requests.
    `runs` are the model's outputs, without failures; `same` says whether an output is the same as an earlier one.
    """
    first: dict[str, str] = {}
    differ: dict[str, bool] = {}
    for question, output, request in runs:
        if question in first and question not in differ:
            differ[question] = not same(output, first[question], request)
        first.setdefault(question, output)
    return OwnDifference(model, sum(differ.values()), len(differ)) if differ else None


def pooled(found: Iterable[OwnDifference | None]) -> OwnDifference | None:
    """Return the sum over several data sets; None if none has one."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    return OwnDifference(known[0].model, sum(one.differ for one in known), sum(one.n for one in known))
