"""What a call cost, as it goes on record: exactly, or at most, where the provider may have billed more than it said."""

from __future__ import annotations

from cascade.budget.charges import cost_of
from cascade.budget.ledger import most_nano_usd
from cascade.errors import ProviderError
from cascade.money import Price
from cascade.types import Call, Completion, Request, Usage


def paid_call(request: Request, completion: Completion, price: Price | None) -> Call:
    """Return the record of a call that was answered.

    An estimated usage (F20), or an earlier try that may be billed (F10), gives a bound instead of a cost. Where
    something is priced apart and its price is not known, there is neither, and `unpriced` names it.
    """
    if price is None:
        return Call(request, completion, None, None)
    cost, unpriced = cost_of(request, completion, price)
    if cost is None or not (completion.usage.estimated or completion.maybe_billed):
        return Call(request, completion, cost, cost, unpriced=unpriced)
    return Call(request, completion, None, _sum(cost, _tries(completion.maybe_billed, request, price)))


def failed_call(request: Request, error: ProviderError, price: Price | None) -> Call:
    """Return the record of a call that failed: free, charged by its usage, or perhaps charged."""
    said = f"{type(error).__name__}: {error}"
    if error.billed == "no":
        return Call(request, None, 0, 0, "no", said)
    if price is None:
        return Call(request, None, None, None, error.billed, said)
    usage, tries = error.usage if isinstance(error.usage, Usage) else None, max(1, error.maybe_billed)
    told = None if usage is None or usage.estimated or tries > 1 else Completion("", "failed", usage)
    cost, unpriced = (None, None) if told is None else cost_of(request, told, price)
    most = _tries(tries, request, price) if cost is None else cost
    return Call(request, None, cost, most, error.billed, said, unpriced)


def _tries(tries: int, request: Request, price: Price) -> int | None:
    """Return the most that so many calls can have cost; None where that is not known."""
    most = most_nano_usd(request, price).nano_usd
    return 0 if not tries else None if most is None else tries * most


def _sum(cost: int, more: int | None) -> int | None:
    return None if more is None else cost + more
