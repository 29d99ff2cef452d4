"""A table of one's own, from import to what is served: which requests its certificate covers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.importing import imported
from cascade.logs.presets import Asked
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider

pytest.importorskip("duckdb")
Cli = Callable[..., Any]
MODELS = {"small": "small", "large": "large"}
SENT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "Name the topic."}],
    "temperature": 0,
    "max_tokens": 9,
}


def fitted(cli: Cli, folder: Path, *options: str) -> None:
    """Import a table whose small model is sure of what it gets right, and fit a policy on it."""
    names = "question,small_answer,small_correct,small_logprob,small_cost_usd,large_answer,large_correct,large_cost_usd"
    rows = [
        f"Ticket {at},{'no' if at % 8 == 0 else 'yes'},{at % 8 != 0},{-2 if at % 8 == 0 else -0.1},0.001,yes,true,0.1"
        for at in range(160)
    ]
    (folder / "t.csv").write_text("\n".join([names, *rows]))
    ran = cli("import", "t.csv", "-o", "log.jsonl", *options, "--json")
    assert (ran.code, json.loads(ran.out)["rows_without_request"]) == (0, 0 if options else 320)
    assert cli("fit", "log.jsonl", "--promise", "regret", "--risk", "0.1", "--confidence", "0.9", "-o", "p").code == 0


def config(folder: Path) -> dict[str, Any]:
    strategy = {"kind": "ladder", "models": [*MODELS]}
    return {
        "models": MODELS,
        "strategy": strategy,
        "policy": str(folder / "p"),
        "provider": f"replay:{folder}/log.jsonl",
    }


def test_a_certificate_covers_requests_that_were_sent_as_those_of_the_table(cli, tmp_path):
    (tmp_path / "sent.json").write_text(json.dumps(SENT))
    fitted(cli, tmp_path, "--request", "sent.json")
    with Orchestrator.from_config(config(tmp_path)) as orchestrator:
        sure, unsure = (
            orchestrator.chat({**SENT, "messages": [*SENT["messages"], {"role": "user", "content": f"Ticket {at}"}]})
            for at in (1, 8)
        )
        service = orchestrator.runtime.service
        assert service is not None
        assert not service.monitors.uncovered
    assert (sure.text, len(sure.steps), unsure.text, len(unsure.steps)) == ("yes", 1, "yes", 2)
    assert None not in (sure.certificate, unsure.certificate)


def test_requests_with_what_a_table_does_not_record_are_counted_by_what_it_is(cli, tmp_path):
    fitted(cli, tmp_path)
    (tmp_path / "cascade.yaml").write_text(json.dumps(config(tmp_path)))
    states = {finding["what"]: finding["state"] for finding in json.loads(cli("doctor", "--json").out)}
    assert (states["certificate"], states["scope of certificate"]) == ("ok", "note")
    with Orchestrator.from_config(config(tmp_path)) as orchestrator:
        asked = orchestrator.ask("Ticket 1")
    assert (asked.text, len(asked.steps), asked.certificate is None) == ("yes", 1, False)
    fake = FakeProvider({name: ["yes"] * 9 for name in MODELS})
    told = [*SENT["messages"], {"role": "user", "content": "Ticket 1"}]
    parts = [{"role": "user", "content": [{"type": "secret_name", "secret_name": {}}]}]
    with Orchestrator.from_config(config(tmp_path) | {"provider": "fake"}, providers={"fake": fake}) as orchestrator:
        for body in ({"messages": told, "temperature": 0.37}, {"messages": parts}):
            assert orchestrator.chat({**body, "max_tokens": 7}).certificate is None
        service = orchestrator.runtime.service
    assert service is not None
    counts = {"a system message": 1, "temperature": 1, "a limit of the reply": 2, "other content": 1}
    assert (service.status.answered, service.status.certified, service.monitors.uncovered) == (2, 0, counts)


@pytest.mark.parametrize("request_", ["{temprature: 0}", "{messages: [{role: system}]}", "no-such-file.json", "{{}"])
def test_a_request_that_could_not_be_sent_is_refused(cli, tmp_path, request_):
    (tmp_path / "t.csv").write_text("question,a_answer,b_answer\nq,x,y\n")
    assert cli("import", "t.csv", "-o", "log.jsonl", "--request", request_).code == 2
    assert not (tmp_path / "log.jsonl").exists()


def test_a_log_that_says_what_was_sent_takes_no_request(tmp_path):
    (tmp_path / "own.jsonl").write_text(json.dumps({"question": "q", "step": 1, "source": "a", "answer": "x"}))
    with pytest.raises(UsageError), imported([tmp_path / "own.jsonl"], Asked(request=SENT)):
        pass


def table(path: Path, signal: str) -> str:
    """Write a table whose small model is sure of what it gets right; the large one is always right."""
    names = f"question,small_answer,small_correct,{signal},small_cost_usd,large_answer,large_correct,large_cost_usd,hue"
    lines = [f"Ticket {at},a,{at % 8 > 0},{-0.1 if at % 8 else -2},0.001,b,true,0.1,red" for at in range(160)]
    path.write_text("\n".join([names, *lines]))
    return str(path)


PROMISED = ("--promise", "regret", "--risk", "0.1", "--confidence", "0.9")


def test_a_signal_that_no_strategy_gives_is_named_by_import_prove_and_fit(cli, tmp_path):
    log = table(tmp_path / "t.csv", "small_score")
    ran = cli("import", log, "-o", "log.jsonl", "--map", "small.signals.score=small_score", "--json")
    assert ran.document["not_live"] == ["score"]
    assert " score " in cli("prove", "log.jsonl", "--splits", "2").err
    for settings, foreign in (("{kind: threshold, signal: score, sign: -1}", ["score"]), ("fixed", [])):
        ran = cli("fit", "log.jsonl", *PROMISED, "--policy", settings, "-o", "p", "--force", "--json")
        assert ran.document["not_live"] == foreign
    assert "hue" in cli("prove", log, "--splits", "2").err


def test_a_configuration_of_other_models_does_not_join_a_proof(cli, tmp_path):
    log = table(tmp_path / "t.csv", "small_logprob")
    judge = "{model: j, kind: decision, price: {input: 1000, output: 0}}"
    for small, judges in (("small", 1), ("other", 0)):
        models = f"{{base: {small}, guide: large, judge: {judge}}}"
        (tmp_path / "cascade.yaml").write_text(f"models: {models}\nprovider: fake\n")
        ran = cli("prove", log, "--splits", "2", "--json")
        assert "cascade.yaml" in ran.err
        (found,) = ran.document["studies"]
        assert sum(not signal["is_held"] for signal in found["signals"]) == judges
