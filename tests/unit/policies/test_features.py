"""Features against values worked out by hand, and a request as it is served against the same request in a log."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from cascade.policies.features import asked_numbers, offered, read
from cascade.table import Log, Node
from unit.fitting.random_logs import random_log

NAN = math.nan
LOG = Log(
    name="three",
    nodes=(Node("a", 0), Node("b", 1), Node("c", 2)),
    ids=("x", "y"),
    groups=("x", "y"),
    answer=np.array([[4, 4, 7], [2, -1, 2]]),
    right=np.zeros((2, 3)),
    cost_nano_usd=np.array([[5, 10, 20], [5, -1, 20]]),
    bought=np.ones((2, 3), dtype=bool),
    complete=np.ones(2, dtype=bool),
    confidence=np.array([[0.1, 0.2, NAN], [0.4, 0.5, 0.6]]),
    signals={"gate": np.array([[1.0, 0.0, NAN], [0.0, 1.0, 1.0]]), "reply_tokens": np.full((2, 3), 3.0)},
    features={"words": np.array([9.0, NAN])},
)


@pytest.mark.parametrize(
    ("name", "nodes", "expected"),
    [
        ("gate@2", (0, 2), [NAN, 1.0]),
        ("nothing@0", (0,), [NAN, NAN]),
        ("confidence@1", (1,), [0.2, 0.5]),
        ("same@0,1", (0, 1), [1.0, NAN]),
        ("same@0,2", (0, 2), [0.0, 1.0]),
        ("votes", (0, 1, 2), [2 / 3, 1.0]),
        ("votes", (1,), [1.0, NAN]),
        ("different", (0, 1, 2), [2.0, 1.0]),
        ("tokens", (0, 2), [6.0, 6.0]),
        ("cost", (0, 1), [15.0, NAN]),
        ("request:words", (), [9.0, NAN]),
        ("request:nothing", (), [NAN, NAN]),
    ],
)
def test_values(name: str, nodes: tuple[int, ...], expected: list[float]) -> None:
    assert np.array_equal(read(LOG, nodes, (name,))[:, 0], expected, equal_nan=True)


def test_answers_without_texts_are_not_compared() -> None:
    unknown = replace(LOG, texts_known=np.array([True, False]))
    found = read(unknown, (0, 2), ("same@0,2", "votes", "different"))
    assert np.isnan(found).tolist() == [[False] * 3, [True] * 3]


def test_a_name_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no feature"):
        read(LOG, (0,), ("wisdom",))


def test_no_outcome_and_no_other_node_is_read() -> None:
    log = random_log(3, n=400, whole=True)
    hidden = replace(log.only((0, 1)), right=np.full((400, 2), NAN), reference=None)
    names = offered(log, (0, 1))
    assert names == offered(hidden, (0, 1))
    assert {"reply_mean_logprob@1", "same@0,1", "votes", "request:words"} <= {*names}
    assert len(offered(log, (0, 1), limit=3)) == 3
    assert np.array_equal(read(log, (0, 1), names), read(hidden, (0, 1), names), equal_nan=True)


def test_a_request_alone_has_the_bits_that_it_has_in_the_log() -> None:
    log = random_log(4, n=60)
    names = offered(log, (0, 1, 3))
    raw = read(log, (0, 1, 3), names)
    for row in range(log.n):
        alone = read(log.take(np.array([row])), (0, 1, 3), names)
        assert alone.tobytes() == raw[row].tobytes()


def test_what_says_nothing_is_not_offered() -> None:
    log = random_log(5, n=300, whole=True)
    twin = 2 * log.signals["self_check"]
    seldom = np.where(np.arange(300)[:, None] < 20, log.confidence, NAN)
    more = {"twin": twin, "seldom": seldom, "flat": np.ones((300, 4)), "agrees_with_earlier": log.confidence}
    named = {name.split("@")[0] for name in offered(replace(log, signals={**log.signals, **more}), (0, 1))}
    assert not named & {*more}
    assert "self_check" in named


PIECES = (
    "how many", "How much ", "1how long", "how old_", "why", "WHOSE", "is", "Do", "\u0130", "\u0391\u03a3", "A) ", "(B. ",
    "c: ", "((a) ", "1.5", "2,000.3", "\u00bd", "\u0663", "_x_", "\n", "\x1c", "\u00a0", "na\u00efve", "\u00df", "[]{}",
    "without", "intergovernmental", "\ud800", "\U0001f600", "e\u0301", "\u65e5\u672c", " ", ".", "?", "x" * 1_999,
)  # fmt: skip


def test_numbers_of_many_requests_are_those_of_each_text() -> None:
    chance = random.Random(5)
    texts = ["", *("".join(chance.choices((*PIECES, " "), k=chance.randrange(12))) for _ in range(400))]
    many = asked_numbers(texts, [None] * len(texts), [None] * len(texts))
    for row, text in enumerate(texts):
        head = text[:2_000].strip()
        words = re.findall(r"[^\W\d_]+", head.lower())
        choices = re.findall(r"(?:(?<=\s)|^)\(?[A-Ja-j1-9][).:]\s", head)
        amount = re.search(r"\bhow (?:many|much|long|old|far|often|tall|large|big)\b", head.lower())
        expected = {
            "words": len(text.split()),
            "mean_word": sum(map(len, words)) / (len(words) or 1),
            "digits": len(re.findall(r"\d", head)) / (len(head) or 1),
            "numbers": len(re.findall(r"\d+(?:[.,]\d+)*", head)),
            "choices": len(choices),
            "amount": amount is not None,
            "why_how": amount is None and not {"why", "how"}.isdisjoint(words),
            "yes_no": words[:1] in (["is"], ["do"]),
        }
        assert {name: many[name][row] for name in expected} == expected
        assert {name: values[row] for name, values in many.items()} == {
            name: values[0] for name, values in asked_numbers([text], [None], [None]).items()
        }
