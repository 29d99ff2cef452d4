"""A sentence model for tests, and a log on which only what a question is about tells whether the small model knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cascade.config import CascadeConfig, load
from cascade.conformal.arrays import Floats
from cascade.episodes.schema import rows
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Question, Request

WIDTH = 6


class Embedder:
    """Embeds "question 0017?" by its number; `asked` counts the texts."""

    def __init__(self, name: str = "fake:1") -> None:
        self._name, self.asked = name, list[str]()

    @property
    def name(self) -> str:
        return self._name

    def __call__(self, text: str) -> Floats:
        self.asked.append(text)
        number = int((re.findall(r"\d+", text) or ["0"])[0])
        vector = np.random.default_rng(number).normal(size=WIDTH) * 0.1
        vector[0] += 1.0 if easy(number) else -1.0
        return vector / np.linalg.norm(vector)


def easy(number: int) -> bool:
    """Whether the small model knows the answer; nothing in the text's lengths and letters tells it."""
    return (number * 7919) % 101 < 50


def text(number: int) -> str:
    return f"question {number:04d}?"


def answers(request: Request) -> Any:
    """The large model is always right, the small one about easy questions."""
    number = int(re.findall(r"\d+", request.question.text)[0])
    right = request.model == "large" or easy(number)
    return reply(f"Answer: {'right' if right else 'wrong'}", input_tokens=10, output_tokens=5)


def config(**more: Any) -> CascadeConfig:
    """A ladder of two models."""
    price = {"small": {"input": 1.0, "output": 1.0}, "large": {"input": 20.0, "output": 20.0}}
    document: dict[str, Any] = {
        "models": {name: {"model": name, "price": price[name]} for name in price},
        "strategy": {"kind": "ladder", "models": ["small", "large"]},
        "policy": {"kind": "fixed", "depth": 2},
        "provider": "fake",
        "traces": "off",
    }
    return load(document | more)


def logged(n: int, start: int = 0) -> list[Mapping[str, Any]]:
    """Return the rows of n questions, both steps of each."""
    made: list[Mapping[str, Any]] = []
    with Orchestrator.from_config(config(), providers={"fake": FakeProvider(answers)}) as orchestrator:
        for number in range(start, start + n):
            for row in rows(orchestrator.ask(Question(text(number))), horizon=2, dataset="topics", gold=["right"]):
                made.append(row | {"correct": row["answer"] == "right", "created_at": None})
    return made
