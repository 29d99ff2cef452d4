"""What a call cost, as it goes on record: exactly, or at most, where the provider may have billed more than it said."""

from __future__ import annotations

from cascade.budget.ledger import most_nano_usd
from cascade.errors import ProviderError
from cascade.money import Price
from cascade.types import Call, Completion, Request, Usage


def paid_call(request: Request, completion: Completion, price: Price | None) -> Call:
    """Return the record of a call that was answered.

    An estimated usage (F20), or an earlier try that may be billed (F10), gives a bound instead of a cost.
    """
    cost = None if price is None else price.cost_nano_usd(completion.usage)
    if cost is None or price is None or not (completion.usage.estimated or completion.maybe_billed):
        return Call(request, completion, cost, cost)
    return Call(request, completion, None, cost + completion.maybe_billed * most_nano_usd(request, price))


def failed_call(request: Request, error: ProviderError, price: Price | None) -> Call:
    """Return the record of a call that failed: free, charged by its usage, or perhaps charged."""
    said = f"{type(error).__name__}: {error}"
    if error.billed == "no":
        return Call(request, None, 0, 0, "no", said)
    if price is None:
        return Call(request, None, None, None, error.billed, said)
    usage, tries = error.usage if isinstance(error.usage, Usage) else None, max(1, error.maybe_billed)
    cost = None if usage is None or usage.estimated or tries > 1 else price.cost_nano_usd(usage)
    return Call(
        request, None, cost, tries * most_nano_usd(request, price) if cost is None else cost, error.billed, said
    )
