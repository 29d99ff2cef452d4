"""Sentences on the saving of a ladder if its models cost 30 % less or more, and without prompt caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cascade.evaluation.proof.prices import (
    BASE_CHEAPER,
    BASE_DEARER,
    CHANGE,
    CHEAPER,
    COLD,
    DEARER,
    UNCACHED,
    OtherPrices,
)
from cascade.evaluation.proof.reasons import share
from cascade.text import percent


def other_prices_said(found: Sequence[OtherPrices], last: str) -> Iterator[str]:
    """Yield a sentence for each change of prices: the saving against a ladder's last model.

    >>> names = (CHEAPER, DEARER, BASE_CHEAPER, BASE_DEARER)
    >>> print(*other_prices_said([OtherPrices(name, 0.5) for name in names], "large"))
    At other prices: 50.0 % is saved if large costs 30 % less, 50.0 % if 30 % more; 50.0 % if all before it cost \
30 % less, 50.0 % if 30 % more.
    """
    at = {one.name: share(one.saving).replace("-", "−") for one in found}
    change = percent(CHANGE)
    if CHEAPER in at:
        yield (
            f"At other prices: {at[CHEAPER]} is saved if {last} costs {change} less, {at[DEARER]} if {change} more; "
            f"{at[BASE_CHEAPER]} if all before it cost {change} less, {at[BASE_DEARER]} if {change} more."
        )
    if UNCACHED in at:
        yield (
            f"Prompt caches, as logged, are in these figures. Without any, {at[UNCACHED]} is saved; in the worst "
            f"case, in which {last} alone keeps its cache and its calls in the cascade find nothing cached, "
            f"{at[COLD]}."
        )
