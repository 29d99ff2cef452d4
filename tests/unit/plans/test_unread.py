"""A reply that cannot be read as an answer is a warning of the answer, whichever strategy asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply

CODE = "```python\nprint(1)\n```"
STRATEGIES: dict[str, dict[str, Any]] = {
    "ladder": {"kind": "ladder", "models": ["base", "guide"]},
    "base_guide": {"kind": "base_guide", "rounds": 1},
    "exit": {"kind": "exit", "model": "guide", "rounds": 1},
}


def asked(strategy: str, said: Any, question: str = "Which code?") -> Any:
    config = {
        "models": {"base": {"model": "small", "max_tokens": 64}, "guide": {"model": "large", "max_tokens": 64}},
        "strategy": STRATEGIES[strategy],
        "provider": "fake",
        "traces": "off",
    }
    return Orchestrator.from_config(config, providers={"fake": FakeProvider(lambda _: said)}).ask(question)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_reply_without_an_answer_is_a_warning_with_its_start(strategy: str) -> None:
    """0.5.0: text=None and warnings=()."""
    answer = asked(strategy, reply("!!! ---\n???"))
    assert answer.text is None
    unread = [said for said in answer.warnings if "cannot be read as an answer" in said]
    assert any("large" in said for said in unread)
    assert all("!!! --- ???" in said for said in unread)


@pytest.mark.parametrize("strategy", ["ladder", "exit"])
@pytest.mark.parametrize("label", ["none", "Unknown", "n/a"])
def test_a_label_that_the_question_offers_is_an_answer(strategy: str, label: str) -> None:
    """A label "none" was no answer, so every model was paid and nothing served."""
    said = reply(f"Reasoning: no other fits.\nAnswer: {label}")
    assert asked(strategy, said, f"Refund, shipping or {label.lower()}?").text == label
    assert asked(strategy, said, "Which nonexistent, unknowns or can/anna?").text is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_reply_cut_at_max_tokens_is_a_warning_that_names_the_setting(strategy: str) -> None:
    """0.5.0: text=None and warnings=()."""
    answer = asked(strategy, reply("Answer: a long one", finish_reason="length"))
    assert answer.text is None
    assert any("max_tokens" in said and "64 tokens" in said and "Answer: a long" in said for said in answer.warnings)


@pytest.mark.parametrize("strategy", ["ladder", "exit"])
def test_code_is_served_whole(strategy: str) -> None:
    """0.5.0: text=None, both models paid."""
    assert CODE in [candidate.text for step in asked(strategy, reply(CODE)).steps for candidate in step.candidates]


def test_the_start_of_a_reply_in_a_warning_holds_no_key() -> None:
    answer = asked("ladder", reply("sk-" + "a" * 20 + " ...", finish_reason="length"))
    assert "sk-aaaa" not in " ".join(answer.warnings)


def test_base_and_guide_hand_code_on_whole() -> None:
    """The base's code is judged and served; a guide's correction of it is served with its fence."""

    def script(request: Any) -> Any:
        if request.purpose == "judge":
            return reply(f"No\n{CODE}", p_yes=0.01)
        return reply("```python\nprint(2)\n```")

    config = {
        "models": {"base": "small", "guide": "large"},
        "strategy": {"kind": "base_guide", "rounds": 1},
        "policy": {"kind": "fixed"},
        "provider": "fake",
        "traces": "off",
    }
    answer = Orchestrator.from_config(config, providers={"fake": FakeProvider(script)}).ask("Which code?")
    assert set(answer.answers) == {CODE, "```python\nprint(2)\n```"}
