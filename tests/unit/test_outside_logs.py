"""Failed calls on record: what a log says of them, who leaves them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cascade.episodes.rows import reads_of
from cascade.errors import ProviderUnavailableError, UsageError
from cascade.logs.schema import Dropped, rows
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Request

CONFIG: dict[str, Any] = {
    "models": {"a": "small", "b": "large"},
    "strategy": {"kind": "ladder", "models": ["a", "b"]},
    "policy": {"kind": "fixed", "depth": 2},
    "provider": "fake",
}


def asked(script: Callable[[Request], Any], many: int = 3) -> list[dict[str, Any]]:
    with Orchestrator.from_config(CONFIG, providers={"fake": FakeProvider(script)}) as orchestrator:
        answers = [orchestrator.ask(f"question {number}?") for number in range(many)]
    return [{**row, "correct": True} for one in answers for row in rows(one, horizon=2, split="audit")]


def test_a_row_says_which_calls_of_its_question_failed() -> None:
    def script(request: Request) -> Any:
        return ProviderUnavailableError("key sk-abcdefghijkl") if request.model == "large" else "Answer: Danube"

    made = asked(script, 1)
    assert [row["signals"]["replay"]["failed"] for row in made] == [[[2, "large", "ProviderUnavailableError"]]]
    assert "sk-" not in str(made)


def test_a_question_of_which_a_call_failed_is_left_out_of_a_log() -> None:
    """0.5.0: the last model counted as wrong there, so that such questions made a promise on regret easy to keep."""

    def script(request: Request) -> Any:
        down = request.model == "large" and "1" in request.question.text
        return ProviderUnavailableError("down") if down else "Answer: Danube"

    dropped = Dropped()
    (read,) = reads_of(asked(script), dropped)
    assert read.log.n == 2
    assert dropped.count == 1
    assert "the call of a model failed" in dropped.describe()


def test_a_log_knows_the_names_that_replies_bore() -> None:
    (read,) = reads_of(asked(lambda request: reply("Answer: A", model=f"{request.model}-1")))
    assert read.facts.echoes == {"small": ("small-1",), "large": ("large-1",)}


def test_a_log_of_failed_calls_alone_says_so() -> None:
    def script(request: Request) -> Any:
        return ProviderUnavailableError("down") if request.model == "large" else "Answer: Danube"

    with pytest.raises(UsageError, match="the call of a model failed"):
        reads_of(asked(script))
