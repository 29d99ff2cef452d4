"""One task as a loop of turns: a policy chooses the model of each turn, and a purse limits the spending."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from shop import Shop, Task

from cascade.budget.charges import Budget, paid_call
from cascade.errors import BudgetExceededError
from cascade.money import Price
from cascade.types import Completion, Message, Question, Request

SMALL, LARGE = "small", "large"
MOST_TURNS, REPLY_TOKENS = 6, 16
_SYSTEM = (
    "You serve a shop's customers with tools. Reply with one line, a tool call or done. Tools: orders NAME lists a "
    "customer's orders. cancel ID cancels a pending order. refund ID refunds a delivered order. address ID NEW ADDRESS "
    "changes where a pending order goes. When the wish is met, or cannot be met, reply done."
)
_EXAMPLE = (
    Message("system", _SYSTEM),
    Message("user", "I am Zoe. I no longer want the teapot."),
    Message("assistant", "orders Zoe"),
    Message("user", "2001 teapot pending; 2002 sofa shipped"),
    Message("assistant", "cancel 2001"),
    Message("user", "ok: status of order 2001 is cancelled"),
    Message("assistant", "done"),
)


class Seen(NamedTuple):
    """What a policy sees before a turn.

    Attributes:
        turn: its number, from 1.
        errors: how many tool calls were refused.
        repeated: whether the last call was one that had been made before.
        left: the share of the budget that is left, 0..1.
    """

    turn: int
    errors: int
    repeated: bool
    left: float


Policy: TypeAlias = Callable[[Seen], str]
Ask: TypeAlias = Callable[[Request], Completion]


class Played(NamedTuple):
    """How a task went. `cost_nano_usd` never exceeds the budget; `stopped` says whether the money ended it."""

    right: bool
    cost_nano_usd: int
    turns: int
    large: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Models:
    """The two models: names and prices by place, and who answers."""

    names: Mapping[str, str]
    prices: Mapping[str, Price]
    ask: Ask


def play(task: Task, policy: Policy, models: Models, budget_nano_usd: int) -> Played:
    """Serve one customer. If the budget does not allow the large model, ask the small one; if neither, end the task."""
    with closing(Shop()) as shop:
        return _play(shop, task, policy, models, budget_nano_usd)


def _play(shop: Shop, task: Task, policy: Policy, models: Models, budget_nano_usd: int) -> Played:
    purse, turns = Budget(budget_nano_usd), [Message("user", task.message)]
    calls, errors, large, stopped = list[str](), 0, 0, False
    for turn in range(1, MOST_TURNS + 1):
        left = 1 - purse.spent_nano_usd / budget_nano_usd
        wanted = policy(Seen(turn, errors, len(calls) != len(set(calls)), left))
        reply = _reply(task, (*_EXAMPLE, *turns), wanted, models, purse)
        if reply is None:
            stopped = True
            break
        place, call = reply
        large += place == LARGE
        if call == "done" or not call:
            break
        result = shop.use(call)
        errors += result.startswith("error")
        calls.append(call)
        turns += [Message("assistant", call), Message("user", result)]
    return Played(shop.state() == task.wanted, purse.spent_nano_usd, len(calls), large, stopped)


def _reply(
    task: Task, messages: tuple[Message, ...], wanted: str, models: Models, purse: Budget
) -> tuple[str, str] | None:
    """Return the model asked and the line it wrote; None if the purse cannot pay for another call."""
    for place in dict.fromkeys((wanted, SMALL)):
        price, question = models.prices[place], Question(task.message)
        request = Request(models.names[place], messages, place, "answer", 1, question, REPLY_TOKENS)
        try:
            hold = purse.hold(request, price)
        except BudgetExceededError:
            continue
        completion = models.ask(request)
        call = paid_call(request, completion, price)
        purse.settle(hold, call.cost_nano_usd)
        return place, completion.text.strip().split("\n")[0].strip(" .`")
    return None


@dataclass(frozen=True, slots=True)
class Switch:
    """Ask the small model until a turn, so many refusals, or a repeated call; from then on the large one.

    Args:
        turn: from this turn on the large one.
        errors: from so many refusals on; 0 for never.
        repeats: whether a repeated call calls for it.
        spare: the large one only while at least this share of the money is left.
    """

    turn: int
    errors: int = 0
    repeats: bool = False
    spare: float = 0.0

    def __call__(self, seen: Seen) -> str:
        """Return who is asked."""
        wanted = seen.turn >= self.turn or 0 < self.errors <= seen.errors or (self.repeats and seen.repeated)
        return LARGE if wanted and seen.left >= self.spare else SMALL


ALWAYS_SMALL, ALWAYS_LARGE = Switch(MOST_TURNS + 1), Switch(1)


def candidates() -> Iterator[Switch]:
    """Yield what is learned from: the two boundaries, and switches between them."""
    yield from (ALWAYS_SMALL, ALWAYS_LARGE)
    for turn in (2, 3, MOST_TURNS + 1):
        yield from (Switch(turn), Switch(turn, errors=1, repeats=True), Switch(turn, errors=2, repeats=True, spare=0.3))
