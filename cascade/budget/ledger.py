"""A question's purse: every call is held at its worst price before it is made and settled at its real one after.

Checking the money already spent before the next call overshoots the cap by a whole call; holding the maximum first
cannot (`design/money.md`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from cascade.budget.charges import most_nano_usd
from cascade.errors import BudgetExceededError
from cascade.money import Price, usd
from cascade.types import Request


@dataclass(slots=True)
class QuestionBudget:
    """The cap of one question, in nano-dollars. None is no cap, and then nothing is refused."""

    limit_nano_usd: int | None = None
    spent_nano_usd: int = 0

    def hold(self, request: Request, price: Price | None) -> int:
        """Return the most that a call can cost, having made sure that it fits; 0 without a cap.

        Raises:
            BudgetExceededError: the call could pass the cap, or its price is not known under a cap (F23).
        """
        if self.limit_nano_usd is None:
            return 0
        model = request.model
        bound, unpriced = most_nano_usd(request, price)
        if bound is None:
            cap = f"the cap of ${usd(self.limit_nano_usd).normalize():f} a question"
            raise BudgetExceededError(no_price(model, cap, unpriced))
        if self.spent_nano_usd + bound > self.limit_nano_usd:
            raise BudgetExceededError(
                f"the next call to {model} may cost up to ${usd(bound).normalize():f}; "
                f"${usd(self.spent_nano_usd).normalize():f} of the cap of "
                f"${usd(self.limit_nano_usd).normalize():f} is spent. Raise budget.per_question or lower max_tokens."
            )
        return bound

    def settle(self, hold_nano_usd: int, cost_nano_usd: int | None) -> None:
        """Book what a call really cost; an unknown cost is booked at the full hold (F20)."""
        self.spent_nano_usd += hold_nano_usd if cost_nano_usd is None else cost_nano_usd


class SharedBudget:
    """One cap for calls that run side by side, in nano-dollars. None is no cap. Safe between threads.

    A hold that does not fit waits while others are in flight, since they may cost less than they hold (F32).
    """

    def __init__(self, limit_nano_usd: int | None = None, spent_nano_usd: int = 0) -> None:
        self.limit_nano_usd = limit_nano_usd
        self.spent_nano_usd = spent_nano_usd
        self._held = 0
        self._changed = threading.Condition()

    def hold(self, request: Request, price: Price | None) -> int:
        """Return the most that a call can cost, having made sure that it fits; 0 without a price or a cap.

        Raises:
            BudgetExceededError: it could pass the cap with nothing else in flight, or its price is not known.
        """
        if self.limit_nano_usd is None:
            return 0
        bound, unpriced = most_nano_usd(request, price)
        if bound is None:
            raise BudgetExceededError(no_price(request.model, "a cap", unpriced))
        with self._changed:
            while self.spent_nano_usd + self._held + bound > self.limit_nano_usd:
                if not self._held:
                    raise BudgetExceededError(
                        f"the next call to {request.model} may cost up to ${usd(bound).normalize():f}; "
                        f"${usd(self.spent_nano_usd).normalize():f} of the cap of "
                        f"${usd(self.limit_nano_usd).normalize():f} is spent."
                    )
                self._changed.wait()
            self._held += bound
        return bound

    def settle(self, hold_nano_usd: int, cost_nano_usd: int | None) -> None:
        """Book what a call really cost; an unknown cost is booked at the full hold."""
        with self._changed:
            self._held -= hold_nano_usd
            self.spent_nano_usd += hold_nano_usd if cost_nano_usd is None else cost_nano_usd
            self._changed.notify_all()


def no_price(model: str, cap: str, unpriced: str | None) -> str:
    """Return what is said of a call that no cap can hold."""
    if unpriced is None:
        return f"{model} has no known price, so no call to it can be kept under {cap}. Give it a price under models."
    return f"{model} has no known price for {unpriced}, so no such call can be kept under {cap}. Leave it out."
