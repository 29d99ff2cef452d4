"""Signals that no strategy gives: a policy that reads one of them can be fitted on a log, but cannot serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np

from cascade.api.output import Tell
from cascade.episodes.table import EpisodeTable
from cascade.policies.base import SHARED_PLACE
from cascade.strategies.config import STRATEGIES, StrategyConfig

if TYPE_CHECKING:
    from cascade.config import CascadeConfig


def unserved(names: Iterable[str], sources: Sequence[str], config: CascadeConfig | None) -> list[str]:
    """Return, sorted, the signals that no strategy with candidates of these sources gives.

    Args:
        names: names of signals.
        sources: the places of a step's candidates, as a table has them.
        config: the cascade that will serve; without it, every strategy that has such candidates is considered.

    >>> unserved(["logprob", "reply_mean_logprob"], ("answer",), None)
    ['logprob']
    """
    return sorted(set(names) - _given(sources, config))


def tell_unserved(tables: Iterable[EpisodeTable], config: CascadeConfig | None, tell: Tell) -> None:
    """Tell which signals of a log no strategy gives, each with the most similar name of a signal that one gives."""
    for table in tables:
        there = [name for name, values in table.signals.items() if not np.isnan(values).all()]
        for name in unserved(there, table.sources, config):
            tell(
                f"{table.dataset}: no strategy gives the signal {name}, so a policy that looks at it cannot be served. "
                f"{_advice(name, _given(table.sources, config))}"
            )


def next_step(reads: Iterable[str], sources: Sequence[str], path: str) -> str:
    """Return a line that says how to serve a fitted policy, with which strategies, or why it cannot be served.

    >>> next_step(["p_yes"], ("answer",), "./policy")
    'next: policy: ./policy in cascade.yaml serves it, with a strategy of kind offers or verified'
    >>> next_step(["logprob"], ("answer",), "./policy")[:59]
    'It cannot be served: it looks at logprob, which no strategy'
    """
    names = set(reads)
    missing = unserved(names, sources, None)
    if missing:
        return (
            f"It cannot be served: it looks at {', '.join(missing)}, which no strategy gives. It can be evaluated on "
            "logs that have it."
        )
    there = _strategies(sources)
    kinds = [kind for kind, one in there if names <= one.signals]
    if not kinds:
        return f"It cannot be served: it looks at {', '.join(sorted(names))}, and no strategy gives all of them."
    served = f"next: policy: {path} in cascade.yaml serves it"
    return served if len(kinds) == len(there) else f"{served}, with a strategy of kind {' or '.join(kinds)}"


def _given(sources: Sequence[str], config: CascadeConfig | None) -> frozenset[str]:
    if config is not None:
        return config.strategy.signals
    return frozenset(name for _, one in _strategies(sources) for name in one.signals)


def _strategies(sources: Sequence[str]) -> list[tuple[str, type[StrategyConfig]]]:
    """Return the strategies, by kind, whose steps have candidates of these sources."""
    known = list(STRATEGIES.usable().items())
    same = [(kind, one) for kind, one in known if sorted(one.candidates) == sorted(sources)]
    return same or [(kind, one) for kind, one in known if one.candidates == (SHARED_PLACE,)]


def _advice(name: str, given: Iterable[str]) -> str:
    """Return advice: the signal whose name is most similar, or all signals if none is similar."""
    near, one = max((SequenceMatcher(None, name, one).ratio() + (name in one), one) for one in sorted(given))
    if near < _NEAR:
        return f"Strategies give: {', '.join(sorted(given))}."
    return f"The most similar signal that a strategy gives is {one}: if it is the same, rename it in the log."


_NEAR = 0.6
