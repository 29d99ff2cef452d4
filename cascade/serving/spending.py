"""Caps shared by many requests: each call's highest cost is held on the ledger before the call and settled after it.

`SpendingGuard` takes the place of a `Guard`. A call that does not fit waits while others hold money that they may not
need, and is then refused. Ledgers in a database are called in a thread, so that they do not block an event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cascade.budget.caps import Caps, Hold, Ledger, MemoryLedger, Refused, ends_s, new_id
from cascade.budget.charges import failed_call, most_nano_usd, no_price, paid_call
from cascade.errors import BudgetExceededError, ProviderError, StoreError
from cascade.money import Price, exact_dollars, nano_usd
from cascade.resilience.halting import Deadline, Halt
from cascade.types import Call, Completion, Request, TextDelta

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.providers.guard import Guard
    from cascade.telemetry import TracedGuard

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

    def over(self, guard: Guard | TracedGuard, key: str | None) -> SpendingGuard:
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

    def settle(self, hold: Hold, outcome: Call | None) -> None:
        """Book a call at its cost; if that is unknown, at its bound; if that is unknown too, at the full hold."""
        cost = None if outcome is None else outcome.cost_nano_usd
        if cost is None and outcome is not None and outcome.cost_bound_nano_usd is not None:
            cost = max(hold.amount, outcome.cost_bound_nano_usd)
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

    def outcome(self, request: Request, replies: Sequence[Completion], error: BaseException | None) -> Call | None:
        """Return the cost of a call, or its bound if it failed; None if neither is known."""
        price = self.prices.get(request.model)
        if replies:
            return paid_call(request, replies[-1], price)
        call = failed_call(request, error, price) if isinstance(error, ProviderError) else None
        return None if call is None or call.billed == "maybe" else call

    @property
    def blocks(self) -> bool:
        """Whether the ledger must be called in a thread."""
        return not isinstance(self.ledger, MemoryLedger)


class SpendingGuard:
    """A guard that holds and books its calls. It is used like a `Guard`, and also raises BudgetExceededError."""

    def __init__(self, spending: Spending, guard: Guard | TracedGuard, key: str | None) -> None:
        self._spending, self._guard, self._key = spending, guard, key

    def complete(self, request: Request, deadline: Deadline, halt: Halt) -> Completion:
        """Answer a request, as `Guard.complete` does."""
        with self._booked(request, deadline, halt) as replies:
            replies.append(self._guard.complete(request._replace(at_most_once=True), deadline, halt))
        return replies[0]

    async def acomplete(self, request: Request, deadline: Deadline, halt: Halt) -> Completion:
        """Answer a request, as `Guard.acomplete` does."""
        async with self._abooked(request, deadline) as replies:
            replies.append(await self._guard.acomplete(request._replace(at_most_once=True), deadline, halt))
        return replies[0]

    def stream(self, request: Request, deadline: Deadline, halt: Halt) -> Iterator[TextDelta | Completion]:
        """Answer a request in pieces, as `Guard.stream` does."""
        with self._booked(request, deadline, halt) as replies:
            for event in self._guard.stream(request._replace(at_most_once=True), deadline, halt):
                if isinstance(event, Completion):
                    replies.append(event)
                yield event

    async def astream(
        self, request: Request, deadline: Deadline, halt: Halt
    ) -> AsyncGenerator[TextDelta | Completion, None]:
        """Answer a request in pieces, as `Guard.astream` does."""
        once = request._replace(at_most_once=True)
        async with (
            self._abooked(request, deadline) as replies,
            aclosing(self._guard.astream(once, deadline, halt)) as events,
        ):
            async for event in events:
                if isinstance(event, Completion):
                    replies.append(event)
                yield event

    @contextmanager
    def _booked(self, request: Request, deadline: Deadline, halt: Halt) -> Iterator[list[Completion]]:
        """Hold the money for a call that the block makes, and book it by the replies that the block lists."""
        hold, replies, outcome = self._held(request, deadline, halt), list[Completion](), None
        try:
            yield replies
            outcome = self._spending.outcome(request, replies, None)
        except BaseException as error:
            outcome = self._spending.outcome(request, replies, error)
            raise
        finally:
            self._spending.settle(hold, outcome)

    @asynccontextmanager
    async def _abooked(self, request: Request, deadline: Deadline) -> AsyncIterator[list[Completion]]:
        """Like `_booked`. If the ledger is called in a thread, a cancelled caller does not undo the booking."""
        hold, replies, outcome = await self._aheld(request, deadline), list[Completion](), None
        try:
            yield replies
            outcome = self._spending.outcome(request, replies, None)
        except BaseException as error:
            outcome = self._spending.outcome(request, replies, error)
            raise
        finally:
            if self._spending.blocks:
                await asyncio.shield(asyncio.to_thread(self._spending.settle, hold, outcome))
            else:
                self._spending.settle(hold, outcome)

    def _held(self, request: Request, deadline: Deadline, halt: Halt) -> Hold:
        ends_s = time.monotonic() + min(self._spending.wait_s, deadline.remaining_s())
        while isinstance(found := self._reserve(request), Refused):
            self._spending.refuse(found, request, waits=time.monotonic() < ends_s)
            halt.sleep(_POLL_S)
        return found

    def _reserve(self, request: Request) -> Hold | Refused:
        return self._spending.reserve(request, self._key)

    async def _aheld(self, request: Request, deadline: Deadline) -> Hold:
        ends_s = time.monotonic() + min(self._spending.wait_s, deadline.remaining_s())
        while isinstance(found := await self._reserved(request, deadline), Refused):
            self._spending.refuse(found, request, waits=time.monotonic() < ends_s)
            await asyncio.sleep(_POLL_S)
        return found

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
