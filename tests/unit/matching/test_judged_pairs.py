"""A model says whether two outputs serve a request equally well, and is asked in both orders."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cascade.chat import ChatRequest
from cascade.matching import get_comparator
from cascade.types import Message

REQUEST = ChatRequest([{"role": "user", "content": "Say hello."}])


@pytest.mark.parametrize(
    ("replies", "same"),
    [
        (("Equal", "Equal."), True),
        (("First", "Second"), False),
        (("Second.", "**First**, it is politer"), False),
        (("First", "First"), None),
        (("Equal", "First"), None),
        (("First", "Equal"), None),
        (("neither", "Equal"), None),
        (("Equal or first", "Equal"), None),
        (("", ""), None),
    ],
)
def test_both_orders_have_to_say_the_same(replies: tuple[str, str], same: bool | None) -> None:
    asked: list[str] = []

    def ask(messages: Sequence[Message]) -> str:
        asked.append(messages[-1].content)
        return replies[len(asked) - 1]

    comparator = get_comparator("judge", ask=ask)
    assert comparator.same("Hello", "Good day", REQUEST) is same
    assert len(asked) == 2
    assert asked[0].index("Hello") < asked[0].index("Good day")
    assert asked[1].index("Good day") < asked[1].index("Hello")


def test_equal_texts_are_not_paid_for() -> None:
    comparator = get_comparator("judge", ask=lambda _: pytest.fail("asked"))
    assert comparator.same("Hello ", "Hello", REQUEST) is True


def test_a_users_function_compares_two_outputs() -> None:
    comparator = get_comparator("function", function=lambda one, gold: one[0] == gold[0][0])
    assert comparator.same("Hello", "Hi") is True
    assert comparator.same("Hello", "Bye") is False
