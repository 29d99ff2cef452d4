"""A small shop: its database, the tools over it, and 60 tasks that are checked by the final state of the database."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
ITEMS = ("lamp", "chair", "kettle", "clock", "scarf", "radio", "mirror", "bowl", "rug", "vase")
STREETS = ("Oak Street 3", "Mill Lane 8", "Park Road 21", "Hill Street 5", "Lake Road 14")
SEED = 16


class Shop:
    """Orders in a database in memory. Each tool returns one line, which begins with "error" where it refuses."""

    def __init__(self) -> None:
        self._orders = sqlite3.connect(":memory:")
        self._orders.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name, item, status, address)")
        drawn = random.Random(SEED)
        rows = [
            (1000 + 10 * person + place, name, item, status, drawn.choice(STREETS))
            for person, name in enumerate(NAMES)
            for place, (item, status) in enumerate(
                zip(drawn.sample(ITEMS, 3), ("pending", "shipped", "delivered"), strict=True)
            )
        ]
        self._orders.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)

    def use(self, call: str) -> str:
        """Return what a tool says: `orders NAME`, `cancel ID`, `refund ID` or `address ID NEW ADDRESS`."""
        tool, _, rest = call.strip().partition(" ")
        if tool == "orders":
            return self._of(rest.strip())
        known: dict[str, Callable[[str], str]] = {
            "cancel": lambda number: self._set(number, "pending", "status", "cancelled"),
            "refund": lambda number: self._set(number, "delivered", "status", "refunded"),
        }
        if tool == "address":
            number, _, address = rest.strip().partition(" ")
            return self._set(number, "pending", "address", address.strip()) if address else "error: no address"
        return known[tool](rest.strip()) if tool in known else f"error: there is no tool {tool[:20]}"

    def _of(self, name: str) -> str:
        orders = self._orders.execute("SELECT id, item, status FROM orders WHERE name = ? ORDER BY id", (name,))
        return (
            "; ".join(f"{number} {item} {status}" for number, item, status in orders)
            or f"error: no orders of {name[:20]}"
        )

    def _set(self, number: str, needed: str, column: str, value: str) -> str:
        status = self._orders.execute("SELECT status FROM orders WHERE id = ?", (number,)).fetchone()
        if status is None:
            return f"error: no order {number[:20]}"
        if status[0] != needed:
            return f"error: order {number} is {status[0]}, not {needed}"
        self._orders.execute(f"UPDATE orders SET {column} = ? WHERE id = ?", (value, number))  # noqa: S608 - our own names
        return f"ok: {column} of order {number} is {value}"

    def state(self) -> tuple[tuple[object, ...], ...]:
        """Return every order."""
        return tuple(self._orders.execute("SELECT * FROM orders ORDER BY id"))

    def close(self) -> None:
        """Drop the database."""
        self._orders.close()


class Task(NamedTuple):
    """What a customer writes, and the calls that do it right; their final state is what counts."""

    name: str
    message: str
    calls: tuple[str, ...]

    @property
    def wanted(self) -> tuple[tuple[object, ...], ...]:
        """The state of a shop in which the task is done."""
        with closing(Shop()) as shop:
            for call in self.calls:
                shop.use(call)
            return shop.state()


def tasks() -> tuple[Task, ...]:
    """Return the 60 tasks, six of each of ten customers, in a random order that is always the same."""
    with closing(Shop()) as shop:
        drawn = [task for person, name in enumerate(NAMES) for task in _of(shop, person, name)]
    random.Random(SEED).shuffle(drawn)
    return tuple(drawn)


def _of(shop: Shop, person: int, name: str) -> Iterator[Task]:
    orders = [(row[0], row[2], row[4]) for row in shop.state()[3 * person : 3 * person + 3]]
    (first, item, home), (second, _, _), (third, last, _) = orders
    street = next(street for street in (STREETS[person % len(STREETS)], *STREETS) if street != home)
    hello = f"I am {name}."
    yield Task(f"cancel {first}", f"{hello} Please cancel order {first}.", (f"cancel {first}",))
    yield Task(f"refund {third}", f"{hello} I sent back order {third}. Refund it.", (f"refund {third}",))
    yield Task(f"address {first}", f"{hello} Send order {first} to {street}.", (f"address {first} {street}",))
    yield Task(f"cancel by item {first}", f"{hello} I no longer want the {item}.", (f"cancel {first}",))
    yield Task(f"refund by item {third}", f"{hello} My {last} arrived broken, I want a refund.", (f"refund {third}",))
    yield Task(f"too late {second}", f"{hello} Cancel order {second} if it has not been shipped yet.", ())
