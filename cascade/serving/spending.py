"""Caps on what many requests spend together: each call is held on the ledger before it is made, and booked after it.

`SpendingGuard` stands where a `Guard` does. A call that does not fit waits while others hold money that they may not
need, and is then refused. Ledgers in a database are asked in a thread, so that no event loop stands still.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from cascade.budget.caps import Caps, Hold, Ledger, LedgerDownError, MemoryLedger, Refused, ends_s, new_id
from cascade.budget.charges import failed_call, most_nano_usd, no_price, paid_call
from cascade.errors import BudgetExceededError, CascadeError, ProviderError, quote
from cascade.money import Price, exact_dollars, nano_usd
from cascade.resilience.halting import Halt
from cascade.resilience.retry import Deadline
from cascade.types import Call, Completion, Request, TextDelta

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.providers.guard import Guard
    from cascade.telemetry import TracedGuard

logger = logging.getLogger("cascade")
_SLACK_S = 60.0
"""A hold is taken for lost so long after its call must have ended."""
_POLL_S = 0.02


class Beside(NamedTuple):
    """What a call that is begun early runs beside (`begun`).

    Attributes:
        request: the call that is made at the same moment.
        held: is called once there is money for the early call, or it is refused; the other call waits for that.
    """

    request: Request
    held: Callable[[], None]


@dataclass(frozen=True)
class Spending:
    """A ledger and the caps on it.

    Args:
        ledger: the accounts.
        caps: what each may spend at most.
        prices: of the models, None where unknown: a call at an unknown price is refused.
        wait_s: how long a call waits for money that others hold.
        call_s: how long a call may take.
        owner: whose holds they are.
    """

    ledger: Ledger
    caps: Caps
    prices: Mapping[str, Price | None]
    wait_s: float
    call_s: float
    owner: str = field(default_factory=new_id)

    @classmethod
    def of(cls, config: CascadeConfig) -> Spending:
        """Return what a configuration says. Raises ConfigError for a wrong store."""
        from cascade.config import ledger_url

        budget = config.budget
        caps = Caps(
            **{name: None if (cap := getattr(budget, name)) is None else nano_usd(cap) for name in budget.shared}
        )
        url = ledger_url(budget)
        return cls(_opened(url), caps, config.prices(), budget.wait_s, config.timeouts.per_call_s)

    def over(self, guard: Guard | TracedGuard, key: str | None, beside: Beside | None = None) -> SpendingGuard:
        """Return a guard whose calls are counted for a key of the server; `beside` of one that is begun early."""
        return SpendingGuard(self, guard, key) if beside is None else _EarlyGuard(self, guard, key, beside)

    def reserve_both(self, request: Request, other: Request, key: str | None) -> Hold | Refused:
        """Hold the most that a call can cost, if there is room for another call besides. Raises as `reserve`."""
        room = self.reserve(other, key)
        if isinstance(room, Refused):
            return room
        try:
            return self.reserve(request, key)
        finally:
            self.give_back(room)

    def reserve(self, request: Request, key: str | None) -> Hold | Refused:
        """Hold the most that a call can cost.

        Raises:
            BudgetExceededError: its price is not known.
            StoreError: the ledger cannot be reached, so that no call can be kept under its caps.
        """
        amount, unpriced = most_nano_usd(request, self.prices.get(request.model))
        if amount is None:
            raise BudgetExceededError(no_price(request.model, "a cap", unpriced))
        user, now_s = None if request.chat is None else request.chat.user, datetime.now(UTC).timestamp()
        wanted = self.caps.of(key, user, now_s)
        expires_s = now_s + self.call_s + _SLACK_S
        try:
            found = self.ledger.reserve(amount, wanted, self.owner, expires_s)
            if isinstance(found, Refused) and found.may_fit_later and self.ledger.recover(now_s):
                return self.ledger.reserve(amount, wanted, self.owner, expires_s)
        except LedgerDownError as error:
            raise _down(str(error)) from None
        return found

    def refuse(self, found: Refused, request: Request, *, waits: bool) -> None:
        """Raise BudgetExceededError, unless the call is to wait for money that others hold."""
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
        """Book a call at its cost; at its bound, if that is more, where it is not known; in full where nothing is."""
        cost = None if outcome is None else outcome.cost_nano_usd
        if cost is None and outcome is not None and outcome.cost_bound_nano_usd is not None:
            cost = max(hold.amount, outcome.cost_bound_nano_usd)
        self._end(hold, cost)

    def give_back(self, hold: Hold) -> None:
        """End a hold whose call was never made."""
        self._end(hold, 0)

    def _end(self, hold: Hold, cost: int | None) -> None:
        """Settle a hold. Where the ledger cannot be reached it is booked in full later, and the answer is served."""
        try:
            self.ledger.settle(hold, cost)
        except LedgerDownError as error:
            logger.warning("budget.store cannot be reached (%s): a call will be booked at the most it can cost.", error)

    def failed(self, request: Request, error: BaseException) -> Call | None:
        """Return what a call that failed may have cost; None where nothing is known of it."""
        if not isinstance(error, ProviderError):
            return None
        call = failed_call(request, error, self.prices.get(request.model))
        return None if call.billed == "maybe" else call

    def paid(self, request: Request, completion: Completion) -> Call:
        """Return what a call cost."""
        return paid_call(request, completion, self.prices.get(request.model))

    @property
    def blocks(self) -> bool:
        """Whether the ledger has to be asked in a thread."""
        return not isinstance(self.ledger, MemoryLedger)


class SpendingGuard:
    """A guard whose calls are held and booked. It is used as a `Guard` is, and raises BudgetExceededError besides."""

    def __init__(self, spending: Spending, guard: Guard | TracedGuard, key: str | None) -> None:
        self._spending, self._guard, self._key = spending, guard, key

    def complete(self, request: Request, deadline: Deadline, halt: Halt) -> Completion:
        """Answer a request, as `Guard.complete` does."""
        hold = self._held(request, deadline, halt)
        outcome = None
        try:
            completion = self._guard.complete(request._replace(at_most_once=True), deadline, halt)
            outcome = self._spending.paid(request, completion)
        except BaseException as error:
            outcome = self._spending.failed(request, error)
            raise
        finally:
            self._spending.settle(hold, outcome)
        return completion

    async def acomplete(self, request: Request, deadline: Deadline, halt: Halt) -> Completion:
        """Answer a request, as `Guard.acomplete` does."""
        hold = await self._aheld(request, deadline)
        outcome = None
        try:
            completion = await self._guard.acomplete(request._replace(at_most_once=True), deadline, halt)
            outcome = self._spending.paid(request, completion)
        except BaseException as error:
            outcome = self._spending.failed(request, error)
            raise
        finally:
            await self._settled(hold, outcome)
        return completion

    def stream(self, request: Request, deadline: Deadline, halt: Halt) -> Iterator[TextDelta | Completion]:
        """Answer a request in pieces, as `Guard.stream` does."""
        hold = self._held(request, deadline, halt)
        outcome = None
        try:
            for event in self._guard.stream(request._replace(at_most_once=True), deadline, halt):
                if isinstance(event, Completion):
                    outcome = self._spending.paid(request, event)
                yield event
        except BaseException as error:
            outcome = outcome or self._spending.failed(request, error)
            raise
        finally:
            self._spending.settle(hold, outcome)

    async def astream(
        self, request: Request, deadline: Deadline, halt: Halt
    ) -> AsyncGenerator[TextDelta | Completion, None]:
        """Answer a request in pieces, as `Guard.astream` does."""
        hold = await self._aheld(request, deadline)
        outcome = None
        try:
            async with aclosing(self._guard.astream(request._replace(at_most_once=True), deadline, halt)) as events:
                async for event in events:
                    if isinstance(event, Completion):
                        outcome = self._spending.paid(request, event)
                    yield event
        except BaseException as error:
            outcome = outcome or self._spending.failed(request, error)
            raise
        finally:
            await self._settled(hold, outcome)

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
        """Ask the ledger for a hold. Where the caller leaves before it has answered, the hold is given back."""
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

    async def _settled(self, hold: Hold, outcome: Call | None) -> None:
        """Settle; where the ledger is asked in a thread, a cancelled caller does not undo it."""
        if self._spending.blocks:
            await asyncio.shield(asyncio.to_thread(self._spending.settle, hold, outcome))
        else:
            self._spending.settle(hold, outcome)


class _EarlyGuard(SpendingGuard):
    """A guard of a call that is begun early: it waits for no money, and leaves room for the call beside it."""

    def __init__(self, spending: Spending, guard: Guard | TracedGuard, key: str | None, beside: Beside) -> None:
        super().__init__(spending, guard, key)
        self._beside = beside

    def _held(self, request: Request, deadline: Deadline, halt: Halt) -> Hold:  # noqa: ARG002 - it does not wait
        try:
            return self._or_refused(self._reserve(request), request)
        finally:
            self._beside.held()

    async def _aheld(self, request: Request, deadline: Deadline) -> Hold:
        try:
            return self._or_refused(await self._reserved(request, deadline), request)
        finally:
            self._beside.held()

    def _reserve(self, request: Request) -> Hold | Refused:
        return self._spending.reserve_both(request, self._beside.request, self._key)

    def _or_refused(self, found: Hold | Refused, request: Request) -> Hold:
        if isinstance(found, Refused):
            raise BudgetExceededError(f"the caps that requests share have no room for {request.model} besides.")
        return found


def _down(why: str) -> CascadeError:
    from cascade.episodes.store import StoreError

    says = f"budget.store cannot be reached ({why}), so no call can be kept under its caps. Try again."
    return StoreError(says, retryable=True)


_WORDS = {"key": "per_key", "user": "per_user", "day": "per_day", "month": "per_month", "total": "total"}


def _opened(url: str | None) -> Ledger:
    if url is None:
        return MemoryLedger()
    from cascade.budget.sql_ledger import SqlLedger
    from cascade.episodes.store import StoreError, parse
    from cascade.episodes.store.address import made_ready

    address = parse(url)
    try:
        if address.path is None:
            return SqlLedger.postgres(address.url.replace("postgresql+psycopg://", "postgresql://", 1))
        made_ready(address)
        return SqlLedger.sqlite(address.path)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"psycopg", "sqlite3"}:
            raise
        said = quote(str(error)).rstrip(".")
        raise StoreError(f"budget.store: {address.shown} cannot be used: {said}.", retryable=True) from None
