"""The rows of one episode of a log, gathered: its calls, what they answered and cost, and what the request was."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from cascade.conformal.scope import PLAIN, UNSAID, RequestKind, kind_of
from cascade.identity import identity, question_id
from cascade.logs import schema
from cascade.logs.schema import chat_of, replay_of
from cascade.matching import answer_key
from cascade.policies.features import asked_numbers
from cascade.types import ACT

Row: TypeAlias = Mapping[str, Any]
Names: TypeAlias = Mapping[str, tuple[str, ...]]
Parents: TypeAlias = tuple[tuple[int, ...], ...]


class Caller(NamedTuple):
    """A model that is asked in a step, in a role ("base", "guide", a rung); what for, where it is known."""

    step: int
    role: str
    model: str
    purpose: str | None = None


class LoggedCall(NamedTuple):
    """One row without its texts.

    `key` is equal for answers that are the same; None: the text is unknown. `hashed`: a hash stands for the text.
    """

    step: int
    candidate: int | None
    source: str
    answers: bool
    key: str | None
    hashed: bool
    right: bool | None
    confidence: float
    kept: bool | None
    replied: bool
    cost: int | None
    output_tokens: int | None
    input_tokens: int | None


@dataclass(slots=True)
class Episode:
    """The rows of one episode. The first row with a group decides it, and likewise for the other columns.

    `told`: a model was told whether it was right. `answers` has for each step the call that answers in each place, if
    the rows say it.
    """

    group: str | None = None
    segment: str | None = None
    request: str | None = None
    spelled: str | None = None
    features: Mapping[str, float] = field(default_factory=dict)
    kind: RequestKind | None = None
    told: bool = False
    failed: bool = False
    refused: frozenset[int] = frozenset()
    horizon: int | None = None
    steps: dict[int, list[LoggedCall]] = field(default_factory=dict)
    answers: dict[int, dict[int, LoggedCall]] = field(default_factory=dict)
    parents: dict[int, tuple[int, ...]] = field(default_factory=dict)
    signals: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    walks: dict[str, list[LoggedCall]] = field(default_factory=lambda: defaultdict(list))
    callers: set[Caller] = field(default_factory=set)
    echoes: set[tuple[str, str]] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Add a row."""
        self.group, self.segment = self.group or row["group"], self.segment or row["segment"]
        text, context = row["question"], row["context"]
        if text is not None and self.request is None:
            self.request, self.spelled = identity(text, context), question_id(text, context)
            self.features = {} if schema.is_hashed(text) else asked_numbers(text, context, chat_of(row))
        if text is not None and self.kind is None:
            self.kind = kind_asked(row)
        if row["walk"] is not None:
            self.walks[row["walk"]].append(call_of(row))
        elif row["step"] is not None and row["step"] >= 1:
            self._add_step(row, call_of(row), replay_of(row))

    def _add_step(self, row: Row, call: LoggedCall, replay: Row) -> None:
        if row["horizon"] is not None:
            self.horizon = max(self.horizon or 1, row["horizon"])
        self.steps.setdefault(call.step, []).append(call)
        if row.get("parents") is not None:
            self.parents.setdefault(call.step, tuple(row["parents"]))
        if row["model"]:
            self.callers.add(Caller(call.step, call.source, row["model"], replay.get("purpose")))
            if isinstance(replay.get(schema.ECHOED), str):
                self.echoes.add((row["model"], replay[schema.ECHOED]))
        self.told |= schema.is_told(row)
        if replay.get(schema.FAILED):
            self.failed, self.refused = True, self.refused | schema.refused_steps(row)
        for signal, value in (row["signals"] or {}).items():
            if isinstance(value, int | float):
                self.signals[call.step].setdefault(signal, float(value))

    def reads(self, step: int) -> tuple[int, ...]:
        """Return the steps that a step reads; by default the step before."""
        return self.parents.get(step, (step - 1,) if step > 1 else ())

    @property
    def may_leave_out(self) -> bool:
        """Whether a policy may have left steps out: they are single calls, each with its parents on record."""
        ladder = bool(self.callers) and all(caller.role == caller.model for caller in self.callers)
        reads = [self.parents.get(step, () if ladder else None) for step in self.steps]
        single = all(step in self.answers and len(self.answers[step]) <= 1 for step in self.steps)
        return single and all(steps is not None and self.steps.keys() >= {*steps} for steps in reads)

    def problem(self, name: str, *, unjudged: bool) -> str | None:
        """Return why the episode cannot be judged, in words; None if it can. Refused calls are taken out: unknown.

        With `unjudged`, an answer without truth is none: people judge a part of the answers.
        """
        self.answers = {step: placed for step, calls in self.steps.items() if (placed := by_place(calls)) is not None}
        return self._failure() or self._disorder(name) or self._unjudged(unjudged=unjudged)

    def _failure(self) -> str | None:
        refused = self.refused & self.steps.keys()
        stood_in = any(call.answers for step in refused for call in self.steps[step])  # another model
        for step in refused:  # an agent's earlier calls
            del self.steps[step]
        lacks = not self.refused or stood_in or not self.steps or not self.may_leave_out
        return "an episode in which the call of a model failed" if self.failed and lacks else None

    def _disorder(self, name: str) -> str | None:
        if name == self.spelled and any(is_doubled(calls) for calls in self.steps.values()):
            return DOUBLED
        if not self.steps:
            return "an episode without a step"
        if max(self.steps) > len(self.steps) and not self.may_leave_out:
            return "an episode with a step missing in the middle"
        if any(parent >= step for step in self.steps for parent in self.reads(step)):
            return "an episode with a step that depends on itself or on a later step"
        return None

    def _unjudged(self, *, unjudged: bool) -> str | None:
        for step, calls in self.steps.items():
            if step not in self.answers:
                return "an episode with a step of several answers, one of them with a null candidate"
            if not self.answers[step] and not any(call.replied for call in calls):
                return "an episode with a step without a recorded answer or reply"
            if not unjudged and any(call.right is None for call in self.answers[step].values()):
                return schema.UNJUDGED
        return None


DOUBLED = "a question that is answered twice in one step: give each run its own episode_id"
_ABOUT = frozenset({ACT, "judge", "verify"})
"""The purposes of an agent's own calls, and of calls about an answer: their form is not the request's."""


def kind_asked(row: Row) -> RequestKind | None:
    """Return the kind of the request that a row answers; None if the log has no texts, or the row answers none.

    A row that cascade did not log, as an importer makes one of a bare question, does not say what the model saw.
    """
    replay = replay_of(row)
    if replay.get("purpose") in _ABOUT:
        return None
    if replay.get(schema.CHAT):
        chat = chat_of(row)
        return None if chat is None else kind_of(chat)
    return PLAIN if "finish_reason" in replay else UNSAID


def call_of(row: Row) -> LoggedCall:
    """Return a row without its texts."""
    answer, confidence = row["answer"], row["confidence"]
    return LoggedCall(
        row["step"] or 1,
        row["candidate"],
        row["source"] or row["model"] or "",
        schema.answers(row),
        None if answer is None else answer_key(answer, chat_of(row)),
        answer is not None and schema.is_hashed(answer),
        row["correct"],
        math.nan if confidence is None else confidence,
        row["kept"],
        schema.replied(row),
        row["cost_nano_usd"],
        row["output_tokens"],
        row["input_tokens"],
    )


def by_place(calls: Iterable[LoggedCall]) -> dict[int, LoggedCall] | None:
    """Return the call that answers in each place of a step: the first; None if the rows do not say who.

    The only answer of a step needs no `candidate`.
    """
    placed: dict[int, LoggedCall] = {}
    loose = list[LoggedCall]()
    for call in calls:
        if call.answers and call.candidate is None:
            loose.append(call)
        elif call.answers and call.candidate is not None:
            placed.setdefault(call.candidate, call)
    if loose:
        return {0: loose[0]} if len(loose) == 1 and not placed else None
    return placed


def is_doubled(calls: Iterable[LoggedCall]) -> bool:
    """Whether two rows of a step answer in one place, as where an id that is the question's own joins two runs."""
    candidates = [call.candidate for call in calls if call.answers and call.candidate is not None]
    return len(set(candidates)) < len(candidates)


def answer_name(call: LoggedCall, *, comparable: bool) -> Hashable:
    """Return what distinguishes an answer. Without texts all right answers are one, and each wrong one differs."""
    if call.key is not None:
        return call.key
    return True if call.right and not comparable else (call.step, call.candidate or 0)


def total_of(numbers: Iterable[int | None]) -> int | None:
    """Return a sum; None if one of the numbers is unknown."""
    listed = list(numbers)
    recorded = [number for number in listed if number is not None]
    return sum(recorded) if len(recorded) == len(listed) else None
