"""A log, and a live cascade, whose requests ask for calls, JSON, a label or text: each is compared by its own form."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade import PolicyDirectory
from cascade.chat import ChatRequest, output_text
from cascade.config import load
from cascade.episodes.reading import labelled_by_reference
from cascade.identity import question_id
from cascade.logs.files import read_rows, write_rows
from cascade.logs.schema import CHAT, COLUMNS, Dropped
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.serving.conditions import made_for
from cascade.types import Question
from unit.builders import TWO_RUNGS
from unit.certified import SURE, certificate, directory
from unit.cli.conftest import Ran
from unit.episodes.test_reading import row_of_reading as row
from unit.review.booking import TOOL, call, write

AGREED = ("--promise", "agreement", "--risk", "0.1", "--confidence", "0.9")
Cli = Callable[..., Ran]
TOOLS, SCHEMA, ENUM, FREE = "tools", "schema", "enum", "free"
FORMS: dict[str, dict[str, Any]] = {
    TOOLS: {"tools": [TOOL]},
    SCHEMA: {"response_format": {"type": "json_object"}},
    ENUM: {"response_format": {"enum": ["refund", "delivery"]}},
    FREE: {},
}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


EQUAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    TOOLS: (call(5, spelled='{ "room": 5.0 }'), call(5)),
    SCHEMA: (assistant('{"a": 1.0}'), assistant('{ "a":1 }')),
    ENUM: (assistant("Refund."), assistant('"refund"')),
    FREE: (assistant("The Danube."), assistant("danube")),
}
"""Outputs that are the same by the form of their request, and by no other form's rule."""
DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    TOOLS: (call(6), call(5)),
    SCHEMA: (assistant('{"a": 2}'), assistant('{"a": 1}')),
    ENUM: (assistant("delivery"), assistant("refund")),
    FREE: (assistant("The Rhine."), assistant("The Danube.")),
}


def request(form: str, number: int = 0) -> ChatRequest:
    return ChatRequest([{"role": "user", "content": f"Request {number}"}], FORMS[form])


def rows_of(number: int, form: str, small: dict[str, Any], large: dict[str, Any], doubt: float) -> list[dict[str, Any]]:
    question = Question.of_chat(request(form, number))
    rows = []
    for step, (model, message) in enumerate((("small", small), ("large", large)), 1):
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {"episode_id": question_id(question.text, question.context), "dataset": "mixed", "schema_version": 5}
        row |= {"question": question.text, "context": question.context, "step": step, "horizon": 2, "candidate": 0}
        row |= {"source": model, "model": model, "answer": output_text(message), "text": json.dumps(message)}
        row |= {"signals": {"reply_mean_logprob": -doubt, "replay": {CHAT: True}}, "cost_nano_usd": 10**step}
        rows.append(row)
    return rows


def _reply(message: dict[str, Any]) -> Any:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return reply(message["content"] or "", tool_calls=calls)


def log(path: Path, n: int, seed: int) -> str:
    """Write a log of which most requests offer tools; what is in doubt differs."""
    draw, rows = random.Random(seed), []
    for number in range(n):
        form, doubt = draw.choices(list(FORMS), (6, 1, 1, 2))[0], draw.random()
        small, large = (DIFFERENT if doubt > 0.7 else EQUAL)[form]
        rows += rows_of(number + 10_000 * seed, form, small, large, doubt)
    return str(write(path, rows))


def test_each_request_is_compared_by_its_own_form():
    rows = [row for at in range(9) for row in rows_of(at, TOOLS, *EQUAL[TOOLS], 0.1)]
    for at, form in enumerate(FORMS, 100):
        rows += [*rows_of(at, form, *EQUAL[form], 0.1), *rows_of(at + 50, form, *DIFFERENT[form], 0.9)]
    labelled = labelled_by_reference(lambda: rows)
    assert labelled.truths["mixed"].comparator == "request"
    first = [row["correct"] for row in labelled.rows(Dropped()) if row["model"] == "small"]
    assert first == [True] * 9 + [True, False] * len(FORMS)
    assert any("judge" in caution for caution in labelled.truths["mixed"].cautions)


def test_a_policy_certified_on_a_mixed_log_is_verified_by_the_same_rule(cli, tmp_path):
    ran = cli("fit", log(tmp_path / "log.jsonl", 300, 1), *AGREED, "-o", "policy")
    assert ran.code == 0, ran.err
    assert "comparator request" in " ".join(ran.err.split())
    (certificate,) = PolicyDirectory.read(tmp_path / "policy").certificates.values()
    assert (certificate.promise.kind, certificate.comparator) == ("agreement", "request")
    assert cli("verify", "policy", log(tmp_path / "fresh.jsonl", 200, 2)).code == 0


def test_a_matcher_of_accepted_answers_it_is_not(cli, tmp_path):
    write(tmp_path / "log.jsonl", [row | {"gold": ["x"]} for row in rows_of(1, FREE, *EQUAL[FREE], 0.1)])
    ran = cli("compare", "log.jsonl", "--matcher", "request")
    assert (ran.code, "compares two outputs of one request" in " ".join(ran.err.split())) == (2, True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("outputs", "missed"), [(EQUAL, 0), (DIFFERENT, 1)], ids=["equal", "different"])
def test_a_live_audit_compares_by_the_form_of_the_request(tmp_path, form, outputs, missed):
    now = {**made_for(load(TWO_RUNGS)), "requests": None}
    promised = certificate(
        kind="agreement", confidence=0.9, kappa=5.0, made_for=now, reference="large", comparator="request"
    )
    config = TWO_RUNGS | {"audits": {"probability": 1, "seed": 1}}
    config["policy"] = directory(tmp_path, promised, policy=SURE)
    small, large = outputs[form]
    provider = FakeProvider({"small": [_reply(small)], "large": [_reply(large)]})
    with Orchestrator.from_config(config, providers={"fake": provider}) as orchestrator:
        answer = orchestrator.chat(request(form))
        assert answer.audited
        monitor = orchestrator.runtime.service.monitors.of(answer.certificate).monitor
        assert (monitor.audits, monitor.misses) == (1, missed)


REGRET = ("--promise", "regret", "--risk", "0.1", "--confidence", "0.9")


def log_of_agreement(path: Path, n: int, *, differs: float = 0.3, first: int = 0, labels: bool = False) -> str:
    """Write a ladder of two models; where the first one is sure it hardly ever differs from the second."""
    rng, rows = random.Random(first), []
    for number in range(first, first + n):
        doubt, name = rng.random(), f"q{number}"
        small = "Danube" if rng.random() > 2 * differs * doubt**2 else "Rhine"
        truth = {"correct": rng.random() < 0.5} if labels else {}
        rows.append(row(name, 1, "small", small, signals={"reply_mean_logprob": -doubt}, **truth))
        rows.append(row(name, 2, "large", "Danube", signals={"reply_mean_logprob": -0.1}, **truth))
    write_rows(path, rows)
    return str(path)


def plain(ran: Any) -> str:
    return " ".join((ran.out + ran.err).split())


def test_fit_offers_agreement_where_there_are_no_labels_and_verify_holds_it_to_account(cli, tmp_path):
    path = log_of_agreement(tmp_path / "log.jsonl", 300)
    ran = cli("fit", path, *AGREED, "-o", "policy")
    assert ran.code == 0, ran.err
    assert "agreement with large" in plain(ran)
    (certificate,) = PolicyDirectory.read(tmp_path / "policy").certificates.values()
    assert (certificate.promise.kind, certificate.reference, certificate.comparator) == ("agreement", "large", "text")
    assert cli("verify", "policy", path).code == 0
    borne_out = cli("verify", "policy", log_of_agreement(tmp_path / "kept.jsonl", 200, first=1_000))
    assert borne_out.code == 0, borne_out.out
    assert cli("verify", "policy", log_of_agreement(tmp_path / "worse.jsonl", 300, differs=3.0, first=2_000)).code == 3


def test_what_needs_labels_is_refused_and_says_what_does_not(cli, tmp_path):
    ran = cli("fit", log_of_agreement(tmp_path / "log.jsonl", 100), "-o", "policy", *REGRET)
    assert ran.code == 2
    assert "regret needs labels" in plain(ran)
    assert "--promise agreement" in plain(ran)


def test_a_promise_that_needs_labels_is_held_to_account_by_the_matcher_of_its_certificate(cli, tmp_path):
    path = log_of_agreement(tmp_path / "log.jsonl", 300)
    write_rows(Path(path), [{**row, "gold": ["Danube"]} for row in read_rows(Path(path))])
    assert cli("fit", path, *REGRET, "--matcher", "exact", "-o", "policy").code == 0
    evaluated = "evaluate", path, "--policy", "policy"
    for words in (("verify", "policy", path), (*evaluated, "--audits"), evaluated):
        assert cli(*words).code == 0


def test_labels_are_left_aside_where_a_reference_or_agreement_is_asked_for(cli, tmp_path):
    path = log_of_agreement(tmp_path / "log.jsonl", 200, labels=True)
    for options in (("--reference", "guide"), ("--reference", "large"), ()):
        assert cli("fit", path, "-o", "policy", "--force", *AGREED, *options).code == 0
        (certificate,) = PolicyDirectory.read(tmp_path / "policy").certificates.values()
        assert certificate.reference == "large"


def test_models_pick_a_cascade_out_of_a_log_of_many(cli, tmp_path):
    rows = []
    for number in range(60):
        for step, model in enumerate(("small", "middle", "large"), 1):
            answer = "Danube" if number % 9 or model != "small" else "Rhine"
            rows.append(row(f"q{number}", step, model, answer, horizon=3, signals={"reply_mean_logprob": -number / 60}))
    write_rows(tmp_path / "many.jsonl", rows)
    ran = cli("fit", "many.jsonl", "-o", "policy", "--models", "small,middle", *AGREED)
    assert ran.code == 0, ran.err
    (certificate,) = PolicyDirectory.read(tmp_path / "policy").certificates.values()
    assert certificate.reference == "middle"
    assert cli("verify", "policy", "many.jsonl", "--models", "small,middle").code == 0
    wrong = cli("fit", "many.jsonl", "-o", "other", "--models", "smal,large", *AGREED)
    assert wrong.code == 2
    assert "did you mean small" in plain(wrong)


@pytest.mark.parametrize("command", ["fit", "prove"])
def test_a_log_without_labels_and_without_a_reference_says_what_is_missing(cli, tmp_path, command):
    write_rows(tmp_path / "one.jsonl", [row(f"q{number}", 1, "small", "x", horizon=1) for number in range(9)])
    ran = cli(command, "one.jsonl", *(AGREED if command == "fit" else ()))
    assert ran.code == 2
    assert "column gold" in plain(ran)
