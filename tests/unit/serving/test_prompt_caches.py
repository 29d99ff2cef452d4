"""A conversation stays with the model whose prompt cache makes it no dearer than the first one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.calibration.fingerprint import made_for
from cascade.config import load
from cascade.providers.fake import FakeProvider, reply
from cascade.serving.prompt_caches import PromptCaches
from cascade.types import Answer, Request
from unit.certified import certificate, directory

SYSTEM = {"role": "system", "content": "The rules of the shop. " * 300}
LONG = 2_000
CONFIG: dict[str, Any] = {
    "models": {
        "small": {"model": "small", "price": {"input": 1, "output": 5}},
        "large": {"model": "large", "price": {"input": 5, "output": 25, "cached_input": 0.5, "cache_write": 6.25}},
    },
    "provider": "fake",
    "strategy": {"kind": "ladder", "models": ["small", "large"]},
    "policy": {"kind": "fixed", "depth": 2},
    "budget": {"prompt_cache_s": 300},
}


def shop(told: dict[str, int], **changes: Any) -> Orchestrator:
    """Return a ladder whose second model's provider tells this of its prompt cache."""

    def script(request: Request) -> Any:
        assert request.chat is not None
        said = reply("Yes.", input_tokens=LONG + 10 * len(request.chat.messages), output_tokens=20)
        if request.model == "large":
            said["usage"]["prompt_tokens_details"] = told
        return said

    return Orchestrator.from_config(CONFIG | changes, providers={"fake": FakeProvider(script)})


def turns(orchestrator: Orchestrator, many: int) -> list[Answer]:
    """Hold a conversation."""
    messages, answers = [SYSTEM], []
    for number in range(many):
        messages = [*messages, {"role": "user", "content": f"Question {number}?"}]
        answers.append(orchestrator.chat(messages))
        messages = [*messages, dict(answers[-1].message or {})]
    return answers


def asked(answer: Answer) -> list[str]:
    return [call.request.model for step in answer.steps for call in step.calls]


def test_a_conversation_stays_with_the_model_that_has_read_it() -> None:
    first, *later = turns(shop({"cached_tokens": LONG}), 3)
    assert asked(first) == ["small", "large"]
    assert [asked(one) for one in later] == [["large"], ["large"]]


def test_writing_to_a_cache_is_charged_and_shows_that_there_is_one() -> None:
    first, second = turns(shop({"cache_write_tokens": LONG, "cached_tokens": 0}), 2)
    large = first.steps[1].calls[0]
    assert large.cost_nano_usd == LONG * 6_250 + 20 * 5_000 + 20 * 25_000  # two messages of 10 tokens are not written
    assert asked(second) == ["large"]


@pytest.mark.parametrize(
    ("told", "changes"),
    [
        ({"cached_tokens": 0}, {}),  # the provider has no cache for it
        ({"cached_tokens": LONG}, {"budget": {}}),  # not asked for
        ({"cached_tokens": LONG}, {"models": CONFIG["models"] | {"small": {"model": "small", "price": {"input": 0.1, "output": 1}}}}),
    ],
    ids=["no cache", "off", "the first is cheaper all the same"],
)  # fmt: skip
def test_else_every_turn_starts_with_the_first_model(told: dict[str, int], changes: dict[str, Any]) -> None:
    assert [asked(one)[0] for one in turns(shop(told, **changes), 3)] == ["small"] * 3


@pytest.mark.parametrize(("kind", "models"), [("agreement", ["large"]), ("coverage", ["small"])])
def test_a_certificate_that_the_reference_keeps_is_kept(tmp_path: Path, kind: str, models: list[str]) -> None:
    """Under a promise on the set of answers, which the reference alone need not keep, nothing changes."""
    config = {name: value for name, value in CONFIG.items() if name != "policy"}
    inner = {"kind": "threshold", "when": "reply_logprob", "threshold": 0.99}
    now = {**made_for(load(config)), "requests": None}
    one = certificate(kind=kind, kappa=0.0, delta=0.1, made_for=now, reference="large", comparator="text")
    folder = directory(tmp_path / "policy", one, policy=inner)
    for answer in turns(shop({"cached_tokens": LONG}, policy=folder), 3)[1:]:
        assert asked(answer)[:1] == models
        assert answer.certificate is not None


def test_another_conversation_and_an_old_prompt_find_nothing_cached() -> None:
    orchestrator = shop({"cached_tokens": LONG})
    (answer,) = turns(orchestrator, 1)
    assert answer.question.chat is not None
    now = [0.0]
    caches = PromptCaches(300, orchestrator.config.prices(), lambda: now[0])
    caches.note(answer)
    assert caches.stays(answer.question, orchestrator.strategy)
    now[0] = 301.0
    assert not caches.stays(answer.question, orchestrator.strategy)
    assert asked(orchestrator.chat([{"role": "user", "content": "Another?"}]))[0] == "small"
