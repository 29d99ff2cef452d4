"""The requests and steps that a certificate covers: those of a kind that its log had.

A log may hold steps without an answer, or without a signal. The test has counted them, so the certificate covers a
fresh request with such a step. It does not cover a step of a kind that the log never had, nor a step in which a call
failed: an outage today says nothing about the distribution of the log's requests (`design/serving.md`). The same rule
decides about the steps of a log and about a step that was just served.

`shown` and `seen` describe the requests of a log, as a certificate keeps them: plain JSON values.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cascade.text import same_model
from cascade.types import Step

if TYPE_CHECKING:
    from cascade.chat import ChatRequest
    from cascade.table import Bools, Log

Shown: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The counts of a log's requests at one step, by its number of answers.

`of` is how many requests had that number of answers, `signals` how many of these had each signal."""
LENGTHS: Mapping[str, str] = {"reply_tokens": "output_tokens", "prompt_tokens": "input_tokens"}
"""The signals that are counted if a plan does not give them, and the tokens of a step's calls that they count."""


@dataclass(frozen=True)
class Scope:
    """The scope of a certificate as far as it depends on steps.

    Attributes:
        reads: the signals that the policy may decide and rank by.
        shown: what the requests of the log showed at each step.
        echoes: for each model, the names in its replies; a model that is missing here must answer under its own name.
        insists: whether a walk goes on to the last step instead of ending at or after a step that is not covered, since
            nothing is proven about the policy's decision there.
    """

    reads: frozenset[str] = frozenset()
    shown: tuple[Shown, ...] = ()
    echoes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    insists: bool = False

    @classmethod
    def of(cls, made_for: Mapping[str, Any], reads: Iterable[str] | None, *, insists: bool = False) -> Scope:
        """Return the scope of a certificate.

        Args:
            made_for: what the certificate is made for.
            reads: the signals that may decide or rank; None: all that the log has.
            insists: see above.
        """
        shown, echoes = tuple(made_for.get("shown") or ()), made_for.get("echoes") or {}
        if reads is None:
            reads = {name for step in shown for counts in step.values() for name in counts["signals"]}
        return cls(frozenset(reads), shown, echoes, insists)

    # --- a step that was served

    def outside(self, step: Step) -> tuple[str, ...]:
        """Return why the certificate does not cover a step, one sentence for each reason; empty if it does.

        >>> Scope().outside(Step(1, (), {}))
        ('step 1 gave 0 answers, as no request of the log did',)
        """
        if failed := failures(step):
            return tuple(dict.fromkeys(failed))
        rule, reasons = self._rule(step.number, len(step.candidates)), [*dict.fromkeys(self._renamed(step))]
        if rule is None:
            reasons.append(f"step {step.number} gave {len(step.candidates)} answers, as no request of the log did")
        else:
            lacking = sorted(name for name in rule if not _is_known(step, name))
            reasons += [f"step {step.number} lacks the signal {name}, which all in the log had" for name in lacking]
        return tuple(reasons)

    def _renamed(self, step: Step) -> Iterator[str]:
        for call in step.calls:
            model, name = call.request.model, None if call.completion is None else call.completion.model
            echoes = self.echoes.get(model, ())
            if name is not None and (name not in echoes if echoes else not same_model(call.request.wire_model, name)):
                yield f"{model} answered as {name}; in the log it answered as {' or '.join(echoes) or 'itself'}"

    def _rule(self, step: int, answers: int) -> list[str] | None:
        """Return the signals that a step with so many answers must have; None if no request had such a step."""
        counts = (self.shown[step - 1] if step <= len(self.shown) else {}).get(str(answers))
        if counts is None:
            return None
        return [name for name in self.reads if counts["signals"].get(name, 0) == counts["of"]]


def _is_known(step: Step, name: str) -> bool:
    """Return whether a step has a signal, or the token counts that replace it."""
    if name not in LENGTHS or name in step.signals:
        return step.signals.get(name) is not None
    return length(step, name) is not None


def length(step: Step, name: str) -> int | None:
    """Return one of `LENGTHS`, summed over the calls of a step; None if a count is unknown, or there is no call."""
    usages = [call.completion.usage for call in step.calls if call.completion is not None]
    counts = [getattr(usage, LENGTHS[name]) for usage in usages]
    return None if not counts or None in counts else sum(counts)


def failures(step: Step) -> list[str]:
    """Return a sentence for each failed call of a step. Only `Call.error` has the provider's own message."""
    return [
        f"the call of {call.request.role} at step {step.number} failed ({call.failed_with})"
        for call in step.calls
        if call.error is not None
    ]


def shown(log: Log) -> list[dict[str, Any]]:
    """Return the counts of each step of a log, as a certificate keeps them: a `Shown` for each step.

    Args:
        log: the requests that prove the certificate, with the nodes that the policy buys.
    """
    steps: list[dict[str, Any]] = [{} for _ in dict.fromkeys(node.step for node in log.nodes)]
    for step, answers, rows, present in _by_answers(log):
        counts = {name: int((have & rows).sum()) for name, have in present.items()}
        signals = {name: count for name, count in counts.items() if count}
        steps[step - 1][str(answers)] = {"of": int(rows.sum()), "signals": signals}
    return steps


def _by_answers(log: Log) -> Iterator[tuple[int, int, Bools, Mapping[str, Bools]]]:
    """Yield each step, from 1, with each number of answers there, the requests with it, and those with each signal.

    A request counts at those steps that the log has of it.
    """
    import numpy as np

    for step, last in enumerate(np.flatnonzero(log.decides).tolist(), 1):
        answers = log.answers[:, log.steps == log.steps[last]].sum(axis=1)
        present = {name: ~np.isnan(values[:, last]) for name, values in sorted(log.signals.items())}
        for number in np.unique(answers[log.bought[:, last]]).tolist():
            yield step, number, log.bought[:, last] & (answers == number), present


# --- kinds of requests ---
# A kind has the properties of a request that change the kind of reply: tools, a required form, the parts of the
# messages, and the sampling settings. The text itself is left out, since texts differ in every log.

RequestKind: TypeAlias = Mapping[str, float | str]
"""The special properties of a request, by name: a number or a text (JSON); "" if the name says everything."""
Seen: TypeAlias = Mapping[str, Any]
"""How many requests there were (`of`), and for each name of their kinds (`kinds`): how many had it (`of`), its `least`
and `most` number, and its `texts` (None if they are too many)."""
PLAIN: RequestKind = {}
"""A question, which cascade puts into its own prompt."""
_FORM, _CHAT, _UNSAID = "form", "chat", "unknown"
UNSAID: RequestKind = {_FORM: _UNSAID}
"""A request of a log that does not say whether the model saw it in cascade's prompt or as a chat request."""
DRAWN = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "stop", "reasoning_effort", "verbosity", "modalities", "tool_choice", "parallel_tool_calls",
    "web_search_options", "audio", "context_management", "output_config", "function_call", "thinking",
)  # fmt: skip
"""The settings that change how a reply is sampled. Others (user, metadata, store) do not change the reply."""
_NEUTRAL = {
    "tool_choice": "auto", "parallel_tool_calls": True,
    "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1,
}  # fmt: skip
"""Settings at their defaults, which are left out."""
_LIMIT = "a limit of the reply"
_CHAT_FORM, _OWN_FORM = "a chat request", "a question in cascade's own prompt"
_SPECIAL = ("tools", "a JSON schema", "a JSON object", "another format", "a system message", "several turns")
# The names of all properties, except the types of parts, which a client names.
PROPERTIES = frozenset({*_SPECIAL, *DRAWN, _LIMIT, _CHAT_FORM, _OWN_FORM})
_LONGEST_SHOWN = 60
_NONE_HAS, _UNRECORDED = "and none of the log has", "which the log does not record"
# The consequence if the form of a log's requests is unknown (`form_unsaid`).
UNRECORDED = (
    "the log does not record what was sent with each question: the guide answers requests with a system message, a "
    "limit, tools or the like that no recorded request has. If all rows were sent alike, import them with --request"
)
MOST_TEXTS = 50
"""A setting with more different texts than this varies with each request, such as stop words made from the request."""


def kind_of(chat: ChatRequest | None) -> RequestKind:
    """Return the special properties of a request.

    >>> from cascade.chat import ChatRequest
    >>> dict(kind_of(ChatRequest([{"role": "user", "content": "Hi"}], {"temperature": 2, "max_tokens": 1})))
    {'form': 'chat', 'temperature': 2.0, 'a limit of the reply': 1.0}
    """
    if chat is None:
        return PLAIN
    roles = [message.get("role") for message in chat.messages]
    applies = (
        bool(chat.tools or chat.options.get("functions")),
        chat.json_schema is not None,
        chat.wants_json and chat.json_schema is None,
        chat.options.get("response_format") is not None and not chat.wants_json,
        any(role in ("system", "developer") for role in roles),
        any(role not in ("system", "developer", "user") for role in roles),
    )
    properties = [*itertools.compress(_SPECIAL, applies), *_part_types(chat)]
    kind: dict[str, float | str] = {_FORM: _CHAT, **dict.fromkeys(properties, "")}
    for name in DRAWN:
        value = chat.options.get(name)
        if value is not None and value != _NEUTRAL.get(name):
            kind[name] = float(value) if type(value) in (int, float) else json.dumps(value, sort_keys=True)
    if chat.max_tokens is not None:
        kind[_LIMIT] = float(chat.max_tokens)
    return kind


def _part_types(chat: ChatRequest) -> Iterator[str]:
    """Yield the content of messages other than text: the types of their parts, as "image parts"."""
    for message in chat.messages:
        content = message.get("content")
        for block in content if isinstance(content, list | tuple) else ():
            kind = str(block.get("type") or next(iter(block), "text")) if isinstance(block, Mapping) else "text"
            if kind not in ("text", "refusal"):
                yield f"{kind.removeprefix('input_').removesuffix('_url')} parts"


def seen(kinds: Sequence[RequestKind | None]) -> Seen | None:
    """Return the kinds of a log's requests, as a certificate keeps them; None if one of the requests is unknown.

    >>> seen([{"tools": ""}, {"tools": "", "temperature": 0.5}])["kinds"]["temperature"]
    {'of': 1, 'least': 0.5, 'most': 0.5}
    """
    times = Counter(map(id, kinds))  # equal kinds of a log are one object
    recorded = [(times[at], kind) for at, kind in {id(kind): kind for kind in kinds}.items() if kind is not None]
    if not recorded or id(None) in times:
        return None
    names = sorted({name for _, kind in recorded for name in kind})
    return {
        "of": len(kinds),
        "kinds": {name: _range([(count, kind[name]) for count, kind in recorded if name in kind]) for name in names},
    }


def _range(counted: Sequence[tuple[int, float | str]]) -> dict[str, Any]:
    values = [value for _, value in counted]
    numbers = [value for value in values if isinstance(value, float)]
    texts = sorted({value for value in values if isinstance(value, str)})
    return {
        "of": sum(count for count, _ in counted),
        **({"least": min(numbers), "most": max(numbers)} if numbers else {}),
        **({"texts": texts if len(texts) <= MOST_TEXTS else None} if texts else {}),
    }


def unlike(kind: RequestKind, seen: Seen | None) -> dict[str, str]:
    """Return a sentence for each difference between a request and those of a log, by the property that differs.

    It is empty if the log's kinds are unknown. If the form differs, nothing else is compared. A higher limit of the
    reply than the log's is no difference, since it cuts off no more.

    >>> unlike({"temperature": 2.0}, {"of": 2, "kinds": {"temperature": {"of": 2, "least": 0.2, "most": 1.0}}})
    {'temperature': 'the request has temperature 2, and those of the log 0.2 to 1'}
    """
    return {} if seen is None else dict(_differences(kind, seen))


def _differences(kind: RequestKind, seen: Seen) -> Iterator[tuple[str, str]]:
    kinds, is_chat = {**seen["kinds"]}, kind.get(_FORM) == _CHAT
    chats = kinds.pop(_FORM, {"of": 0})["of"]
    if not form_unsaid(seen) and (not seen["kinds"] if is_chat else 0 < chats == seen["of"]):
        form = _CHAT_FORM if is_chat else _OWN_FORM
        yield form, f"the request is {form}, and no request of the log is"
        return
    for name, value in kind.items():
        limits = kinds.get(name, {"texts": []})
        least, largest, texts = limits.get("least", value), limits.get("most", value), limits.get("texts", ())
        setting = f"{name} {format(value, 'g') if isinstance(value, float) else value[:_LONGEST_SHOWN]}".strip()
        if name in kinds and isinstance(value, float):
            if not least <= value <= (value if name == _LIMIT else largest):
                yield name, f"the request has {setting}, and those of the log {least:g} to {largest:g}"
        elif name != _FORM and texts is not None and value not in texts:
            unrecorded = form_unsaid(seen) and name not in kinds
            yield name, f"the request has {setting}, {_UNRECORDED if unrecorded else _NONE_HAS}"
    missing = [name for name, limits in kinds.items() if limits["of"] == seen["of"] and name not in kind]
    yield from ((name, f"the request lacks {name}, which all of the log have") for name in missing if name != _LIMIT)


def has_chats(seen: Seen | None) -> bool:
    """Return whether a log may have chat requests, so that its certificate may cover some."""
    return _CHAT_FORM not in unlike({_FORM: _CHAT}, seen)


def form_unsaid(seen: Seen | None) -> bool:
    """Return whether a log does not say in which form the models saw some of its requests."""
    return seen is not None and _UNSAID in seen["kinds"].get(_FORM, {}).get("texts", ())
