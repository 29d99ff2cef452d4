"""A million random steps on the ledger, beside sums that are kept apart: no cap is passed, and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cascade.budget.caps import Hold, MemoryLedger

pytestmark = pytest.mark.long
STEPS, LIVES = 1_000_000, 200
CAPS = {"total": 100_000, "key:a": 60_000, "key:b": 60_000, "day:1": 80_000}


def test_a_million_steps_pass_no_cap_and_lose_nothing():
    rng, steps = random.Random(1), 0
    for _ in range(LIVES):
        ledger, spent, open_ = MemoryLedger(), Counter[str](), list[Hold]()
        day, today = 1, CAPS

        def end(hold: Hold, cost: int, spent: Counter[str] = spent) -> None:
            for name in hold.accounts:
                spent[name] += cost

        for _ in range(STEPS // LIVES):
            steps += 1
            step = rng.random()
            if step < 0.5:
                names = rng.sample(sorted(today), rng.randint(1, 4))
                wanted = {name: today[name] for name in names}
                reserved = ledger.reserve(rng.randint(0, 70), wanted, float(rng.randint(0, 9)))
                if isinstance(reserved, Hold):
                    open_.append(reserved)
            elif step < 0.501:
                name = rng.choice(sorted(today))
                ledger.reset(name, "me")
                spent[name] = 0
            elif step < 0.502:  # it is midnight: calls under way are booked on their day
                day += 1
                today = {name.replace("day:1", f"day:{day}"): cap for name, cap in CAPS.items()}
            elif step < 0.999 and open_:
                hold = open_.pop(rng.randrange(len(open_)))
                cost = rng.randint(0, hold.amount)
                assert ledger.settle(hold, cost)
                assert not ledger.settle(hold, cost)
                end(hold, cost)
            else:
                lost = [hold for hold in open_ if hold.expires_s <= 3.0]
                assert ledger.recover(3.0) == len(lost)
                open_ = [hold for hold in open_ if hold not in lost]
                for hold in lost:
                    end(hold, hold.amount)
            name = rng.choice(sorted(today))
            on_hold = sum(hold.amount for hold in open_ if name in hold.accounts)
            assert ledger.account(name)[:2] == (spent[name], on_hold)
            assert spent[name] + on_hold <= today[name]
    assert steps == STEPS
