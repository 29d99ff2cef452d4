"""Caps shared by many requests: the most that a call can cost is held on the ledger before it and settled after it.

`SpendingGuard` takes the place of a `Guard`. A call that does not fit waits while others hold money that they may not
need, and is then refused. A database is queried in a thread, so that it does not block an event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from cascade.budget.caps import Account, Cap, Caps, Hold, MemoryLedger, Refused, label, period, scope, window_of
from cascade.budget.charges import failed_call, most_nano_usd, no_price, paid_call
from cascade.errors import BudgetExceededError, ProviderError, ProviderTimeoutError, StoreError, UsageError
from cascade.money import Price, exact_dollars, nano_usd
from cascade.providers.guard import Guard, Middleware
from cascade.records.link import StoreLink
from cascade.resilience.event_loop import NOT_BEGUN, Deadline, Halt
from cascade.types import Completion, Request, Requester, TextDelta

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.records.ledger import SqlLedger

Ledger: TypeAlias = "MemoryLedger | SqlLedger"
_SLACK_S = 60.0
"""Seconds after the latest possible end of a call at which its hold counts as lost."""
_POLL_S = 0.02
_DAY_S = 86_400.0
_STAND_IN = "stand-in"
"""The owner of holds made by a ledger in this process while the database does not respond."""
_SHARE = 0.1
"""The default limit per key on holds of calls whose callers have left, as a share of the smallest shared cap."""
_LATE_S = 0.05
"""Seconds after a deadline in which the call itself may still report what was late."""
_AHEAD = 4
"""The most pieces of a stream that wait for their reader."""
OUTLIVING: ContextVar[set[asyncio.Task[None]]] = ContextVar("OUTLIVING")
"""The calls of a request of a server that go on without it."""
_Event: TypeAlias = TextDelta | Completion
_Call: TypeAlias = Callable[[Request, Deadline], AsyncGenerator[_Event, None]]


@dataclass(frozen=True)
class Spending:
    """A ledger and the caps on it.

    Args:
        prices: the prices of the models; a call at an unknown price (None) is refused.
        wait_s: how long a call waits for money held by others.
        call_s: the time limit of a call.
        keys: the names of the server's keys; only None if there are none.
        most_unsettled: the limit, in nano-dollars, on holds for callers of one key that left; further calls wait.
        link: the link to a ledger in a database; None for one in memory.
        stand_in: a ledger of this process only, used while the database does not respond, so that each process exceeds
            a cap by at most the cap's size; None: no calls are made then.
    """

    ledger: Ledger
    caps: Caps
    prices: Mapping[str, Price | None]
    wait_s: float
    call_s: float
    most_unsettled: int
    keys: tuple[str | None, ...] = (None,)
    link: StoreLink | None = None
    stand_in: MemoryLedger | None = None
    unsettled: Counter[str | None] = field(default_factory=Counter)
    """Nano-dollars held for calls whose callers have left, by the name of the key."""
    booked: Counter[str | None] = field(default_factory=Counter)
    """Nano-dollars booked since the start of the process, by the name of the key."""

    @classmethod
    def of(cls, config: CascadeConfig) -> Spending:
        """Return the caps of a configuration. Raises ConfigError for a wrong store."""
        budget = config.budget
        ids = {"": None, **{name: entry.id for name, entry in config.models.items()}}
        caps = [
            Cap(at.per, at.window, ids.get(at.name or "", at.name) if at.per == "model" else at.name, nano_usd(at.usd))
            for at in budget.caps
        ]
        url, limit_s = config.ledger_url, config.timeouts.per_store_s
        link = None if url is None else StoreLink("budget", limit_s, url)
        stand_in = MemoryLedger(_STAND_IN) if link is not None and budget.on_unreachable == "allow_and_record" else None
        limit = _SHARE * min(cap.usd for cap in budget.caps)
        limit = nano_usd(limit if budget.unsettled_per_key is None else budget.unsettled_per_key)
        numbers = (budget.wait_s, max(config.timeouts.per_call_s, config.timeouts.per_stream_s), limit)
        shared = _opened(url, limit_s), Caps(caps, budget.zone), config.prices()
        keys = tuple([key.name for key in config.server.keys]) or (None,)
        return cls(*shared, *numbers, keys, link, stand_in)

    @property
    def bookings(self) -> SqlLedger | None:
        """The ledger, if it is in a database; it also counts costs that are not booked yet, or never were."""
        return None if isinstance(self.ledger, MemoryLedger) else self.ledger

    def under(self, now: Spending) -> Spending:
        """Return this ledger, with everything held and pending, under another configuration's caps and prices."""
        stand_in = now.stand_in and (self.stand_in or now.stand_in)
        passed_on = {name: getattr(self, name) for name in ("ledger", "link", "unsettled", "booked")}
        return replace(now, **passed_on, stand_in=stand_in)

    def over(self, guard: Guard | Middleware, key: str | None, finishes: Halt | None = None) -> SpendingGuard:
        """Return a guard whose calls count for a key; with `finishes`, they go on without callers until that halt."""
        return SpendingGuard(self, guard, key) if finishes is None else FinishingGuard(self, guard, key, finishes)

    def reserve(self, request: Request, key: str | None, ends_s: float, ledger: Ledger | None = None) -> Hold | None:
        """Hold the most that a call can cost; None: it should wait for money held by others, as it may until `ends_s`.

        `ledger` takes the place of one that does not respond.

        Raises:
            BudgetExceededError: it does not fit, or its price is unknown.
            StoreError: the ledger cannot be reached.
        """
        if (ask := self.ask(request, key, waits := time.monotonic() < ends_s)) is None:
            return None
        ledger, now_s = ledger or self.ledger, datetime.now(UTC).timestamp()
        hold = ledger.reserve(*ask)
        if isinstance(hold, Refused) and hold.may_fit_later and ledger.recover(now_s):
            hold = ledger.reserve(*ask)
        if not isinstance(hold, Refused):
            return hold
        if hold.may_fit_later and waits:
            return None
        raise _over(hold, request, ask[0], self.caps.ends(hold.account), self.now_s())

    def ask(self, request: Request, key: str | None, waits: bool) -> tuple[int, dict[str, int], float] | None:
        """Return the amount to hold, its caps and when it is lost; None: too much is held for callers that left."""
        amount, unpriced = most_nano_usd(request, self.prices.get(request.model))
        if amount is None:
            raise BudgetExceededError(no_price(request.model, "a cap", unpriced))
        if (unsettled_nano_usd := self.unsettled[key]) and unsettled_nano_usd + amount > self.most_unsettled:
            if waits:
                return None
            raise _unsettled(request.model, unsettled_nano_usd, self.most_unsettled)
        question, now_s = request.question, datetime.now(UTC).timestamp()
        user = None if question.chat is None else question.chat.user  # request.chat may lack the field
        names = {"all": None, "key": key, "user": user, "segment": question.segment, "model": request.model}
        return amount, self.caps.of(names, self.now_s()), now_s + self.call_s + _SLACK_S

    def book(self, hold: Hold, request: Request, replies: Sequence[Completion], failure: BaseException | None) -> int:
        """Book a call and return its cost; if that is unknown, the hold, or the call's cost bound if that is higher.

        A call that had not begun when its caller left costs nothing, nor does one that its provider could not send.
        """
        price, call = self.prices.get(request.model), None
        if replies:
            call = paid_call(request, replies[-1], price)
        elif isinstance(failure, ProviderError):
            call = failed_call(request, failure, price)
        unsent = isinstance(failure, asyncio.CancelledError) and failure.args == (NOT_BEGUN,)
        cost = 0 if unsent or isinstance(failure, UsageError) else None
        if call is not None and (replies or call.billed != "maybe"):
            bound = call.cost_bound_nano_usd
            cost = max(hold.amount, bound) if call.cost_nano_usd is None and bound is not None else call.cost_nano_usd
        self.settle(hold, cost)
        return hold.amount if cost is None else cost

    def settle(self, hold: Hold, cost: int | None) -> None:
        """Settle a hold. This queries no database."""
        if self.stand_in is not None and self.bookings is not None and hold.owner == _STAND_IN:
            self.stand_in.settle(hold, cost)
            self.bookings.book(hold.accounts, hold.amount if cost is None else cost)
        else:
            self.ledger.settle(hold, cost)

    def balances(self) -> Mapping[str, tuple[int, Account]]:
        """Return cap and balance of each account of the current periods, except those that clients name.

        For a quarter of a second, what other processes have just spent counts as held, as does what they lease.
        Raises StoreError.
        """
        now_s, caps = self.now_s(), dict[str, int]()
        for per, name in [("all", None), *(("key", key) for key in self.keys), *(("model", at) for at in self.prices)]:
            caps |= self.caps.of({per: name}, now_s)
        return {name: (cap, self.ledger.account(name)) for name, cap in caps.items()}

    def used(self, count: int, *shares: float) -> Mapping[str, tuple[int, Account]]:
        """Return cap and balance of the accounts of the current periods that have spent the most.

        With shares of the caps: only accounts that have spent such a share, and were not alerted for it.
        """
        now_s = self.now_s()
        meant = [kind for share in shares or (0.0,) for kind in self.caps.accounts(now_s, share)]
        # An account with a smaller cap of its own also matches the larger cap, and must not crowd out another.
        stands = self.ledger.accounts(meant, count + len(meant))
        return {name: (cap, at) for name, at in stands.items() if (cap := self.caps.size(name, now_s)) is not None}

    def now_s(self) -> float:
        """Return the time by the ledger's clock, which decides the day, since clocks of replicas may differ."""
        return datetime.now(UTC).timestamp() if self.bookings is None else self.bookings.now_s()

    def prune(self, now_s: float) -> None:
        """Forget the accounts of days and months that ended a day before a time, once nothing is held on them."""
        oldest = self.caps.periods(now_s - _DAY_S)
        self.ledger.prune(oldest)
        if self.stand_in is not None:
            self.stand_in.prune(oldest)

    def close(self) -> None:
        """Book what can be booked, and release connections."""
        if self.link is not None:
            self.link.close()
        self.ledger.close()


class SpendingGuard(Middleware):
    """A guard that holds and books the cost of its calls. Used like a `Guard`, it also raises BudgetExceededError."""

    def __init__(self, spending: Spending, guard: Guard | Middleware, key: str | None) -> None:
        super().__init__(guard)
        self._spending, self._key = spending, key

    def sent(self, request: Request) -> Request:
        """Return the request, marked not to be retried after a try that may have been billed."""
        return request._replace(at_most_once=True)

    @asynccontextmanager
    async def around(self, request: Request, deadline: Deadline) -> AsyncIterator[list[Completion]]:
        """Hold the money for a call, and book its cost from the reply.

        A cancelled caller does not undo the booking.
        """
        ends_s = time.monotonic() + min(self._spending.wait_s, deadline.remaining_s())
        caller = request.caller or Requester()
        while (hold := await self._reserved(request, ends_s, deadline)) is None:
            if caller.gone:
                raise asyncio.CancelledError(NOT_BEGUN)
            await asyncio.sleep(_POLL_S)
        replies, failure = list[Completion](), None
        try:
            if caller.gone:
                raise asyncio.CancelledError(NOT_BEGUN)  # noqa: TRY301 - booked below
            caller.held_nano_usd = hold.amount
            yield replies
        except BaseException as error:
            failure = error
            raise
        finally:
            self._spending.booked[self._key] += self._spending.book(hold, request, replies, failure)

    async def _reserved(self, request: Request, ends_s: float, deadline: Deadline) -> Hold | None:
        """Get a hold from the ledger. If the caller leaves before the database responds, the hold is released."""
        spending, call = self._spending, (request, self._key, ends_s)
        if (ask := spending.ask(request, self._key, waits=time.monotonic() < ends_s)) is None:
            return None
        if (hold := spending.ledger.carve(*ask)) is not None:
            return hold
        if spending.link is None:
            return spending.reserve(*call)
        within_s = deadline.remaining_s() / 2  # the rest is for the call
        try:
            if (ledger := spending.bookings) is not None:
                reserved = await spending.link.together(ledger.reserve_all, ask, within_s, self._give_back)
                if isinstance(reserved, Hold):
                    return reserved
            return await spending.link.call(spending.reserve, *call, within_s=within_s, late=self._give_back)
        except StoreError as error:
            if spending.stand_in is None or spending.bookings is None:
                reason = f"budget.store cannot be reached ({error}), so no call can be kept under its caps. Try again."
                raise StoreError(reason, retryable=True) from None
        hold = spending.reserve(*call, spending.stand_in)
        spending.bookings.allowed += hold is not None
        return hold

    def _give_back(self, hold: Hold | Refused | None) -> None:
        if isinstance(hold, Hold):
            self._spending.settle(hold, 0)


class FinishingGuard(SpendingGuard):
    """Lets each call go on, in a task of its own, after its caller leaves or the caller's deadline passes.

    So the actual cost is booked, not the highest. Some providers stop when a connection ends, others go on writing and
    billing, and thinking may not be streamed: only the usage at the end of the reply tells the cost.
    """

    def __init__(self, spending: Spending, guard: Guard | Middleware, key: str | None, halt: Halt) -> None:
        super().__init__(spending, guard, key)
        self._halt = halt

    async def complete(self, request: Request, deadline: Deadline) -> Completion:
        """Answer a request."""
        call = super().complete

        async def whole(request: Request, deadline: Deadline) -> AsyncGenerator[_Event, None]:
            yield await call(request, deadline)

        async with aclosing(self._awaited(request, deadline, whole)) as events:
            completion = await anext(events)
        assert isinstance(completion, Completion)  # noqa: S101 - `whole` yields nothing else
        return completion

    def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[_Event, None]:
        """Answer a request as a stream."""
        return self._awaited(request, deadline, super().stream)

    async def _awaited(self, request: Request, deadline: Deadline, call: _Call) -> AsyncGenerator[_Event, None]:
        """Yield the events of a call while the caller stays; the completion comes after the call is booked."""
        caller, came, unsettled = Requester(), asyncio.Queue[_Event | BaseException](_AHEAD), self._spending.unsettled
        events = call(request._replace(caller=caller), deadline)
        task, event = asyncio.create_task(self._pump(events, caller, came)), None
        try:
            while not isinstance(event, Completion):
                async with asyncio.timeout(min(deadline.remaining_s() + _LATE_S, threading.TIMEOUT_MAX)):
                    event = await came.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
        except TimeoutError:
            says = f"{request.model} did not finish in time. Raise timeouts.per_question_s."
            raise ProviderTimeoutError(says, model=request.model, billed="maybe") from None
        finally:
            caller.gone = True
            while not came.empty():  # so that no event waits for room
                came.get_nowait()
            if not task.done():
                OUTLIVING.get(set()).add(task)
                unsettled[self._key] += caller.held_nano_usd
                task.add_done_callback(lambda _: unsettled.subtract({self._key: caller.held_nano_usd}))

    async def _pump(
        self, events: AsyncGenerator[_Event, None], caller: Requester, came: asyncio.Queue[_Event | BaseException]
    ) -> None:
        outcome: _Event | BaseException | None = None
        try:
            with self._halt.covering():
                async with aclosing(events) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Completion):
                            outcome = piece
                        elif not caller.gone:
                            await came.put(piece)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's task
            outcome = error
        assert outcome is not None  # noqa: S101 - a guard's last event is a completion
        if not caller.gone:
            await came.put(outcome)


def _unsettled(model: str, held_nano_usd: int, limit_nano_usd: int) -> BudgetExceededError:
    error = BudgetExceededError(
        f"the next call to {model} does not fit under budget.unsettled_per_key: of {exact_dollars(limit_nano_usd)} "
        f"{exact_dollars(held_nano_usd)} is held by calls whose clients have left. Wait until they have ended."
    )
    error.cap, error.spent, error.retry_after_s, error.public = "unsettled_per_key", True, 1.0, str(error)
    return error


def _over(
    refused: Refused, request: Request, most_nano_usd: int, ends: datetime | None, now_s: float
) -> BudgetExceededError:
    """Return the error for a call that does not fit; it says when the account's period ends if the call fits then."""
    stands, per, name = refused.stands, scope(refused.account), refused.account.partition(" ")[0].partition(":")[2]
    cap = per + label(period(refused.account))
    until = "" if ends is None else f", whose {window_of(refused.account)} ends at {ends.isoformat(timespec='minutes')}"
    says = (
        f"the next call to {request.model} may cost up to {exact_dollars(most_nano_usd)}, which does not fit under "
        f"budget.caps ({cap}) of {'all requests' if per == 'all' else f'the {per} {name}'.rstrip()}{until}"
    )
    error = BudgetExceededError(
        f"{says}: of {exact_dollars(refused.cap)} {exact_dollars(stands.spent)} is spent and "
        f"{exact_dollars(stands.held)} is held by calls under way."
    )
    error.cap, error.spent, error.public = cap, most_nano_usd <= refused.cap, None if per == "key" else f"{says}."
    if error.spent and ends is not None:
        error.retry_after_s = max(0.0, ends.timestamp() - now_s)
    return error


def _opened(url: str | None, limit_s: float | None) -> Ledger:
    if url is None:
        return MemoryLedger()
    from cascade.records.ledger import SqlLedger

    return SqlLedger(url, limit_s)
