"""Caps shared by many requests: each call's highest cost is held on the ledger before the call and settled after it.

`SpendingGuard` takes the place of a `Guard`. A call that does not fit waits while others hold money that they may not
need, and is then refused. Ledgers in a database are called in a thread, so that they do not block an event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cascade.budget.caps import Caps, Hold, Ledger, MemoryLedger, Refused, ends_s, new_id
from cascade.budget.charges import failed_call, most_nano_usd, no_price, paid_call
from cascade.errors import BudgetExceededError, ProviderError, StoreError
from cascade.money import Price, exact_dollars, nano_usd
from cascade.providers.guard import Around, Guard
from cascade.resilience.halting import Deadline, Halt
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

    def reserve(self, request: Request, key: str | None) -> Hold | Refused:
        """Hold the highest cost of a call.

        Raises:
            BudgetExceededError: its price is unknown.
            StoreError: the ledger cannot be reached, so that no call can be kept under its caps.
        """
        amount, unpriced = most_nano_usd(request, self.prices.get(request.model))
        if amount is None:
            raise BudgetExceededError(no_price(request.model, "a cap", unpriced))
        chat, now_s = request.question.chat, datetime.now(UTC).timestamp()  # request.chat may lack the field `user`
        user = None if chat is None else chat.user
        wanted = self.caps.of(key, user, now_s)
        expires_s = now_s + self.call_s + _SLACK_S
        try:
            found = self.ledger.reserve(amount, wanted, self.owner, expires_s)
            if isinstance(found, Refused) and found.may_fit_later and self.ledger.recover(now_s):
                return self.ledger.reserve(amount, wanted, self.owner, expires_s)
        except StoreError as error:
            raise _down(str(error)) from None
        return found

    def refuse(self, found: Refused, request: Request, *, waits: bool) -> None:
        """Raise BudgetExceededError, unless the call should wait for money held by others."""
        if found.may_fit_later and waits:
            return
        stands, most = found.stands, most_nano_usd(request, self.prices[request.model]).nano_usd
        error = BudgetExceededError(
            f"the next call to {request.model} does not fit under budget.{_WORDS[found.account.partition(':')[0]]}: of "
            f"{exact_dollars(found.cap)} {exact_dollars(stands.spent)} is spent and {exact_dollars(stands.held)} is "
            "held by calls under way."
        )
        error.spent = most is not None and most <= found.cap
        ends = ends_s(found.account)
        if error.spent and ends is not None:
            error.retry_after_s = max(0.0, ends - datetime.now(UTC).timestamp())
        raise error

    def book(self, hold: Hold, request: Request, replies: Sequence[Completion], failure: BaseException | None) -> None:
        """Book a call at its cost; if that is unknown, at its bound; if that is unknown too, at the full hold."""
        price, call = self.prices.get(request.model), None
        if replies:
            call = paid_call(request, replies[-1], price)
        elif isinstance(failure, ProviderError):
            call = failed_call(request, failure, price)
        cost = None
        if call is not None and (replies or call.billed != "maybe"):
            bound = call.cost_bound_nano_usd
            cost = max(hold.amount, bound) if call.cost_nano_usd is None and bound is not None else call.cost_nano_usd
        self._end(hold, cost)

    def give_back(self, hold: Hold) -> None:
        """Release the hold of a call that was not made."""
        self._end(hold, 0)

    def _end(self, hold: Hold, cost: int | None) -> None:
        """Settle a hold. If the ledger cannot be reached, it is booked in full later; the answer is still served."""
        try:
            self.ledger.settle(hold, cost)
        except StoreError as error:
            logger.warning("budget.store cannot be reached (%s): a call will be booked at the most it can cost.", error)

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

    @contextmanager
    def around(self, request: Request, deadline: Deadline, halt: Halt) -> Iterator[list[Completion]]:
        """Hold the money for a call, and book it by the reply."""
        ends_s = self._waits_until_s(deadline)
        while isinstance(hold := self._reserve(request), Refused):
            self._spending.refuse(hold, request, waits=time.monotonic() < ends_s)
            halt.sleep(_POLL_S)
        replies, failure = list[Completion](), None
        try:
            yield replies
        except BaseException as error:
            failure = error
            raise
        finally:
            self._spending.book(hold, request, replies, failure)

    @asynccontextmanager
    async def aaround(self, request: Request, deadline: Deadline, halt: Halt) -> AsyncIterator[list[Completion]]:  # noqa: ARG002
        """Like `around`. If the ledger is called in a thread, a cancelled caller does not undo the booking."""
        ends_s = self._waits_until_s(deadline)
        while isinstance(hold := await self._reserved(request, deadline), Refused):
            self._spending.refuse(hold, request, waits=time.monotonic() < ends_s)
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

    def _waits_until_s(self, deadline: Deadline) -> float:
        return time.monotonic() + min(self._spending.wait_s, deadline.remaining_s())

    def _reserve(self, request: Request) -> Hold | Refused:
        return self._spending.reserve(request, self._key)

    async def _reserved(self, request: Request, deadline: Deadline) -> Hold | Refused:
        """Ask the ledger for a hold. If the caller leaves before the reply, the hold is released."""
        if not self._spending.blocks:
            return self._reserve(request)
        asking = asyncio.ensure_future(asyncio.to_thread(self._reserve, request))
        left_s = deadline.remaining_s()
        try:
            async with asyncio.timeout(None if left_s == float("inf") else left_s):
                return await asyncio.shield(asking)
        except TimeoutError:
            asking.add_done_callback(self._give_back)
            raise _down("no answer in time") from None
        except asyncio.CancelledError:
            asking.add_done_callback(self._give_back)
            raise

    def _give_back(self, asked: asyncio.Future[Hold | Refused]) -> None:
        if asked.cancelled() or asked.exception() is not None:
            return
        found = asked.result()
        if isinstance(found, Hold):
            asked.get_loop().run_in_executor(None, self._spending.give_back, found)


def _down(why: str) -> StoreError:
    says = f"budget.store cannot be reached ({why}), so no call can be kept under its caps. Try again."
    return StoreError(says, retryable=True)


_WORDS = {"key": "per_key", "user": "per_user", "day": "per_day", "month": "per_month", "total": "total"}


def _opened(url: str | None) -> Ledger:
    if url is None:
        return MemoryLedger()
    from cascade.records.ledger import SqlLedger

    return SqlLedger.open(url)
