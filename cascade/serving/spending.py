"""Caps shared by many requests: each call's highest cost is held on the ledger before the call and settled after it.

`SpendingGuard` takes the place of a `Guard`. A call that does not fit waits while others hold money that they may not
need, and is then refused. Ledgers in a database are called in a thread, so that they do not block an event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cascade.budget.caps import Account, Caps, Hold, Ledger, MemoryLedger, Refused, new_id
from cascade.budget.caps import ends_s as period_ends_s
from cascade.budget.charges import failed_call, most_nano_usd, no_price, paid_call
from cascade.errors import BudgetExceededError, ProviderError, StoreError
from cascade.money import Price, exact_dollars, nano_usd
from cascade.providers.guard import Around, Guard
from cascade.resilience.portal import NOT_BEGUN, Deadline
from cascade.types import Completion, Request

if TYPE_CHECKING:
    from cascade.config import CascadeConfig

logger = logging.getLogger("cascade")
_SLACK_S = 60.0
"""Seconds after the latest end of a call at which its hold counts as lost."""
_POLL_S = 0.02


@dataclass(frozen=True)
class Spending:
    """A ledger and the caps on it.

    Args:
        ledger: the accounts.
        caps: the cap of each account.
        prices: the prices of the models; a call at an unknown price (None) is refused.
        wait_s: how long a call waits for money held by others.
        call_s: the time limit of a call.
        owner: the owner of the holds.
    """

    ledger: Ledger
    caps: Caps
    prices: Mapping[str, Price | None]
    wait_s: float
    call_s: float
    owner: str = field(default_factory=new_id)

    @classmethod
    def of(cls, config: CascadeConfig) -> Spending:
        """Return the caps of a configuration. Raises ConfigError for a wrong store."""
        from cascade.config import ledger_url

        budget = config.budget
        caps = Caps(
            **{name: None if (cap := getattr(budget, name)) is None else nano_usd(cap) for name in budget.shared}
        )
        url = ledger_url(budget)
        return cls(_opened(url), caps, config.prices(), budget.wait_s, config.timeouts.per_call_s)

    def over(self, guard: Guard | Around, key: str | None) -> SpendingGuard:
        """Return a guard whose calls count for a key of the server."""
        return SpendingGuard(self, guard, key)

    def reserve(self, request: Request, key: str | None, *, waits: bool) -> Hold | None:
        """Hold the highest cost of a call; None: it should wait for money held by others, as it may while `waits`.

        Raises:
            BudgetExceededError: it does not fit, or its price is unknown.
            StoreError: the ledger cannot be reached, so that no call can be kept under its caps.
        """
        amount, unpriced = most_nano_usd(request, self.prices.get(request.model))
        if amount is None:
            raise BudgetExceededError(no_price(request.model, "a cap", unpriced))
        chat, now_s = request.question.chat, datetime.now(UTC).timestamp()  # request.chat may lack the field `user`
        caps = self.caps.of(key, None if chat is None else chat.user, now_s)
        expires_s = now_s + self.call_s + _SLACK_S
        try:
            hold = self.ledger.reserve(amount, caps, self.owner, expires_s)
            if isinstance(hold, Refused) and hold.may_fit_later and self.ledger.recover(now_s):
                hold = self.ledger.reserve(amount, caps, self.owner, expires_s)
        except StoreError as error:
            raise _down(str(error)) from None
        if not isinstance(hold, Refused):
            return hold
        if hold.may_fit_later and waits:
            return None
        raise _over(hold, request, amount, now_s)

    def book(self, hold: Hold, request: Request, replies: Sequence[Completion], failure: BaseException | None) -> None:
        """Book a call at its cost; if that is unknown, at its bound; if that is unknown too, at the full hold.

        A call that had not begun when its caller left costs nothing.
        """
        price, call = self.prices.get(request.model), None
        if replies:
            call = paid_call(request, replies[-1], price)
        elif isinstance(failure, ProviderError):
            call = failed_call(request, failure, price)
        cost = 0 if isinstance(failure, asyncio.CancelledError) and failure.args == (NOT_BEGUN,) else None
        if call is not None and (replies or call.billed != "maybe"):
            bound = call.cost_bound_nano_usd
            cost = max(hold.amount, bound) if call.cost_nano_usd is None and bound is not None else call.cost_nano_usd
        self.settle(hold, cost)

    def settle(self, hold: Hold, cost: int | None) -> None:
        """Settle a hold. If the ledger cannot be reached, it is booked in full later; the answer is still served."""
        try:
            self.ledger.settle(hold, cost)
        except StoreError as error:
            logger.warning("budget.store cannot be reached (%s): a call will be booked at the most it can cost.", error)

    def balances(self, keys: Iterable[str | None]) -> Mapping[str, tuple[int, Account]]:
        """Return cap and balance of each account that keys spend from, without the users'. Raises StoreError."""
        now_s = datetime.now(UTC).timestamp()
        caps = {name: cap for key in keys for name, cap in self.caps.of(key, None, now_s).items()}
        return {name: (cap, self.ledger.account(name)) for name, cap in caps.items() if not name.startswith("user:")}

    @property
    def blocks(self) -> bool:
        """Whether the ledger must be called in a thread."""
        return not isinstance(self.ledger, MemoryLedger)


class SpendingGuard(Around):
    """A guard that holds and books its calls. It is used like a `Guard`, and also raises BudgetExceededError."""

    def __init__(self, spending: Spending, guard: Guard | Around, key: str | None) -> None:
        super().__init__(guard)
        self._spending, self._key = spending, key

    def sent(self, request: Request) -> Request:
        """Return the request, not to be repeated where a try may have been billed."""
        return request._replace(at_most_once=True)

    @asynccontextmanager
    async def around(self, request: Request, deadline: Deadline) -> AsyncIterator[list[Completion]]:
        """Hold the money for a call, and book it by the reply.

        If the ledger is called in a thread, a cancelled caller does not undo the booking.
        """
        ends_s = time.monotonic() + min(self._spending.wait_s, deadline.remaining_s())
        while (hold := await self._reserved(request, ends_s, deadline)) is None:  # noqa: ASYNC110 - of any process
            await asyncio.sleep(_POLL_S)
        replies, failure = list[Completion](), None
        try:
            yield replies
        except BaseException as error:
            failure = error
            raise
        finally:
            if self._spending.blocks:
                await asyncio.shield(asyncio.to_thread(self._spending.book, hold, request, replies, failure))
            else:
                self._spending.book(hold, request, replies, failure)

    def _reserve(self, request: Request, ends_s: float) -> Hold | None:
        return self._spending.reserve(request, self._key, waits=time.monotonic() < ends_s)

    async def _reserved(self, request: Request, ends_s: float, deadline: Deadline) -> Hold | None:
        """Ask the ledger for a hold. If the caller leaves before the reply, the hold is released."""
        if not self._spending.blocks:
            return self._reserve(request, ends_s)
        asking = asyncio.ensure_future(asyncio.to_thread(self._reserve, request, ends_s))
        left_s = deadline.remaining_s()
        try:
            async with asyncio.timeout(None if left_s == float("inf") else left_s):
                return await asyncio.shield(asking)
        except (TimeoutError, asyncio.CancelledError) as error:
            asking.add_done_callback(self._give_back)
            if isinstance(error, TimeoutError):
                raise _down("no answer in time") from None
            raise

    def _give_back(self, asking: asyncio.Future[Hold | None]) -> None:
        if not asking.cancelled() and asking.exception() is None and (hold := asking.result()) is not None:
            asking.get_loop().run_in_executor(None, self._spending.settle, hold, 0)


def _down(why: str) -> StoreError:
    says = f"budget.store cannot be reached ({why}), so no call can be kept under its caps. Try again."
    return StoreError(says, retryable=True)


def _over(refused: Refused, request: Request, most_nano_usd: int, now_s: float) -> BudgetExceededError:
    """Return the error of a call that does not fit; it says when the account's period ends if the call fits then."""
    name, stands, ends_s = refused.account.partition(":")[0], refused.stands, period_ends_s(refused.account)
    cap = name if name == "total" else f"per_{name}"
    error = BudgetExceededError(
        f"the next call to {request.model} does not fit under budget.{cap}: of "
        f"{exact_dollars(refused.cap)} {exact_dollars(stands.spent)} is spent and {exact_dollars(stands.held)} is "
        "held by calls under way."
    )
    error.cap, error.spent = cap, most_nano_usd <= refused.cap
    if error.spent and ends_s is not None:
        error.retry_after_s = max(0.0, ends_s - now_s)
    return error


def _opened(url: str | None) -> Ledger:
    if url is None:
        return MemoryLedger()
    from cascade.records.ledger import SqlLedger

    return SqlLedger.open(url)
