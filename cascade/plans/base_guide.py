"""The base answers, the guide judges with a few tokens and corrects, for up to T rounds.

For a chat request the guide judges the base's whole message, and answers outright instead of correcting it: the
message served is always one model's whole message.

A round is a step with two candidates: the base's answer, and the guide's (after a yes, the base's own). The input of
round t+1 never depends on the policy: the base's context has every earlier round, whatever was kept. So a log of all T
rounds gives the exact result of any policy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic import Field

from cascade.chat import ChatRequest, part_texts
from cascade.errors import ProviderError, UsageError
from cascade.logs.schema import GUIDE_ONLY
from cascade.matching.requests import agreement
from cascade.plans import reply
from cascade.plans import verdict as verdicts
from cascade.plans.base import ModelUse, Plan, Strategy
from cascade.plans.config import StrategyConfig
from cascade.plans.form import ChatForm, Reading
from cascade.plans.ladder import Ladder
from cascade.plans.prompts import Prompts, load, question_text
from cascade.plans.verdict import Verdict
from cascade.policies.base import Takes
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES, logprob_signals
from cascade.safety import taken_out
from cascade.text import counted, data_block, defuse, encode_sorted, normalize_answer
from cascade.types import SKIP, Candidate, Completion, Forced, Message, Question, Request, Step

OnGuideError: TypeAlias = Literal["escalate", "accept", "abstain"]
VerdictMode: TypeAlias = Literal["auto", "logprobs", "sampled", "structured"]

_SAMPLE_TEMPERATURE = 1.0
_SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["yes", "no"]}, "answer": {"type": "string"}},
    "required": ["verdict", "answer"],
    "additionalProperties": False,
}

_DECISION_TOKENS = 8
_ACTION = re.compile(r"^\W*([123])(?![\d.,]*\d)")

_Ask: TypeAlias = Generator[Request, Completion, Verdict]


def read_action(text: str) -> float | None:
    """Return the action (1, 2 or 3) that a decider's reply starts with; None if it starts with none of these.

    >>> read_action("2"), read_action("**3** - neither"), read_action("12"), read_action("I think 1")
    (2.0, 3.0, None, None)
    """
    found = _ACTION.match(text[:40])
    return None if found is None else float(found[1])


def _what_a_decider_sees(question: Question, current: _Round) -> dict[str, str]:
    verdict = current.verdict
    p_yes = verdict.p_yes
    doubt = math.inf if p_yes is None else -math.log(max(p_yes, 1.0 - p_yes))
    guide = next((c.text for c in current.candidates if c.source == "guide"), "none")
    fields = {
        "question": question.text,
        "small_model_answer": current.answer or "none",
        "strong_model_agrees": {True: "yes", False: "no", None: "no verdict"}[verdict.says_yes],
        "strong_model_answer": guide,
        "strong_model_uncertainty": "unknown" if doubt == math.inf else f"{doubt:.2f}",
    }
    return {"text": question.context, **fields} if question.context else fields


@dataclass(slots=True)
class _Round:
    """One round as it is being made."""

    number: int
    text: str | None = None
    reasoning: str = ""
    answer: str | None = None
    candidates: list[Candidate] = field(default_factory=list)
    signals: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    verdict: Verdict = verdicts.NO_VERDICT
    forced: Forced | None = None
    final: bool = False

    def note_explanations(self, judgements: list[Completion]) -> None:
        """Note that the guide's reply goes on after the line that is taken as its correction."""
        if any(verdicts.explains(judgement.text, self.answer or "") for judgement in judgements):
            self.notes.append("the guide's reply goes on after its answer; the lines after the first are left out")

    def step(self) -> Step:
        return Step(
            self.number,
            tuple(self.candidates),
            self.signals,
            tuple(self.notes),
            forced=self.forced,
            final=self.final,
            warnings=tuple(self.warnings),
        )


@dataclass(frozen=True, slots=True)
class BaseGuide(Strategy):
    """The base-guide strategy.

    Args:
        base, guide: the two models and how they are asked.
        rounds: T, the most rounds a question takes.
        verdict: how P(yes) is read: from log-probs, from samples, from structured samples, or as the guide allows.
        samples: how many verdicts are asked for if there are no log-probs.
        on_guide_error: what to do if the guide cannot be reached: go on ("escalate"), keep the base's answer unjudged
            ("accept"), or stop without an answer ("abstain").
        prompts: the prompts; the shipped ones by default.
        decider: "base" or "guide": that model is asked each round what to do (LLM-as-policy), at its own cost; its
            choice is the signal `decided_action`, which `policies.prompted` follows.
    """

    base: ModelUse
    guide: ModelUse
    rounds: int = 4
    verdict: VerdictMode = "auto"
    samples: int = 3
    on_guide_error: OnGuideError = "escalate"
    prompts: Prompts = field(default_factory=load)
    decider: Literal["base", "guide"] | None = None

    @property
    def horizon(self) -> int:
        """T."""
        return self.rounds

    @property
    def models(self) -> tuple[str, ...]:
        """Base and guide."""
        return (self.base.name, self.guide.name)

    def only(self, takes: Takes) -> Ladder:
        """Return the guide asked outright, as in the walk "guide only"; there is no other part."""
        if not takes.reference:
            raise UsageError("Rounds of base and guide cannot be left out: each round reads those before it.")
        return Ladder((self.guide,), self.prompts)

    def plan(self, question: Question) -> Plan:
        """Plan up to T rounds; for a chat request, the base's message with a verdict, and then the guide's message."""
        if question.chat is not None:
            yield from self._chat(question, ChatForm(question, question.chat))
            return
        messages = self.prompts.answer.fill(question_text(question))
        done: list[_Round] = []
        for number in range(1, self.rounds + 1):
            current = _Round(number)
            try:
                yield from self._base_answers(question, current, messages, done)
            except ProviderError as error:
                current.notes.append(f"base error: {type(error).__name__}: {error}")
                current.final = True  # what failed after its retries would fail again in the next round
                yield from self._guide_answers(question, current)
            if current.answer is not None:
                yield from self._guide_judges(question, current)
            elif not current.final and number == self.rounds and not any(r.candidates for r in (*done, current)):
                yield from self._guide_answers(question, current)
            if self.decider is not None:
                yield from self._decides(self.decider, question, current)
            done.append(current)
            yield current.step()
            if current.final:
                return
            if current.answer is not None and current.text is not None:
                messages = (
                    *messages,
                    Message("assistant", defuse(current.text)),
                    *self._again(current.answer, current.verdict),
                )

    def _chat(self, question: Question, form: ChatForm) -> Plan:
        """Plan a chat request. It is sent unchanged, so no model reads another model's message.

        So the base is asked once. The guide answers outright: in the same step after a no, else in the next.
        """
        current = _Round(1)
        request = form.request(self.base, "base", 1)
        if (lacks := self.base.lacks(request)) is not None:
            yield request._replace(purpose=SKIP)
            current.notes.append(f"{self.base.name} was not asked: {lacks}")
            yield from self._message(form, self.guide, "guide", current, last=True)
            current.signals["model_skipped"] = 1.0
            current.final = True
            yield current.step()
            return
        try:
            reading = yield from self._message(form, self.base, "base", current, last=False)
        except ProviderError as error:
            if error.shown:
                raise
            current.notes.append(f"base error: {type(error).__name__}: {error}")
            current.final = True
            yield from self._message(form, self.guide, "guide", current, last=True)
            yield current.step()
            return
        if reading.candidate is None:
            current.notes.append("the base's message has a fault: scored 0 without asking the guide")
            current.signals["p_yes"] = 0.0
        else:
            current.answer = reading.candidate.text
            yield from self._guide_judges(question, current)
        if current.verdict.says_yes is False:
            yield from self._guide_replies(form, current, [current.answer or ""])
            current.final = True
        if self.decider is not None:
            yield from self._decides(self.decider, question, current)
        yield current.step()
        if not current.final and self.rounds > 1:
            second = _Round(2, final=True)
            yield from self._guide_replies(form, second, [] if current.answer is None else [current.answer])
            yield second.step()

    def _guide_replies(
        self, form: ChatForm, current: _Round, earlier: list[str]
    ) -> Generator[Request, Completion, None]:
        """Let the guide answer outright; if it fails, the base's message is the only one."""
        told = dict(current.signals)
        try:
            reading = yield from self._message(form, self.guide, "guide", current, last=not earlier)
        except ProviderError as error:
            if error.shown or not earlier:
                raise
            current.notes.append(f"guide error: {type(error).__name__}: {error}")
            return
        same = None if reading.candidate is None else agreement(reading.candidate.text, earlier, form.chat)
        if told:  # the step is the base's
            current.signals = told | {"guide_agrees": same}
        else:
            current.signals["agrees_with_earlier"] = same

    @staticmethod
    def _message(
        form: ChatForm, use: ModelUse, role: str, current: _Round, *, last: bool
    ) -> Generator[Request, Completion, Reading]:
        """Ask a model for its message and take it as a candidate if it can be one."""
        request = form.request(use, role, current.number)
        reading = form.read((yield request), request, last=last)
        current.signals |= reading.signals
        if reading.warning is not None:
            current.warnings.append(reading.warning)
        if reading.candidate is not None:
            current.candidates.append(reading.candidate)
        return reading

    def _base_answers(
        self, question: Question, current: _Round, messages: tuple[Message, ...], done: list[_Round]
    ) -> Generator[Request, Completion, None]:
        """Ask the base. If its reply has no answer, the step notes that, and nothing is judged or offered."""
        request = self.base.request(messages, "base", "answer", current.number, question, 1)
        completion = yield request
        reasoning, answer = reply.split_reply(completion.text)
        current.signals |= logprob_signals(completion, answer)
        unread = reply.unread(completion, answer, request)
        if unread is not None:
            current.warnings.append(unread)
            current.notes.append(self._why_unjudged(completion, answer))
            if not completion.truncated:
                current.signals["p_yes"] = 0.0
            return
        earlier = [r.answer for r in done if r.answer is not None]
        current.text, current.reasoning, current.answer = completion.text, reasoning, answer
        current.signals["answer_chars"] = float(len(answer))
        current.signals["agrees_with_earlier"] = agreement(answer, earlier, None)
        current.signals["reasoning_chars"] = float(len(reasoning))
        current.candidates.append(Candidate(answer, "base", self.base.name))
        gone = taken_out(completion.text)
        if gone is not None:
            current.notes.append(f"taken out of the base's reply, so that no model reads it: {gone}")

    @staticmethod
    def _why_unjudged(completion: Completion, answer: str) -> str:
        if completion.truncated:
            return "the base's reply was cut at max_tokens: not accepted, not judged"
        return f"the base's reply has no answer ({answer[:20]!r}): scored 0 without asking the guide"

    def _guide_judges(self, question: Question, current: _Round) -> Generator[Request, Completion, None]:
        """Ask the guide for its verdict and turn it into a second candidate and signals."""
        answer = current.answer or ""
        try:
            verdict = yield from self._judgement(question, current)
        except ProviderError as error:
            current.notes.append(f"guide error: {type(error).__name__}: {error}")
            current.signals["p_yes"] = None
            if self.on_guide_error != "escalate":
                reason = f"the guide could not be asked; on_guide_error is {self.on_guide_error!r}"
                current.forced = Forced(self.on_guide_error, reason)
            return
        current.verdict = verdict = verdicts.sensible(verdict, answer)
        current.signals |= {"p_yes": verdict.p_yes, "verdict_mass": verdict.mass}
        if verdict.p_yes is None:
            current.notes.append("no verdict: the guide's reply was neither a clear yes nor a clear no")
        elif verdict.method == "sampled":
            current.notes.append(f"verdict from {self.samples} samples, without log-probs")
        current.candidates[0] = current.candidates[0]._replace(confidence=verdict.p_yes)
        said = answer if verdict.says_yes else verdict.correction
        if said is not None and question.chat is None:
            same = normalize_answer(said) == normalize_answer(answer)
            current.signals["guide_agrees"] = float(same)
            doubt = None if verdict.p_yes is None else 1.0 - verdict.p_yes
            confidence = verdict.p_yes if same else doubt
            current.candidates.append(Candidate(said, "guide", self.guide.name, confidence))

    def _judgement(self, question: Question, current: _Round) -> _Ask:
        """Ask for a verdict the way the configuration and the model allow."""
        if question.chat is not None:
            return (yield from self._judgement_of_message(question, question.chat, current))
        block = verdicts.judged_block(question, current.answer or "", current.reasoning)
        if self.verdict == "structured":
            return (yield from self._sampled(question, current, self.prompts.judge_schema.fill(block), []))
        return (yield from self._asked(question, current, self.prompts.judge.fill(block)))

    def _judgement_of_message(self, question: Question, chat: ChatRequest, current: _Round) -> _Ask:
        """Ask for a verdict on a whole message: a yes or a no, no correction, since only whole messages are served."""
        seen = judged_fields(chat, current.candidates[0])
        if hidden := sum(text is None for message in chat.messages for text in part_texts(message.get("content"))):
            current.notes.append(f"the guide does not see {counted(hidden, 'part')} of the messages: not text")
        verdict = yield from self._asked(question, current, self.prompts.judge_chat.fill(data_block(seen)))
        return verdict._replace(correction=None)

    def _asked(self, question: Question, current: _Round, messages: tuple[Message, ...]) -> _Ask:
        """Ask for log-probs, or for samples if there are none."""
        if self.verdict in {"sampled", "structured"}:
            return (yield from self._sampled(question, current, messages, []))
        first = yield self.guide.request(messages, "guide", "judge", current.number, question, verdicts.ALTERNATIVES)
        if self.verdict == "auto" and verdicts.without_alternatives(first):
            return (yield from self._sampled(question, current, messages, [first]))
        verdict = verdicts.read(first, current.answer)
        if question.chat is None and not verdict.says_yes:  # a yes has no correction to go on after
            current.note_explanations([first])
        return verdict

    def _sampled(
        self, question: Question, current: _Round, messages: tuple[Message, ...], got: list[Completion]
    ) -> _Ask:
        """Ask until there are `samples` verdicts to count."""
        schema = _SCHEMA if self.verdict == "structured" and question.chat is None else None
        for sample in range(len(got), self.samples):
            completion = yield self.guide.request(messages, "guide", "judge", current.number, question)._replace(
                temperature=_SAMPLE_TEMPERATURE if self.samples > 1 else self.guide.temperature,
                seed=None if self.guide.seed is None else self.guide.seed + sample,
                schema=schema,
                sample=sample,
            )
            got.append(completion)
        if question.chat is None:
            current.note_explanations(got)
        return verdicts.combine(got, current.answer)

    def _decides(
        self, decider: Literal["base", "guide"], question: Question, current: _Round
    ) -> Generator[Request, Completion, None]:
        """Ask a model what to do with this round."""
        current.signals["decided_action"] = None
        if not current.candidates:
            return
        use = self.base if decider == "base" else self.guide
        block = data_block(_what_a_decider_sees(question, current))
        request = use.request(self.prompts.decide.fill(block), decider, "decide", current.number, question)
        try:
            decision = yield request._replace(max_tokens=_DECISION_TOKENS)
        except ProviderError as error:
            current.notes.append(f"decider error: {type(error).__name__}: {error}")
            return
        current.signals["decided_action"] = read_action(decision.text)

    def _guide_answers(self, question: Question, current: _Round) -> Generator[Request, Completion, None]:
        """Let the guide answer by itself, as the last resort."""
        messages = self.prompts.answer.fill(question_text(question))
        request = self.guide.request(messages, "guide", "direct", current.number, question)
        completion = yield request
        _, answer = reply.split_reply(completion.text)
        unread = reply.unread(completion, answer, request)
        if unread is not None:
            current.warnings.append(unread)
            current.notes.append("the guide's own reply has no answer")
            return
        current.notes.append("the guide answered by itself")
        current.candidates.append(Candidate(answer, "guide", self.guide.name))

    def _again(self, answer: str, verdict: Verdict) -> tuple[Message, ...]:
        """Return the report on its round that the base gets before the next: the guide's answer, not its yes or no.

        A small base repeats the word it is told as its next answer: told "yes", it answers "yes".
        """
        suggested = answer if verdict.says_yes else verdict.correction
        fields = {"opinion": "doubtful"} if suggested is None else {"suggested_answer": suggested}
        return self.prompts.again.fill(data_block(fields))


def judged_fields(chat: ChatRequest, candidate: Candidate) -> dict[str, str]:
    """Return a chat request and the message that answers it as a judge reads them, each as JSON text."""
    message = {"content": candidate.text} if candidate.message is None else candidate.message
    shown = {
        "conversation": [{**one, "content": _shown(one.get("content"))} for one in chat.messages],
        "tools": chat.options.get("tools"),
        "tool_choice": chat.options.get("tool_choice"),
        "format": chat.options.get("response_format"),
        "reply": {name: value for name, value in message.items() if name != "role" and value is not None},
    }
    return {name: encode_sorted(value) for name, value in shown.items() if value}


def _shown(content: Any) -> Any:
    """Return a message's content with a mark in place of each part that is not text, such as an image."""
    if not isinstance(content, list | tuple):
        return content
    return [part if text is not None else _MARK for part, text in zip(content, part_texts(content), strict=True)]


_MARK = {"type": "left out", "text": "a part that is no text"}
_DECIDES, _EXITS = "LLM policy, ", "LLM-exit, "


class BaseGuideConfig(StrategyConfig):
    """Rounds of base and guide."""

    kind: Literal["base_guide"] = "base_guide"
    rounds: int = Field(default=4, ge=1, le=100)
    verdict: VerdictMode = "auto"
    samples: int = Field(default=3, ge=1, le=50)
    on_guide_error: OnGuideError = "escalate"
    decider: Literal["base", "guide"] | None = None

    candidates = ("base", "guide")
    signals = OF_ANSWERS | OF_MESSAGES | {"p_yes", "verdict_mass", "guide_agrees", "decided_action", "reasoning_chars"}
    has_reference = True
    answers_chat = True
    baselines = (GUIDE_ONLY, *(f"{who}{place}" for place in ("base", "guide") for who in (_DECIDES, _EXITS)))

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        return ("base", "guide")

    @property
    def horizon(self) -> int:
        """T, the most rounds."""
        return self.rounds

    @property
    def decides(self) -> bool:
        """Whether there is a decider."""
        return self.decider is not None

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> BaseGuide:
        """Return the strategy."""
        return BaseGuide(
            base=uses["base"],
            guide=uses["guide"],
            rounds=self.rounds,
            verdict=self.verdict,
            samples=self.samples,
            on_guide_error=self.on_guide_error,
            prompts=prompts,
            decider=self.decider,
        )

    def baseline(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the guide alone, these rounds with a decider, or one model that says when to stop."""
        if name == GUIDE_ONLY:
            return {"kind": "ladder", "models": ["guide"], "prompts": self.prompts}, {"kind": "fixed"}
        if name.startswith(_DECIDES):
            return {**self.model_dump(), "decider": name.removeprefix(_DECIDES)}, {"kind": "prompted"}
        place = name.removeprefix(_EXITS)
        exits = {"kind": "exit", "model": place, "rounds": self.rounds, "prompts": self.prompts}
        return exits, {"kind": "prompted"}
