"""Signals, the numbers that a policy reads from a step: the kinds of nodes that give them, and those of a reply.

An unknown signal is None. `design/signals.md` lists them all with unit and range.

In JSON, the model is always sure of structural tokens, which hides doubt. So only the value tokens count
(`value_tokens`): those that spell a string's letters, a number or a literal, but not a key, a brace or a comma.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from cascade.types import Completion, Token

if TYPE_CHECKING:
    from cascade.chat import ChatRequest

_LOGPROBS = ("reply_mean_logprob", "reply_min_logprob", "answer_mean_logprob", "answer_min_logprob")
OF_ANSWERS = frozenset({"reply_tokens", *_LOGPROBS, "agrees_with_earlier"})
"""The signals of any model's answer (`logprob_signals`), and its agreement with the earlier ones."""
OF_MESSAGES = frozenset(
    {"answer_chars", "tool_calls", "arguments", "arguments_quoted", "message_faults", "model_skipped"}
)
"""The further signals of a message that answers a chat request (`plans.reply`)."""
Reply: TypeAlias = Literal["answer", "direct", "verdict", "check", "decision"]


class NodeKind(NamedTuple):
    """A kind of node: everything that distinguishes it, except how its call is made (`plans.nodes`).

    Attributes:
        call: the purpose of its calls in logs (`Request.purpose`), and the name of a decision's prompt.
        reply: what it gives: an answer; "direct": an answer if the step lacks one; a verdict on an answer; a function's
            check of an answer, which is free; a decision about what to do next.
        signal: the signal that it adds to those of answers, if there is one.
        share: what a verdict in a step of its own adds: the share of the answer's verdicts that said yes.
        joined: what it adds instead if it joins the answer's step; `also`: what it adds in either case.
        group: the name of `signal` and `share` in tables, if they say how good an answer is.
        reads: whether it may have parents; a verdict has one.
        redraws: whether it samples its model's reply again, which needs a temperature above 0.
        corrects: whether it gives its own answer after a no.
        chat: whether there is a prompt for chat requests.
    """

    call: str
    reply: Reply
    signal: str = ""
    share: str = ""
    joined: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    group: str = ""
    reads: bool = True
    redraws: bool = False
    corrects: bool = False
    chat: bool = True

    def signals(self, *, joins: bool) -> frozenset[str]:
        """Return the signals that it adds to those of answers."""
        return frozenset({self.signal, *self.also, *(self.joined if joins else [self.share])} - {""})


_ANSWER = NodeKind("answer", "answer")
_JUDGE = NodeKind(
    "judge", "verdict", "p_yes", "judge_share", ("guide_agrees", "reasoning_chars"), ("verdict_mass",), "judge"
)
KINDS: Mapping[str, NodeKind] = {
    "answer": _ANSWER,
    "sample": _ANSWER._replace(signal="answer_share", group="samples", reads=False, redraws=True),
    "judge": _JUDGE,
    "verify": _JUDGE._replace(corrects=True),
    "outright": _ANSWER._replace(reads=False),
    "check": NodeKind("verify", "check", "gate", group="check"),
    "direct": NodeKind("direct", "direct"),
    "decide": NodeKind("decide", "decision", "decided_action"),
    "exit": NodeKind("exit", "decision", "says_exit", chat=False),
}
"""The kinds of nodes, by `PlanNode.purpose`."""


def purposes_of(*replies: Reply) -> frozenset[str]:
    """Return the purposes of the calls whose replies are of these types."""
    return frozenset(kind.call for kind in KINDS.values() if kind.reply in replies)


def _trust(*replies: Reply) -> dict[str, frozenset[str]]:
    kinds = [kind for kind in KINDS.values() if kind.group and kind.reply in replies]
    return {kind.group: frozenset({kind.signal, kind.share} - {""}) for kind in kinds}


def _added(reply: Reply, field: str = "signal") -> tuple[str, ...]:
    """Return what nodes with this reply add, each signal once."""
    names = [getattr(kind, field) for kind in KINDS.values() if kind.reply == reply]
    return tuple(dict.fromkeys(filter(None, names)))


VERDICTS, SHARES, CHECKS, OF_SAMPLES = _added("verdict"), _added("verdict", "share"), _added("check"), _added("answer")
"""The signals of verdicts, of shares of verdicts, of checks, and of samples."""
OF_CONFIDENCE = frozenset({*VERDICTS, *chain.from_iterable(_added("verdict", "also"))})
"""The signals behind a strategy's own confidences; `verdict_mass` distinguishes log-probs from samples."""
OF_JUDGES = _trust("verdict", "check")
_SURE = OF_JUDGES | {"self-check": frozenset({"self_check"})} | _trust("answer")
OF_TRUST = {"log-prob": frozenset(_LOGPROBS)} | _SURE
"""The signals that say how good an answer is, by their source."""
PROBABILITIES = frozenset().union(*_SURE.values())
OF_OFFERS = frozenset().union(*_trust("verdict", "answer").values())
"""The signals of a model's call that reads other calls, or of one of several calls to the same model."""
LIVE = OF_ANSWERS.union(
    OF_MESSAGES, {"prompt_tokens"}, *(kind.signals(joins=joins) for kind in KINDS.values() for joins in (True, False))
)
"""All signals that a strategy of the package gives."""
_LONGEST = 2_000
"""The most characters of a message that are counted."""
_JSON = re.compile(
    r""""(?P<text>(?:[^"\\]|\\.)*)"?(?P<key>\s*:)?|(?P<open>[{[])|(?P<close>[]}])|(?P<literal>[\w+.-]+)(?P<name>\s*:)?""",
    re.DOTALL,
)


def not_live(names: Iterable[str]) -> list[str]:
    """Return the signals that no strategy of the package gives; a policy that reads one cannot be served.

    >>> not_live(["score", "p_yes"])
    ['score']
    """
    return sorted({*names} - LIVE)


def about_live(names: Iterable[str]) -> str:
    """Return a sentence about signals that are `not_live`; it lists the live ones that say how good an answer is."""
    trust = ", ".join(sorted(frozenset().union(*OF_TRUST.values()) & LIVE))
    return f"no strategy of the package gives {', '.join(names)} live, as it gives {trust}"


def logprob_signals(completion: Completion, answer: str) -> dict[str, float | None]:
    """Return the token count, and mean and least log-prob (nats per token) of the whole reply and of its answer."""
    tokens = completion.tokens or ()
    numbers = (*mean_and_least(tokens), *mean_and_least(answer_tokens(tokens, answer)))
    length = float(completion.usage.output_tokens or 0) or None
    return {"reply_tokens": length, **dict(zip(_LOGPROBS, numbers, strict=True))}


def answer_tokens(tokens: Sequence[Token], answer: str) -> Sequence[Token]:
    """Return the tokens of a reply that spell its answer where it last occurs; none if the reply does not contain it.

    The last token comes first: existing logs added log-probs in this order, on which the last bit of a sum depends.
    """
    text, within = "".join([token.text for token in tokens]), list[Token]()
    start, end = text.rfind(answer) if answer else len(text), len(text)
    for token in reversed(tokens) if start >= 0 else ():
        if end <= start:
            break
        end -= len(token.text)
        if end < start + len(answer):
            within.append(token)
    return within


def mean_and_least(tokens: Sequence[Token]) -> tuple[float | None, float | None]:
    """Return the mean and the least log-prob of tokens, in nats; None for both if any log-prob is unknown."""
    if not tokens:
        return None, None
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    total = sum(logprobs)
    if len(logprobs) < len(tokens) or not total > -math.inf:
        return None, None  # a mean over a part of the tokens would mislead
    return total / len(logprobs), min(logprobs)


def message_signals(request: ChatRequest, completion: Completion) -> dict[str, float | None]:
    """Return the signals of a message: log-probs of reply and values, characters, calls, faults, arguments."""
    from cascade.chat import calls_of  # only for chat requests

    tokens, calls = completion.tokens or (), calls_of(completion.message or {})
    in_json = bool(completion.message and (calls or request.wants_json))
    mean, least = mean_and_least(value_tokens(tokens) if in_json else tokens)
    return {
        **logprob_signals(completion, ""),
        "answer_mean_logprob": mean,
        "answer_min_logprob": least,
        "answer_chars": float(min(len(completion.text), _LONGEST)),
        "tool_calls": float(len(calls)),
        "message_faults": float(len(completion.faults)),
        **_arguments(request, calls),
    }


def _arguments(request: ChatRequest, calls: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return how many arguments the calls give, and the share of their values that the request's messages spell."""
    from cascade.chat import arguments_of, text_of

    if not (values := list(_leaves([arguments_of(call) for call in calls]))):
        return {"arguments": 0.0, "arguments_quoted": None}
    text = " ".join([text_of(message.get("content")) for message in request.messages]).casefold()
    return {"arguments": float(len(values)), "arguments_quoted": sum([value in text for value in values]) / len(values)}


def _leaves(value: Any) -> Iterator[str]:
    """Yield the values inside a JSON value as casefolded texts; 2.0 becomes "2"."""
    if isinstance(value, Mapping | list):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(entry)
    elif isinstance(value, float) and value.is_integer():
        yield str(int(value))
    else:
        yield str(value).casefold()


def value_tokens(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens that spell the values of a JSON text, possibly inside other text such as a code fence.

    A token with both structure and characters of a value counts as a value, since the model chose it as a whole.

    >>> written = ('{"', 'city', '": "', 'Wien', '", "n": ', '3', '}')
    >>> [token.text for token in value_tokens([Token(text, -0.1) for text in written])]
    ['Wien', '3']
    """
    text = "".join([token.text for token in tokens])
    depth, of_values = 0, bytearray(len(text))
    for match in _JSON.finditer(text):
        depth = max(depth + (match["open"] is not None) - (match["close"] is not None), 0)
        if depth and match["key"] is None and match["name"] is None:
            start, end = match.span("text" if match["literal"] is None else "literal")
            of_values[start:end] = bytes([1]) * (end - start)
    ends = [*accumulate(len(token.text) for token in tokens)]
    return [token for token, end in zip(tokens, ends, strict=True) if any(of_values[end - len(token.text) : end])]
