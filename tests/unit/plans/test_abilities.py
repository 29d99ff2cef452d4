"""A model that lacks what a request needs is not asked: known beforehand, said, counted and logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.chat import ChatRequest
from cascade.collection import collect
from cascade.config import load
from cascade.episodes.rows import reads_of
from cascade.logs.files import read_rows
from cascade.logs.questions import AskedQuestion
from cascade.providers.fake import FakeProvider
from cascade.types import Question

USER = {"role": "user", "content": "What is it?"}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
NEEDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "images": ({"images": False}, {"messages": [IMAGE]}, "it takes no images"),
    "tools": ({"tools": False}, {"messages": [USER], "tools": TOOLS}, "it takes no tools"),
    "context": ({"context_tokens": 500}, {"messages": [USER], "max_tokens": 490}, "its context has 500"),
}


def config(base: dict[str, Any], guide: dict[str, Any] | None = None, kind: str = "ladder") -> dict[str, Any]:
    strategy = {"kind": "ladder", "models": ["base", "guide"]} if kind == "ladder" else {"kind": kind}
    models = {"base": {"model": "small", **base}, "guide": {"model": "large", **(guide or {})}}
    return {"models": models, "provider": "fake", "strategy": strategy, "policy": {"kind": "fixed"}}


@pytest.mark.parametrize("kind", ["ladder", "base_guide"])
@pytest.mark.parametrize("name", NEEDS)
def test_a_model_that_lacks_something_is_skipped_and_explain_says_so(name: str, kind: str) -> None:
    lacks, body, said = NEEDS[name]
    fake = FakeProvider(lambda _: "A cat.")
    with Orchestrator.from_config(config(lacks, kind=kind), providers={"fake": fake}) as cascade:
        answer = cascade.chat(body)
    assert [request.model for request in fake.requests] == ["large"]
    assert said in answer.explain()
    assert answer.steps[0].signals["model_skipped"] == 1.0
    assert answer.message == {"role": "assistant", "content": "A cat."}
    assert answer.calls[0].cost_nano_usd == 0


@pytest.mark.parametrize("name", NEEDS)
def test_what_is_not_needed_or_not_known_skips_nobody(name: str) -> None:
    lacks, body, _ = NEEDS[name]
    fake = FakeProvider(lambda _: "A cat.")
    for made, asked in ((config(lacks), [USER]), (config({}), body)):
        with Orchestrator.from_config(made, providers={"fake": fake}) as cascade:
            assert "model_skipped" not in cascade.chat(asked).steps[0].signals


def test_somebody_is_asked_where_every_model_lacks_something() -> None:
    fake = FakeProvider(lambda _: "A cat.")
    made = config({"images": False}, {"images": False})
    with Orchestrator.from_config(made, providers={"fake": fake}) as cascade:
        assert cascade.chat([IMAGE]).text == "A cat."


def test_a_log_keeps_the_requests_for_which_a_model_was_skipped(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    asked = [
        AskedQuestion(f"q{n}", Question.of_chat(ChatRequest([one])), ("A cat.",)) for n, one in enumerate([IMAGE, USER])
    ]
    fake = FakeProvider(lambda _: "A cat.")
    collect(load(config({"images": False})), asked, log, providers={"fake": fake})
    (read,) = reads_of(read_rows(log))
    assert read.log.n == 2
    assert sorted(read.log.signals["model_skipped"][:, 0].tolist(), key=str) == [
        1.0,
        pytest.approx(float("nan"), nan_ok=True),
    ]
