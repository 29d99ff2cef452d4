"""Features: named numbers of a walk that has bought some nodes, as columns of a log.

A name defines a feature completely, so a policy's file needs no code:

    p_yes@2             a signal of node 2, numbered from 0 in the policy's own plan
    confidence@2        the plan's own estimate that the answer of node 2 is right
    same@0,2            1 if nodes 0 and 2 gave the same answer, else 0
    votes, different    the largest share of answers that are the same; how many different answers there are
    tokens, cost        of all nodes bought so far: tokens of the replies; nano-USD
    request:words       a number of the request, known before any call

Unknown is NaN: a number that is not on record, or a comparison of answers that cannot be compared. The same code reads
a whole log and the log of one row that is being served: values are copied, compared and counted, and all sums run
element by element in a fixed order, without a matrix product, so both give the same bits.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from cascade.policies.signals import CHECKS, OF_SAMPLES, SHARES, VERDICTS
from cascade.table import AGREEMENT, COST, Bools, Floats, Log

if TYPE_CHECKING:
    from cascade.chat import ChatRequest

REQUEST = "request:"
TOKENS = "reply_tokens"
"""The signal of a node that counts the tokens of its reply."""
FIRST = (
    *VERDICTS, "reply_mean_logprob", "answer_mean_logprob", "self_check", *CHECKS, *SHARES, *OF_SAMPLES,
    "answer_token_entropy", "answer_min_logprob",
)  # fmt: skip
"""The signals that are offered first: they say most about how good an answer is."""
MOST = 40
"""The most features of a rule, unless it sets another number: all of a chat request. With 20, tool calls cost more."""
_LEAST_KNOWN, _TOO_EQUAL, _TOO_ALIKE = 0.1, 0.99, 0.999
"""A feature that is known for a smaller share of requests, has one value for a larger share, or correlates more with an
earlier one is not offered."""
_ROWS = 5_000
"""The number of requests on which features are compared."""
_COMPARES = re.compile(r"same@([0-9]+),([0-9]+)")
_OF_NODE = re.compile(r"(.+)@([0-9]+)")


def read(log: Log, nodes: Sequence[int], names: Sequence[str]) -> Floats:
    """Return features of a walk that has bought these nodes, in the order of purchase: float64 (n, d); NaN: unknown.

    Other nodes are not read.
    """
    columns = [_value(log, nodes, name) for name in names]
    return np.stack(columns, axis=1) if columns else np.empty((log.n, 0))


def signals_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the signals that features are made of, each once.

    >>> signals_of(["p_yes@1", "tokens", "same@0,1", "request:words", "p_yes@0", "votes"])
    ('p_yes', 'reply_tokens')
    """
    comparisons = ("same@", "confidence@")
    named = (f"{TOKENS}@" if name == "tokens" else name for name in names)
    signals = ("" if name.startswith(comparisons) else name.rpartition("@")[0] for name in named)
    return tuple(dict.fromkeys(filter(None, signals)))


def columns_of(names: Sequence[str]) -> frozenset[str]:
    """Return what a policy of these features may read (`Policy.columns`)."""
    of_request = any(name.startswith(REQUEST) for name in names)
    return frozenset(signals_of(names)).union({REQUEST.removesuffix(":")} if of_request else ())


def _value(log: Log, nodes: Sequence[int], name: str) -> Floats:
    if name.startswith(REQUEST):
        return log.features.get(name.removeprefix(REQUEST), np.full(log.n, np.nan))
    if name in {"tokens", "cost"}:
        return _so_far(log, nodes, name)
    if match := _COMPARES.fullmatch(name):
        first, second = log.answer[:, int(match[1])], log.answer[:, int(match[2])]
        return _where_comparable(log, (first >= 0) & (second >= 0), np.where(first == second, 1.0, 0.0))
    if match := _OF_NODE.fullmatch(name):
        columns = log.confidence if match[1] == "confidence" else log.signals.get(match[1])
        return np.full(log.n, np.nan) if columns is None else columns[:, int(match[2])]
    return _counted(log, nodes, name)


def _so_far(log: Log, nodes: Sequence[int], name: str) -> Floats:
    """Return the sum of a number over the nodes, in their order; NaN if one is unknown or hidden."""
    total = np.zeros(log.n)
    tokens = log.signals.get(TOKENS, np.full(log.answer.shape, np.nan))
    for node in nodes:
        cost = log.cost_nano_usd[:, node]
        total = total + (
            tokens[:, node] if name == "tokens" else np.where((cost >= 0) & (COST not in log.hidden), cost, np.nan)
        )
    return total


def _counted(log: Log, nodes: Sequence[int], name: str) -> Floats:
    """Return `votes` or `different`; unknown without an answer."""
    answer = log.answer[:, list(nodes)]
    answered = answer >= 0
    equal = (answer[:, :, None] == answer[:, None, :]) & answered[:, :, None]
    count = np.count_nonzero(answered, axis=1)
    if name == "votes":
        return _where_comparable(log, count > 0, np.count_nonzero(equal, axis=1).max(axis=1) / np.maximum(count, 1))
    if name == "different":
        repeated = (equal & np.tri(len(nodes), k=-1, dtype=np.bool_)).any(axis=2)
        return _where_comparable(log, count > 0, np.count_nonzero(answered & ~repeated, axis=1).astype(np.float64))
    raise ValueError(f"features: there is no feature {name!r}")


def _where_comparable(log: Log, comparable: Bools, values: Floats) -> Floats:
    return np.where(comparable if log.texts_known is None else comparable & log.texts_known, values, np.nan)


# --- what is offered


def offered(log: Log, nodes: Sequence[int], limit: int = MOST) -> tuple[str, ...]:
    """Return the names of at most `limit` features worth fitting on, the most informative kind first.

    Features that are seldom known, hardly vary or repeat an earlier one are left out. No outcome is read.
    """
    chosen: dict[str, Floats] = {}
    sample = log.take(np.arange(0, log.n, max(1, log.n // _ROWS)))
    for name in _candidates(log, nodes):
        values = _value(sample, nodes, name)
        if _varies(values) and not any(_alike(values, earlier) for earlier in chosen.values()):
            chosen[name] = values
            if len(chosen) == limit:
                break
    return tuple(chosen)


def _candidates(log: Log, nodes: Sequence[int]) -> Iterator[str]:
    """Yield names: signals of the newest node, comparisons, first signals of earlier nodes, sums, those of requests."""
    *earlier, newest = nodes or (None,)
    signals = log.signals.keys() - {AGREEMENT, *log.hidden}  # `same`, `votes` and `different` cover it
    ranked = [name for name in FIRST if name in signals] + sorted(signals - {*FIRST})
    if newest is not None:
        yield from (f"{name}@{newest}" for name in (*ranked[:1], "confidence", *ranked[1:]))
    if newest is not None and earlier:
        yield from (f"same@{node},{newest}" for node in reversed(earlier))
        yield from ("votes", "different")
        yield from (f"{name}@{node}" for node in reversed(earlier) for name in (*ranked[:1], "confidence"))
        yield from ("tokens", "cost")
    yield from (REQUEST + name for name in sorted(log.features))


def _varies(values: Floats) -> bool:
    finite = values[np.isfinite(values)]
    if not finite.size or finite.size < _LEAST_KNOWN * values.size:
        return False
    return float(np.unique(finite, return_counts=True)[1].max()) <= _TOO_EQUAL * finite.size


def _alike(first: Floats, second: Floats) -> bool:
    """Return whether two features are known for the same requests, and are almost perfectly correlated."""
    finite = np.isfinite(first)
    if (finite != np.isfinite(second)).any():
        return False
    a, b = first[finite] - first[finite].mean(), second[finite] - second[finite].mean()
    return bool(abs((a * b).sum()) > _TOO_ALIKE * np.sqrt((a * a).sum() * (b * b).sum()))


# --- the numbers of a request, known before any call

HEAD_CHARS = 2_000
"""All counts except those of the whole text use only this many characters from its start, to bound the time."""
_LONG_LETTERS = 13
_CAPITALS, _DIGITS, _MARKS = string.ascii_uppercase.encode(), string.digits.encode(), b"][{}()<>=+*/\\|_^$;#&%~@"
_WORD_LETTERS = bytes([ord(chr(code).lower()) if chr(code).isalpha() and code < 128 else 32 for code in range(256)])
"""The table that keeps only the letters of an ASCII text, in lower case."""
_NUMERALS = bytes([48 if chr(code) in string.digits else 46 if chr(code) in ".," else 32 for code in range(256)])
"""The table that keeps only its digits, as 0, and the signs that may join them, as a point."""
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_LABELS = frozenset(
    f"{opens}{sign}{closes}" for opens in ("", "(") for sign in "ABCDEFGHIJabcdefghij123456789" for closes in ").:"
)
"""The labels of choices, each a word of its own."""
_AMOUNT = re.compile(r"\bhow (?:many|much|long|old|far|often|tall|large|big)\b")
_WORDS = {
    "negated": frozenset({"not", "except", "never", "neither", "nor", "without", "cannot", "least"}),
    "who": frozenset({"who", "whom", "whose"}),
    "when_where": frozenset({"when", "where"}),
    "which": frozenset({"which", "what"}),
}
"""Features of whether the text has one of these words."""
_WHY_HOW = frozenset({"why", "how"})
_YES_NO = frozenset(
    ["is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "had", "will", "would", "should"]
)
_LISTED = _WHY_HOW.union(*_WORDS.values())
_NUMBERS = (
    "characters", "words", "mean_word", "long_words", "capitals", "digits", "marks", "numbers", "choices", "lines",
    *_WORDS, "amount", "why_how", "yes_no",
)  # fmt: skip


def asked_numbers(
    texts: Sequence[str], contexts: Sequence[str | None], chats: Sequence[ChatRequest | None]
) -> dict[str, Floats]:
    """Return the features of requests: of their texts, and of chat requests (`design/fitting.md` lists them).

    They are counts and ratios, float64 (n,), so that their last bit depends on no library; NaN: not a chat request.

    >>> numbers = asked_numbers(["How many legs have 2 spiders?"], [None], [None])
    >>> [numbers[name].tolist() for name in ("words", "numbers", "amount", "who", "has_context")]
    [[6.0], [1.0], [1.0], [0.0], [0.0]]
    """
    characters = np.array([len(context or "") for context in contexts], dtype=np.float64)
    about = {"has_context": (characters > 0).astype(np.float64), "context_characters": characters}
    requests = [None if chat is None else _of_request(chat) for chat in chats]
    names = dict.fromkeys(name for request in requests if request for name in request)
    of_chats = {name: np.array([np.nan if each is None else each[name] for each in requests]) for name in names}
    rows = np.fromiter(chain.from_iterable(map(_of_text, texts)), dtype=np.float64, count=len(texts) * len(_NUMBERS))
    of_texts = rows.reshape(len(texts), len(_NUMBERS)).T.copy()
    return {**dict(zip(_NUMBERS, of_texts, strict=True)), **about, **of_chats}


@lru_cache(maxsize=256)
def _of_request(request: ChatRequest) -> dict[str, float]:
    from cascade.chat import function_of, text_of  # only for chat requests

    roles = [message.get("role") for message in request.messages]
    texts = [text_of(message.get("content")) for message in request.messages]
    schemas = [function_of(tool).get("parameters") for tool in request.tools]
    objects = [schema for schema in schemas if isinstance(schema, Mapping)]
    return {
        "messages": float(len(roles)),
        "turns": float(roles.count("user")),
        "system_characters": float(
            sum([len(text) for role, text in zip(roles, texts, strict=True) if role in {"system", "developer"}])
        ),
        "tools_offered": float(len(request.tools)),
        "tool_parameters": float(sum([_size(schema.get("properties")) for schema in objects])),
        "tool_required": float(sum([_size(schema.get("required")) for schema in objects])),
        "wants_json": float(request.wants_json),
    }


def _size(value: object) -> int:
    return len(value) if isinstance(value, Mapping | list) else 0


def _of_text(text: str) -> tuple[float, ...]:
    """Return the features of a text, in the order of `_NUMBERS`. Takes some 8 µs for 130 characters."""
    head = text[:HEAD_CHARS].strip()
    lowered, signs, size, spaced = head.lower(), head.encode("ascii", "replace"), len(head) or 1, head.split()
    if head.isascii():
        words, digits = signs.translate(_WORD_LETTERS).decode().split(), _count(signs, _DIGITS)
        joined = signs.translate(_NUMERALS).replace(b"..", b" ").split()
        numbers = len(joined) - joined.count(b".")
    else:
        words, digits, numbers = _WORD.findall(lowered), sum(map(str.isdecimal, head)), len(_NUMBER.findall(head))
    distinct, count = _LISTED.intersection(words), len(words) or 1
    amount = "how" in distinct and _AMOUNT.search(lowered) is not None
    return (
        len(text),
        len(spaced) if len(text) <= HEAD_CHARS else len(text.split()),
        len("".join(words)) / count,
        len([word for word in words if len(word) >= _LONG_LETTERS]) / count,
        _count(signs, _CAPITALS) / size,
        digits / size,
        _count(signs, _MARKS) / size,
        numbers,
        0 if _LABELS.isdisjoint(spaced) else sum(map(_LABELS.__contains__, spaced[:-1])),
        head.count("\n") + 1,
        *[not distinct.isdisjoint(listed) for listed in _WORDS.values()],
        amount,
        not amount and not distinct.isdisjoint(_WHY_HOW),
        bool(words) and words[0] in _YES_NO,
    )


def _count(signs: bytes, chosen: bytes) -> int:
    """Return how many of the characters are among the chosen ones."""
    return len(signs) - len(signs.translate(None, chosen))
