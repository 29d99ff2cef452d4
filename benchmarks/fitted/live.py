"""Logged rows as the steps that a policy saw when they were made: texts, signals, calls and all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cascade.policies.base import Observation
from cascade.types import Call, Candidate, Completion, Question, Request, Step, Usage


def walks(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Question, tuple[Step, ...], int]]:
    """Yield each question's steps, as they stood before they were decided, and the horizon."""
    episodes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["walk"] is None:
            episodes.setdefault(row["episode_id"], []).append(row)
    for held in episodes.values():
        question = Question(held[0]["question"], held[0]["context"])
        numbers = sorted({row["step"] for row in held})
        steps = tuple(_step(question, [row for row in held if row["step"] == number], number) for number in numbers)
        yield question, steps, held[0]["horizon"]


def _step(question: Question, rows: list[Mapping[str, Any]], number: int) -> Step:
    signals: dict[str, float | None] = {}
    for row in rows:
        for name, value in (row["signals"] or {}).items():
            signals.setdefault(name, value)
    answers = sorted((row for row in rows if row["candidate"] is not None), key=lambda row: row["candidate"])
    candidates = tuple(Candidate(row["answer"], row["source"], row["model"], row["confidence"]) for row in answers)
    return Step(number, candidates, signals, calls=tuple(_call(question, row) for row in rows))


def _call(question: Question, row: Mapping[str, Any]) -> Call:
    request = Request(row["model"], (), row["source"], "answer", row["step"], question, 1)
    usage = Usage(row["input_tokens"], row["output_tokens"])
    completion = Completion(row["text"] or "", "stop", usage, model=row["model"])
    return Call(request, completion, row["cost_nano_usd"], None)


def observations(rows: Iterable[Mapping[str, Any]]) -> list[Observation]:
    """Return what a policy is asked at every step of every question; the steps before it are as they were made."""
    return [
        Observation(question, steps[: number + 1], horizon)
        for question, steps, horizon in walks(rows)
        for number in range(len(steps))
    ]
