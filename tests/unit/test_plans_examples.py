"""Each list of nodes among the examples: every node is logged, a policy fitted and certified, and questions asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cascade import Orchestrator
from cascade.api.fitting import fit
from cascade.api.study import verify
from cascade.collection import collect
from cascade.config import load
from cascade.conformal.promise import Promise
from cascade.errors import RefusedError
from cascade.fitting.fit import FitSettings
from cascade.logs.questions import AskedQuestion
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Question, Request

FOLDER = Path(__file__).parents[2] / "examples" / "plans"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
KNOWS = {"small": 0.55, "other-small": 0.55, "middle": 0.8, "large": 0.97}


def said(request: Request) -> Payload:
    """Let a model be right by chance, less sure of itself where it is wrong, and a judge be mostly right about it."""
    rng = np.random.default_rng([len(request.model), request.seed or 0, *request.question.text.encode()])
    right = bool(rng.random() < KNOWS.get(request.model, 0.8))
    if request.purpose == "judge":
        is_right = "Danube" in request.messages[-1].content
        return reply("Yes", p_yes=0.9) if is_right == right else reply("No, Danube" if right else "No, Inn", p_yes=0.1)
    river = "Danube" if right else str(rng.choice(["Inn", "Rhine"]))
    sure = -0.05 if right == (rng.random() < 0.8) else -1.5
    return reply(f"Reasoning: a river.\nAnswer: {river}", logprobs=[sure] * 6, input_tokens=100)


def question(number: int) -> Question:
    return Question(f"Which river is it, {'very ' * (number % 5)}well hidden, number {number}?")


def test_there_are_examples() -> None:
    assert len(FILES) == 5


@pytest.mark.parametrize("name", FILES)
def test_it_is_logged_fitted_and_asked(name: str, tmp_path: Path) -> None:
    config, fake = load(FOLDER / name), {"fake": FakeProvider(said)}
    asked = [AskedQuestion(f"q{number}", question(number), ("Danube",)) for number in range(150)]
    collect(config, asked, tmp_path / "log.jsonl", providers=fake)
    promise, settings = Promise("regret", 0.3, 0.9), FitSettings()
    fit(str(tmp_path / "log.jsonl"), promise, settings, config=config, output=tmp_path / "policy")
    served = load({**config.model_dump(mode="json"), "policy": str(tmp_path / "policy")})
    with Orchestrator.from_config(served, providers=fake) as orchestrator:
        answers = [orchestrator.ask(question(number)) for number in range(150, 190)]
    assert all(answer.certificate is not None and answer.text for answer in answers)
    walks = {tuple([step.number for step in answer.steps]) for answer in answers}
    assert any(len(walk) < len(config.strategy.nodes) for walk in walks)  # type: ignore[attr-defined]
    large = sum(
        any(call.request.model == "large" and call.request.purpose != "judge" for call in one.calls) for one in answers
    )
    assert large < len(answers)


def test_a_certificate_from_a_log_with_a_refused_node_verifies_on_that_log(tmp_path: Path) -> None:
    """0.6: "their answers, costs, signals or judgements have changed", of the very log that it was made from."""

    def refusing(request: Request) -> Payload:
        if request.role == "other" and request.question.text == question(7).text:
            raise RefusedError("the filter declined")
        return said(request)

    models = {name: {"model": name, "price": {"input": 1, "output": 4}} for name in ("small", "middle", "large")}
    names = {"first": "small", "other": "middle", "last": "large"}
    nodes = [{"name": name, "model": model} for name, model in names.items()]
    config = load({"models": models, "strategy": {"kind": "nodes", "nodes": nodes}, "provider": "fake"})
    asked = [AskedQuestion(f"q{number}", question(number), ("Danube",)) for number in range(120)]
    done = collect(config, asked, tmp_path / "log.jsonl", providers={"fake": FakeProvider(refusing)})
    assert [(one.role, one.questions) for one in done.refused] == [("other", 1)]
    for share in (0.6, 0.1):  # the request learns, or certifies
        made, settings = tmp_path / f"policy {share}", FitSettings(learns=share)
        fit(str(tmp_path / "log.jsonl"), Promise("regret", 0.3, 0.9), settings, config=config, output=made)
        verdict = verify(made, str(tmp_path / "log.jsonl"))
        assert verdict.ok, verdict.failed
