"""A verifier is a step of its own: a function, a schema, a command, or a model; its verdict decides and is logged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import lives, until

from cascade import Orchestrator
from cascade.collection import collect
from cascade.config import load
from cascade.errors import ConfigError, UsageError
from cascade.factory import build_strategy
from cascade.logs.questions import AskedQuestion
from cascade.policies.base import Selection
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.verifiers import Command
from cascade.types import Answer, Question, Request

QUESTION = "What is 2 + 2?"


def is_four(question: Question, message: Any) -> Any:
    """Tell whether an answer is 4; of another question nothing."""
    return "4" in message["content"] if question.text == QUESTION else None


def fails(question: Question, message: Any) -> bool:
    raise ZeroDivisionError("no verdict")


HERE = f"{__name__}:is_four"
SAYS_FOUR = [sys.executable, "-c", "import json, sys; sys.exit('4' not in json.load(sys.stdin)['output'])"]


def config(verifier: Any, **more: Any) -> dict[str, Any]:
    return {
        "models": {"base": "small", "guide": "large"},
        "provider": "fake",
        "strategy": {"kind": "verified", "models": ["base", "guide"], "verifier": verifier},
        **more,
    }


def ask(verifier: Any, said: Any, question: Any = QUESTION, script: Any = None) -> Answer:
    fake = FakeProvider(script or (lambda request: said if request.model == "small" else "Answer: 4, surely"))
    with Orchestrator.from_config(config(verifier), providers={"fake": fake}) as cascade:
        return cascade.chat(question) if isinstance(question, list) else cascade.ask(question)


VERIFIERS: dict[str, Any] = {
    "function": {"kind": "function", "function": HERE},
    "command": {"kind": "command", "command": SAYS_FOUR},
    "schema": {"kind": "schema", "json_schema": {"const": 4}},
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_an_answer_that_passes_is_served_and_one_that_fails_is_not(name: str) -> None:
    right = ask(VERIFIERS[name], "Answer: 4")
    assert (right.text, right.stopped, len(right.steps)) == ("4", "policy", 2)
    assert right.steps[1].signals["gate"] == 1.0
    assert right.steps[1].parents == (1,)
    assert right.served[0].model == "small"  # type: ignore[index]
    wrong = ask(VERIFIERS[name], "Answer: 5")
    assert wrong.text == "4, surely"
    assert wrong.steps[1].signals["gate"] == 0.0


def test_a_verdict_costs_nothing_and_the_cost_stays_known() -> None:
    found = ask(VERIFIERS["function"], "Answer: 4").calls
    assert [call.cost_nano_usd for call in found] == [None, 0]  # the fake model has no price, the verifier is free


def test_a_message_is_verified_whole() -> None:
    schema = {"type": "array", "items": {"properties": {"name": {"const": "add"}}}}
    said = reply("", tool_calls=[("add", {"n": 1})])
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    fake = FakeProvider(lambda _: said)
    cascade = Orchestrator.from_config(config({"kind": "schema", "json_schema": schema}), providers={"fake": fake})
    answer = cascade.chat([{"role": "user", "content": "Add."}], tools=tools)
    assert answer.message == said["choices"][0]["message"]
    assert answer.to_openai()["usage"]["prompt_tokens"] == 20
    assert len(fake.requests) == 1


def test_a_model_verifies_with_yes_or_no() -> None:
    def script(request: Request) -> Any:
        if request.role == "verifier":
            return reply("Yes" if '"answer": "4"' in request.messages[-1].content else "No", p_yes=None)
        return said if request.model == "small" else "Answer: 4, surely"

    for said, served in (("Answer: 4", "4"), ("Answer: 5", "4, surely")):
        answer = ask({"kind": "model", "model": "guide"}, said, script=script)
        assert answer.text == served


@pytest.mark.parametrize(
    "verifier",
    [
        {"kind": "function", "function": f"{__name__}:fails"},
        {"kind": "command", "command": ["/nowhere/at/all"]},
        {"kind": "command", "command": [sys.executable, "-c", "import sys; sys.exit(75)"]},
    ],
)
def test_a_verifier_that_cannot_tell_is_unknown_and_the_next_model_answers(verifier: Any) -> None:
    answer = ask(verifier, "Answer: 4")
    assert answer.steps[1].signals["gate"] is None
    assert answer.text == "4, surely"


def test_a_step_without_an_answer_fails_and_nobody_is_asked() -> None:
    before = len(ASKED)
    answer = ask({"kind": "function", "function": f"{__name__}:counted"}, ":")
    assert answer.steps[1].signals["gate"] == 0.0
    assert [(call.request.role, call.request.purpose) for call in answer.calls] == [
        ("small", "answer"), ("verifier", "skip"), ("large", "answer"),
    ]  # fmt: skip
    assert len(ASKED) == before


def test_a_command_that_takes_too_long_is_killed_with_its_children_and_has_failed(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "apart = subprocess.Popen([sys.executable, '-c', 'import os, time; os.setpgid(0, 0); time.sleep(600)'])\n"
        f"open({str(told)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}} {{apart.pid}}')\n"
        f"os.rename({str(told)!r} + '.new', {str(told)!r})\n"
        "time.sleep(600)\n"
    )
    command, limit_s = Command([sys.executable, "-c", program], 0.5), 0.5
    while not told.exists():  # a busy machine may take longer to start it
        assert Command(command.command, limit_s)(Question(QUESTION), {"content": "4"}, 600.0) is False
        limit_s *= 2
    pids = [int(pid) for pid in told.read_text().split()]
    until(lambda: not any(map(lives, pids)))


def test_a_command_sees_no_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    looks = [sys.executable, "-c", "import os, sys; sys.exit('OPENAI_API_KEY' in os.environ)"]
    assert Command(looks)(Question(QUESTION), {"content": ""}, 60.0) is True


def test_a_command_reads_the_whole_request(tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    copies = [sys.executable, "-c", f"import sys; open({str(seen)!r}, 'w').write(sys.stdin.read())"]
    asked = [{"role": "user", "content": "Write code."}]
    ask({"kind": "command", "command": copies}, "print(4)", asked)
    told = json.loads(seen.read_text("utf-8"))
    assert told["request"]["messages"] == asked
    assert (told["output"], told["message"]["content"]) == ("print(4)", "print(4)")


@pytest.mark.parametrize(
    ("verifier", "place"),
    [
        ({"kind": "function", "function": "cascade:nothing"}, "verifier.function"),
        ({"kind": "function", "function": "cascade.types:ALONE"}, "verifier.function"),
        ({"kind": "schema", "json_schema": "/nowhere.json"}, "verifier.json_schema"),
        ({"kind": "command", "command": []}, "verifier.*command"),
        ({"kind": "model", "model": "judge"}, "judge"),
    ],
)
def test_what_is_wrong_with_a_verifier_is_refused_beforehand(verifier: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        Orchestrator.from_config(config(verifier), providers={"fake": FakeProvider()})


def test_its_verdicts_are_collected_and_replayed_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    asked = [AskedQuestion(f"q{n}", Question(QUESTION + " " * n), ("4",)) for n in range(4)]
    fake = FakeProvider(
        lambda one: f"Answer: {len(one.question.text) % 2 + 4}" if one.model == "small" else "Answer: 4"
    )
    counted = {"kind": "function", "function": f"{__name__}:counted"}
    collect(load(config(counted)), asked, log, providers={"fake": fake})
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert {(row["step"], row["source"], row["candidate"]) for row in rows if row["walk"] is None} == {
        (1, "small", 0), (2, "verifier", 0), (3, "large", 0),
    }  # fmt: skip
    gates = [row["signals"]["gate"] for row in rows if row["source"] == "verifier"]
    assert sorted(gates) == [0.0, 0.0, 1.0, 1.0]
    before = len(ASKED)
    again = config(counted, provider=f"replay:{log}")
    with Orchestrator.from_config(again) as cascade:
        answers = [cascade.ask(one.question) for one in asked]
    assert [answer.steps[1].signals["gate"] for answer in answers] == gates
    assert len(ASKED) == before


ASKED: list[str] = []


def counted(question: Question, message: Any) -> bool:
    ASKED.append(question.text)
    return bool(message["content"] == "4")


def test_a_policy_may_leave_out_a_model_or_a_check_but_no_model_that_is_checked() -> None:
    models = {"base": "small", "middle": "medium", "guide": "large"}
    verifier = {"kind": "schema", "json_schema": {}}
    strategy = build_strategy(
        load({**config(verifier), "models": models, "strategy": {
            "kind": "verified", "models": ["base", "middle", "guide"], "verifier": verifier}})
    )  # fmt: skip
    assert (strategy.horizon, strategy.only(Selection(reference=True)).models) == (5, ("large",))
    part = strategy.only(Selection(steps=(3, 4, 5)))
    assert (part.horizon, part.models) == (3, ("medium", "verifier schema", "large"))
    assert strategy.only(Selection(steps=(1, 5))).models == ("small", "large")
    with pytest.raises(UsageError, match="leaves out what the check"):
        strategy.only(Selection(steps=(2, 5)))
    with pytest.raises(UsageError, match="has 5"):
        strategy.only(Selection(steps=(1, 6)))
