"""The scope of a certificate: it covers a question only if its request and its steps are of kinds that were calibrated.

A calibration log may hold steps without an answer, or without a signal. The calibration has counted them, so the
certificate covers a fresh question with such a step, as long as such steps are no more frequent than at calibration
(`odd`, which `serving.monitors` counts). It does not cover a step of a kind that the log never had, nor a step in which
a call failed: `collect` and `tabulate` leave questions with failed calls out of a log, and an outage today says nothing
about the distribution of the calibration questions. `design/serving.md` gives the reasons.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from cascade.policies.base import Policy
from cascade.text import same_model
from cascade.types import Certificate, Step

if TYPE_CHECKING:
    from cascade.chat import ChatRequest

Shown: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The counts of the calibration questions at one step, by its number of answers.

`of` is how many questions had that number of answers, `signals` how many of these had each signal."""

_CONFIDENCE = ("p_yes", "verdict_mass")
"""The source of the strategy's own confidences; `verdict_mass` distinguishes log-probs from samples."""


@dataclass(frozen=True)
class Scope:
    """The scope of a certificate, as far as it depends on steps.

    Attributes:
        reads: the signals that the policy decides and ranks by.
        shown: what the calibration questions showed at each step.
        echoes: for each model, the names in its replies; a model that is missing here must answer under its own name.
        insists: whether a walk goes on to the last step instead of ending at or after a step that is not covered, where
            the policy's decision proves nothing.
        strict: whether odd steps are not covered either, because they have become more frequent than the calibration
            allows.
    """

    reads: frozenset[str] = frozenset()
    shown: tuple[Shown, ...] = ()
    echoes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    insists: bool = False
    strict: bool = False

    @classmethod
    def of(cls, certificate: Certificate, policy: Policy, *, insists: bool = False) -> Scope:
        """Return the scope of the certificate of a policy."""
        every = () if certificate.keeps_everything else (*policy.reads, *_CONFIDENCE)
        sure = () if certificate.abstain_below is None else ("reply_mean_logprob",)
        shown, echoes = certificate.made_for.get("shown") or (), certificate.made_for.get("echoes") or {}
        return cls(
            frozenset([*every, *sure]),
            tuple(shown),
            {model: tuple(names) for model, names in echoes.items()},
            insists,
        )

    def outside(self, step: Step) -> tuple[str, ...]:
        """Return why the certificate does not cover a step, one sentence for each reason; empty where it does.

        >>> Scope().outside(Step(1, (), {}))
        ('step 1 brought no answer, and at calibration it never did',)
        """
        failed = failures(step)
        if failed:
            return tuple(dict.fromkeys(failed))
        found = (*dict.fromkeys(self._renamed(step)), *self._lacks(step))
        if not found and self.strict and self.odd(step):
            return (f"step {step.number} {ODD}, and that happens more often now than the calibration allows",)
        return found

    def odd(self, step: Step) -> bool:
        """Return whether a step lacks an answer or a signal that most, but not all, calibration questions had there."""
        if step.number > len(self.shown):
            return False
        at, many = self.shown[step.number - 1], len(step.candidates)
        held = at.get(str(many))
        if held is None:
            return False
        if many < usual(at):
            return True
        known = held["signals"]
        return any(
            step.signals.get(name) is None and held["of"] < 2 * known.get(name, 0) < 2 * held["of"]
            for name in self.reads
        )

    @cached_property
    def calibrated(self) -> tuple[int, int]:
        """At most how many calibration questions had an odd step, and how many there were; (0, 0) without any.

        A question with several odd steps counts several times. That can only make the allowed share too large, so it
        raises no false alarm.
        """
        if not self.shown:
            return 0, 0
        odd = sum(self._odd_at(at) for at in self.shown)
        n = sum(held["of"] for held in self.shown[0].values())
        return min(odd, n), n

    def _odd_at(self, at: Shown) -> int:
        """Return at most how many calibration questions were odd at one step."""
        found = 0
        for many, held in at.items():
            if int(many) < usual(at):
                found += held["of"]
                continue
            lacking = [held["of"] - held["signals"].get(name, 0) for name in self.reads]
            found += sum(one for one in lacking if 2 * one < held["of"])
        return found

    def _renamed(self, step: Step) -> Iterator[str]:
        for call in step.calls:
            told = None if call.completion is None else call.completion.model
            if told is None:
                continue
            asked = call.request.model
            names = self.echoes.get(asked, ())
            if names and told not in names:
                yield f"{asked} answered as {told}; at calibration it answered as {' or '.join(names)}"
            elif not names and not same_model(asked, told):
                yield f"{asked} answered as {told}; the calibration log does not record that name"

    def _lacks(self, step: Step) -> Iterator[str]:
        many = len(step.candidates)
        missing = sorted([name for name in self.reads if step.signals.get(name) is None])
        held = self.shown[step.number - 1].get(str(many)) if step.number <= len(self.shown) else None
        if held is None:
            brought = {0: "no answer", 1: "one answer"}.get(many, f"{many} answers")
            yield f"step {step.number} brought {brought}, and at calibration it never did"
            return
        for name in missing:
            if held["signals"].get(name, 0) == held["of"]:
                yield f"step {step.number} lacks the signal {name}, which each such calibration question had"


ODD = "lacks an answer or a signal"
"""A phrase that describes an odd step."""


def usual(at: Shown) -> int:
    """Return the most frequent number of answers of the calibration questions at a step; in a tie the smallest.

    >>> usual({"0": {"of": 3, "signals": {}}, "1": {"of": 97, "signals": {}}})
    1
    """
    return min((-held["of"], int(many)) for many, held in at.items())[1]


def failures(step: Step) -> list[str]:
    """Return a sentence for each failed call of a step.

    Only `Call.error` has the provider's own message.
    """
    return [
        f"the call of {call.request.role} at step {step.number} failed ({call.failed_with})"
        for call in step.calls
        if call.error is not None
    ]


# --- kinds of requests ---
# A kind has the properties of a request that change the kind of reply: tools, a required form, the parts of the
# messages, and the sampling settings. The question itself is left out, since questions differ in every log.

Kind: TypeAlias = Mapping[str, float | str]
"""The special properties of a request, by name: a number or a text (JSON); "" if the name says everything."""
Seen: TypeAlias = Mapping[str, Mapping[str, Any]]
"""For each name of `Kind`: how many requests had it (`of`), its `least` and `most` number, and its `texts` (None if
they are too many)."""
PLAIN: Kind = {}
"""A question, which cascade puts into its own prompt."""
_FORM, _CHAT, _UNSAID = "form", "chat", "unknown"
UNSAID: Kind = {_FORM: _UNSAID}
"""A request of a log that does not say whether the model saw it in cascade's prompt or as a chat request."""
DRAWN = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "stop", "reasoning_effort", "verbosity", "modalities", "tool_choice", "parallel_tool_calls",
    "web_search_options", "audio", "context_management", "output_config", "function_call",
)  # fmt: skip
"""The settings that change how a reply is sampled. Others (user, metadata, store) do not change the reply."""
_NEUTRAL = {"tool_choice": "auto", "parallel_tool_calls": True}
"""Settings at their defaults, which are left out."""
_LIMIT = "a limit of the reply"


def kind_of(chat: ChatRequest | None) -> Kind:
    """Return the special properties of a request.

    >>> from cascade.chat import ChatRequest
    >>> dict(kind_of(ChatRequest([{"role": "user", "content": "Hi"}], {"temperature": 2, "max_tokens": 1})))
    {'form': 'chat', 'temperature': 2.0, 'a limit of the reply': 1.0}
    """
    if chat is None:
        return PLAIN
    roles = [message.get("role") for message in chat.messages]
    held = {
        "tools": bool(chat.tools or chat.options.get("functions")),
        "a JSON schema": chat.json_schema is not None,
        "a JSON object": chat.wants_json and chat.json_schema is None,
        "another format": chat.options.get("response_format") is not None and not chat.wants_json,
        "a system message": any(role in ("system", "developer") for role in roles),
        "several turns": any(role not in ("system", "developer", "user") for role in roles),
        **dict.fromkeys(_parts(chat), True),
    }
    found: dict[str, float | str] = {_FORM: _CHAT, **{name: "" for name, there in held.items() if there}}
    for name in DRAWN:
        value = chat.options.get(name)
        if value is not None and value != _NEUTRAL.get(name):
            found[name] = float(value) if type(value) in (int, float) else json.dumps(value, sort_keys=True)
    if chat.max_tokens is not None:
        found[_LIMIT] = float(chat.max_tokens)
    return found


def _parts(chat: ChatRequest) -> Iterator[str]:
    """Yield the content of messages other than text: the types of their parts, as "image parts"."""
    for message in chat.messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            kind = str(part.get("type") or next(iter(part), "text")) if isinstance(part, Mapping) else "text"
            if kind not in ("text", "refusal"):
                yield f"{kind.removeprefix('input_').removesuffix('_url')} parts"


def unlike(kind: Kind, held: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a sentence for each difference between a request and those of the calibration; none if these are unknown.

    `held` describes the calibration requests (`calibration.fingerprint.seen`). If the form differs, nothing else is
    compared.

    >>> held = {"of": 2, "kinds": {"temperature": {"of": 2, "least": 0.2, "most": 1.0}}}
    >>> list(unlike({"form": "chat", "temperature": 2.0}, held))
    ['the request has temperature 2, and the calibration requests had 0.2 to 1']
    """
    if held is None:
        return
    kinds: Seen = {name: there for name, there in held["kinds"].items() if name != _FORM}
    if (other := _of_other_form(kind, held)) is not None:
        yield other
        return
    for name, value in kind.items():
        if name == _FORM:
            continue
        there = kinds.get(name)
        if there is None:
            yield f"the request has {_said(name, value)}, which no calibration request had"
        elif isinstance(value, float) and "least" in there and not _within(name, value, there):
            yield f"the request has {_said(name, value)}, and the calibration requests had {_range(there)}"
        elif isinstance(value, str) and there.get("texts", ()) is not None and value not in there.get("texts", ()):
            yield f"the request has {_said(name, value)}, which no calibration request had"
    for name, there in kinds.items():
        if there["of"] == held["of"] and name not in kind and name != _LIMIT:
            yield f"the request lacks {name}, which every calibration request had"


def form_unsaid(held: Mapping[str, Any] | None) -> bool:
    """Return whether the log of a calibration does not say in which form the models saw some of its requests."""
    return held is not None and _UNSAID in held["kinds"].get(_FORM, {}).get("texts", ())


def _of_other_form(kind: Kind, held: Mapping[str, Any]) -> str | None:
    """Return a sentence if a calibration had only questions, and this is a chat request, or the other way round."""
    chats = held["kinds"].get(_FORM, {"of": 0})["of"]
    if form_unsaid(held):
        return None
    if kind.get(_FORM) == _CHAT and not held["kinds"]:
        return "the request is a chat request, and the calibration asked questions in cascade's own prompt"
    if kind.get(_FORM) != _CHAT and chats and chats == held["of"]:
        return "the question is asked in cascade's own prompt, and the calibration had chat requests"
    return None


def _within(name: str, value: float, there: Mapping[str, Any]) -> bool:
    """Whether a number lies among those of the calibration. A larger limit cuts off no more than a smaller one."""
    return bool(there["least"] <= value and (value <= there["most"] or name == _LIMIT))


def _range(there: Mapping[str, Any]) -> str:
    least, most = there["least"], there["most"]
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


_LONGEST_SHOWN = 60


def _said(name: str, value: float | str) -> str:
    shown = f"{value:g}" if isinstance(value, float) else value[:_LONGEST_SHOWN]
    return f"{name} {shown}".strip()
