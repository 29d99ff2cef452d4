"""A table or log of one's own, from import (docs/import.md) to what is served, and what strangers stumbled over in their first hour."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cascade
from cascade.config import load
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.logs.importing import imported
from cascade.logs.presets import ImportOptions
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider
from cascade.reports.study import study_report
from cascade.studies.study import study
from cascade.text import aligned
from unit.cli.certified import ladder_log
from unit.cli.conftest import Ran
from unit.fitting.test_fit import drawn_log

pytest.importorskip("duckdb")
Cli = Callable[..., Any]
MODELS = {"small": "small", "large": "large"}
SENT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "Name the topic."}],
    "temperature": 0,
    "max_tokens": 9,
}


def fitted_on(cli: Cli, folder: Path, *options: str) -> None:
    """Import a table whose small model is sure of what it gets right, and fit a policy on it."""
    names = "question,small_answer,small_correct,small_logprob,small_cost_usd,large_answer,large_correct,large_cost_usd"
    rows = [
        f"Ticket {at},{'' if at == 9 else 'no' if at % 8 == 0 else 'yes'},{at % 8 != 0},{-2 if at % 8 == 0 else -0.1},0.001,yes,true,0.1"
        for at in range(160)
    ]
    (folder / "t.csv").write_text("\n".join([names, *rows]))
    ran = cli("import", "t.csv", "-o", "log.jsonl", *options, "--json")
    assert (ran.code, json.loads(ran.out)["rows_without_request"]) == (0, 0 if options else 320)
    assert cli("fit", "log.jsonl", "--promise", "regret", "--risk", "0.1", "--confidence", "0.9", "-o", "p").code == 0
    (certificate,) = cascade.PolicyDirectory.read(folder / "p").certificates.values()
    assert certificate.made_for["requests"]["kinds"]["form"]["texts"] == ["chat" if options else "unknown"]


def config(folder: Path) -> dict[str, Any]:
    strategy = {"kind": "ladder", "models": [*MODELS]}
    return {
        "models": MODELS,
        "strategy": strategy,
        "policy": str(folder / "p"),
        "provider": f"replay:{folder}/log.jsonl",
    }


@pytest.mark.parametrize(("other", "question", "count"), [("b", "q1", 0), ("b", "q2", 2), ("a", "q2", 2)])
def test_an_import_counts_questions_that_not_every_model_answered(cli, tmp_path, other, question, count):
    (tmp_path / "t.csv").write_text(f"question,model,answer\nq1,a,x\n{question},{other},x\n")
    assert json.loads(cli("import", "t.csv", "-o", "log.jsonl", "--json").out)["episodes_not_of_all_models"] == count


def test_a_certificate_covers_requests_that_were_sent_as_those_of_the_table(cli, tmp_path):
    (tmp_path / "sent.json").write_text(json.dumps(SENT))
    fitted_on(cli, tmp_path, "--request", "sent.json")
    with Orchestrator.from_config(config(tmp_path)) as orchestrator:
        sure, unsure = (
            orchestrator.chat({**SENT, "messages": [*SENT["messages"], {"role": "user", "content": f"Ticket {at}"}]})
            for at in (1, 8)
        )
        service = orchestrator.runtime.service
        assert not service.monitors.uncovered
    assert (sure.text, len(sure.steps), unsure.text, len(unsure.steps)) == ("yes", 1, "yes", 2)
    assert None not in (sure.certificate, unsure.certificate)


def test_requests_with_what_a_table_does_not_record_are_counted_by_what_it_is(cli, tmp_path):
    fitted_on(cli, tmp_path)
    (tmp_path / "cascade.yaml").write_text(json.dumps(config(tmp_path)))
    states = {finding["what"]: finding["state"] for finding in json.loads(cli("doctor", "--json").out)}
    assert (states["certificate"], states["scope of certificate"]) == ("ok", "note")
    with Orchestrator.from_config(config(tmp_path)) as orchestrator:
        answer = orchestrator.ask("Ticket 1")
    assert (answer.text, len(answer.steps), answer.certificate is None) == ("yes", 1, False)
    fake = FakeProvider({name: ["yes"] * 9 for name in MODELS})
    messages = [*SENT["messages"], {"role": "user", "content": "Ticket 1"}]
    parts = [{"role": "user", "content": [{"type": "secret_name", "secret_name": {}}]}]
    with Orchestrator.from_config(config(tmp_path) | {"provider": "fake"}, providers={"fake": fake}) as orchestrator:
        for body in ({"messages": messages, "temperature": 0.37}, {"messages": parts}):
            assert orchestrator.chat({**body, "max_tokens": 7}).certificate is None
        service = orchestrator.runtime.service
    assert service is not None
    counts = {"a system message": 1, "temperature": 1, "a limit of the reply": 2, "other content": 1}
    status = service.monitors.status
    assert (status.answered, status.certified, service.monitors.uncovered) == (2, 0, counts)


@pytest.mark.parametrize("request_", ["{temprature: 0}", "{messages: [{role: system}]}", "no-such-file.json", "{{}"])
def test_a_request_that_could_not_be_sent_is_refused(cli, tmp_path, request_):
    (tmp_path / "t.csv").write_text("question,a_answer,b_answer\nq,x,y\n")
    assert cli("import", "t.csv", "-o", "log.jsonl", "--request", request_).code == 2
    assert not (tmp_path / "log.jsonl").exists()


def test_a_log_that_says_what_was_sent_takes_no_request(tmp_path):
    (tmp_path / "own.jsonl").write_text(json.dumps({"question": "q", "step": 1, "source": "a", "answer": "x"}))
    with pytest.raises(UsageError), imported([tmp_path / "own.jsonl"], ImportOptions(request=SENT)):
        pass


def sure_table(path: Path, signal: str) -> str:
    """Write a table whose small model is sure of what it gets right; the large one is always right."""
    names = f"question,small_answer,small_correct,{signal},small_cost_usd,large_answer,large_correct,large_cost_usd,hue"
    lines = [f"Ticket {at},a,{at % 8 > 0},{-0.1 if at % 8 else -2},0.001,b,true,0.1,red" for at in range(160)]
    path.write_text("\n".join([names, *lines]))
    return str(path)


PROMISED = ("--promise", "regret", "--risk", "0.1", "--confidence", "0.9")


def test_a_signal_that_no_strategy_gives_is_named_by_import_prove_and_fit(cli, tmp_path):
    log = sure_table(tmp_path / "t.csv", "small_score")
    ran = cli("import", log, "-o", "log.jsonl", "--map", "small.signals.score=small_score", "--json")
    assert ran.document["not_live"] == ["score"]
    assert " score " in cli("prove", "log.jsonl", "--splits", "2").err
    for settings, foreign in (("{kind: threshold, signal: score, sign: -1}", ["score"]), ("fixed", [])):
        ran = cli("fit", "log.jsonl", *PROMISED, "--policy", settings, "-o", "p", "--force", "--json")
        assert ran.document["not_live"] == foreign
    assert "hue" in cli("prove", log, "--splits", "2").err


def test_a_configuration_of_other_models_does_not_join_a_proof(cli, tmp_path):
    log = sure_table(tmp_path / "t.csv", "small_logprob")
    judge = "{model: j, kind: decision, price: {input: 1000, output: 0}}"
    for small, judges in (("small", 1), ("other", 0)):
        models = f"{{base: {small}, guide: large, judge: {judge}}}"
        (tmp_path / "cascade.yaml").write_text(f"models: {models}\nprovider: fake\n")
        ran = cli("prove", log, "--splits", "2", "--json")
        assert "cascade.yaml" in ran.err
        (proof,) = ran.document["studies"]
        assert sum(not signal["is_held"] for signal in proof["signals"]) == judges


PAGE = (Path(__file__).parents[3] / "docs" / "import.md").read_text("utf-8")
SECTION = PAGE.partition("## A flat table")[2].partition("\n## ")[0]


def block(kind: str) -> str:
    (text,) = re.findall(rf"```{kind}\n(.*?)```", SECTION, re.DOTALL)
    return str(text)


IMPORT, FIT, ASK = (shlex.split(line)[1:] for line in block("text").splitlines())


def page_table(path: Path, n: int) -> None:
    """Write the page's table with n questions: the log-prob of the small model says how likely it is right."""
    rng = Random(0)
    first, *_ = rows = list(csv.DictReader(block("csv").splitlines()))
    assert len(rows) == 2
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(first))
        writer.writeheader()
        for q in range(n):
            sure = rng.random()
            small, large = rng.random() < sure**0.25, rng.random() < 0.95
            writer.writerow(
                first
                | {"id": f"q{q}", "question": f"What is {q} + {q}?", "gold": str(2 * q)}
                | {"small_answer": str(2 * q) if small else "no", "small_correct": small, "small_logprob": sure - 1}
                | {"large_answer": str(2 * q) if large else "no", "large_correct": large}
            )


def configured(folder: Path) -> Path:
    """Write the page's configuration, with models that answer in this process."""
    path = folder / "cascade.yaml"
    text = block("yaml")
    assert "provider: litellm\n" in text
    path.write_text(text.replace("provider: litellm\n", "provider: fake\ntraces: off\n"))
    return path


@pytest.fixture
def fitted(cli: Cli, tmp_path: Path) -> Ran:
    """Import and fit with the page's commands."""
    page_table(tmp_path / "answers.csv", 800)
    imported = cli(*IMPORT)
    assert imported.code == 0, imported.err
    assert "800 episodes, 1,600 rows from answers.csv (table)" in imported.out
    assert "nothing was left out" in imported.out
    assert "small > large" in imported.err
    ran = cli(*FIT)
    assert ran.code == 0, ran.err
    assert "no strategy gives" not in ran.err
    return ran


def test_the_pages_table_is_imported_fitted_and_served_with_its_certificate(cli, tmp_path, fitted):
    """0.5.0: `import` refused the table, and what `fit` made of a mapped log-prob was refused by `ask`."""
    assert "no saving certified" not in fitted.out
    configured(tmp_path)
    assert ASK[-1] == "--explain"
    ran = cli(*ASK)
    assert ran.code == 0, ran.err
    assert re.search(r"certificate \w+: ", ran.out + ran.err)
    document: dict[str, Any] = json.loads(cli(*ASK[:-1], "--json").out)
    assert (document["certificate"]["promise"]["kind"], document["certificate"]["promise"]["risk"]) == ("regret", 0.1)
    assert document["warnings"] == []


def test_a_log_with_other_names_of_the_models_gets_the_configured_ones(cli, tmp_path):
    """Before, `fit --config` refused such a log, and nothing said how to go on."""
    page_table(tmp_path / "answers.csv", 400)
    assert cli(*IMPORT).code == 0
    log = IMPORT[IMPORT.index("-o") + 1]
    models = "{small: openai/gpt-4o-mini, large: openai/gpt-4o}"
    ladder = "strategy: {kind: ladder, models: [small, large]}\npolicy: {kind: threshold, signal: reply_mean_logprob, threshold: 1}"
    (tmp_path / "named.yaml").write_text(f"models: {models}\n{ladder}\nprovider: fake\n")
    fit = [log if word == log else word for word in FIT] + ["--config", "named.yaml"]
    refused = cli(*fit)
    assert refused.code == 2
    (command,) = re.findall(r"other names: cascade (import LOG -o NEW .*?)\.?$", " ".join(refused.err.split()))
    renamed = cli(*shlex.split(command.replace("LOG", log).replace("NEW", "named.parquet")), "--rename", "tiny=other")
    assert (renamed.code, "an unused --rename: the log has no such model" in renamed.out) == (0, True), renamed.err
    fitted = cli(*["named.parquet" if word == log else word for word in fit])
    assert fitted.code == 0, fitted.err


# --- a log of one's own, in our form ---

LOOSELY = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")


def example() -> dict[str, Any]:
    """Return the row that the page shows."""
    (text,) = re.findall(r"```json\n(\{.*?\})\n```", PAGE)
    row: dict[str, Any] = json.loads(text)
    return row


def own_log(path: Path, signal: str | None = None) -> Path:
    """Write a ladder of two models, with rows of the page's form; the signal says how likely the first is right."""
    rng, lines = Random(0), []
    (name,) = example()["signals"]
    for q in range(240):
        sure = rng.random()
        for step, model, right, cost in (
            (1, "small", rng.random() < sure, 100),
            (2, "large", rng.random() < 0.95, 2_000),
        ):
            row = example() | {
                "question": f"{q} + {q}?",
                "step": step,
                "model": model,
                "cost_nano_usd": cost,
                "horizon": 2,
            }
            row |= {"answer": str(2 * q) if right else "no", "correct": right}
            row["signals"] = {signal or name: -1.5 + sure} if step == 1 else {}
            lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    return path


def unserved_config(folder: Path) -> Path:
    path = folder / "cascade.yaml"
    path.write_text(
        "models: {small: small, large: large}\nstrategy: {kind: ladder, models: [small, large]}\n"
        "policy: ./policy\nprovider: fake\ntraces: off\n"
    )
    return path


def test_the_example_log_is_fitted_and_served_from_any_folder(cli, tmp_path, monkeypatch):
    """0.5.0: the page's own example was fitted, `fit` said "serves it", and `ask` refused; `policy: ./policy` was
    looked for in the working directory."""
    episodes = own_log(tmp_path / "log.jsonl")
    ran = cli("fit", str(episodes), *LOOSELY, "-o", str(tmp_path / "policy"))
    assert ran.code == 0, ran.err
    monkeypatch.chdir("/")
    with Orchestrator.from_config(load(unserved_config(tmp_path))) as orchestrator:
        answer = orchestrator.ask("1 + 1?")
    assert not [warning for warning in answer.warnings if "policy" in warning]


def test_a_policy_that_the_configuration_cannot_serve_is_reported_at_once(cli, tmp_path):
    episodes = own_log(tmp_path / "log.jsonl", "logprob")
    policy = ("--policy", "{kind: threshold, signal: logprob, sign: -1}", "--config", str(unserved_config(tmp_path)))
    ran = cli("fit", str(episodes), *LOOSELY, *policy, "-o", str(tmp_path / "policy"))
    assert ran.code == 0, ran.err
    assert "no step of the strategy gives logprob" in " ".join(ran.err.split())


def test_collect_does_not_open_the_policy(cli, tmp_path):
    """0.5.0: with `policy: ./policy` in the configuration the log that it is to be fitted on could not be collected."""
    (tmp_path / "asked.jsonl").write_text(json.dumps({"question": "1 + 1?", "gold": ["2"]}))
    ran = cli("collect", "asked.jsonl", "-o", "log.jsonl", "--config", str(unserved_config(tmp_path)))
    assert "policy" not in ran.err
    assert (tmp_path / "log.jsonl").exists(), ran.err


COLUMNS = ("question", "small_answer", "small_correct", "small_logprob", "large_answer", "large_correct", "topic")
NARROW = 80


@pytest.mark.parametrize(
    ("right", "written", "code"),
    [
        ("small_correct", "small_corect", 2),
        ("small_logprob", "small_logprb", 0),
        ("small_answer", "small_anwser", 0),
        ("question", "questoin", 2),
        ("topic", "topic", 0),
    ],
)
def test_a_misspelt_column_is_named_with_the_right_one(cli, tmp_path, right, written, code):
    with (tmp_path / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([written if name == right else name for name in COLUMNS])
        rows.writerows([[f"What is {n}?", "4", "true", -n / 40, "4", "true", "sums"] for n in range(40)])
    ran = cli("prove", "log.csv", "--splits", "2")
    assert ran.code == code, ran.err
    assert (written in ran.err, right in ran.err) == (True, True)


@pytest.mark.parametrize(
    ("proves", "half", "more"), [(500, 900, True), (300, 900, False), (100, 900, True), (100, 200, False)]
)
def test_more_requests_are_advised_only_where_the_log_lacks_them(proves, half, more):
    """0.6: a log of 244 was told to log more, since about 134 would be enough."""
    proof = study(drawn_log(400), Promise("regret", 0.05, 0.9), splits=2)
    row = replace(proof.rows[-1], refused=2)
    short = replace(proof, rows=(*proof.rows[:-1], row), why=proof.why._replace(proves=proves, saves_half=half))
    assert (short.fitted_on, short.groups) == (280, 400)
    advice = study_report(short, "cascade fit LOG").lines[-1]
    assert ("log more requests" in advice, advice.endswith("cascade fit LOG")) == (more, proves == 300)


@pytest.mark.parametrize(("n", "warned"), [(30, True), (60, False)])
def test_a_fit_of_few_requests_says_how_many_it_takes(cli, written, n, warned):
    """ln .099 / ln .95 = 45.1: with fewer nothing can be proven, whatever the log says."""
    log = written([{**row, "correct": row["step"] == 2} for row in ladder_log(n)])
    ran = cli("fit", log, "--promise", "regret", "--risk", "0.05", "--confidence", "0.9")
    assert ran.code == 0, ran.err
    assert ("46" in ran.out.splitlines()[-1].split()) == warned


def test_no_table_is_wider_than_the_screen(cli, written, fake_config, monkeypatch):
    log = written(ladder_log(120))
    monkeypatch.setenv("COLUMNS", str(NARROW))
    for command in (
        ("prices", "gpt-4o"),
        ("evaluate", log, "--policy", "{kind: fixed}"),
        ("compare", log, "--splits", "2"),
    ):
        ran = cli(*command)
        lines = ran.out if command[0] == "prices" else ran.out.partition("\n\n")[2]
        assert lines, command
        assert max(map(len, lines.splitlines())) <= NARROW, command


@pytest.mark.parametrize("width", [None, 200, 60, 40, 20])
def test_no_text_of_a_table_is_lost(width):
    rows = [("a name", *(f"column {n}" for n in range(6)), "says")]
    rows += [(f"row {n}", *map(str, range(n, n + 6)), "some words of a sentence that is long") for n in range(3)]
    text = " ".join("\n".join(aligned(rows, width)).split())
    for cell in {cell for row in rows for cell in row if "sentence" not in cell}:
        assert cell in text
    assert text.count("sentence") == 3


def test_a_log_and_a_result_are_small_in_a_notebook():
    """0.6: `open_log` printed 116,000 characters."""
    log = cascade.open_log("demo-ladder", tell=lambda _: None)
    assert len(repr(log).splitlines()) <= 6
    assert max(map(len, repr(log).splitlines())) <= 200
    done = cascade.fit(log, Promise("regret", 0.1, 0.9), tell=lambda _: None)
    assert repr(done) == str(done)


def test_the_fit_that_prove_prints_is_for_the_configuration_beside_it(cli, written, fake_config):
    log = written(ladder_log(400))
    command = cli("prove", log, *PROMISED, "--splits", "2").out.splitlines()[4]
    assert "--config cascade.yaml" in command
    assert "--config" not in cli("prove", "demo-ladder", *PROMISED, "--splits", "2").out
    fake_config.unlink()
    assert "--config" not in cli("prove", log, *PROMISED, "--splits", "2").out


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from cascade.policies.policy import Threshold
@dataclass(frozen=True, slots=True)
class Unsure(Threshold):
    kind: ClassVar[str] = "unsure"
"""


def test_a_policy_of_ones_own_is_fitted_by_its_place_and_does_not_claim_to_be_served(
    cli, written, tmp_path, monkeypatch
):
    (tmp_path / "unsure_policy.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    policy = "{kind: 'unsure_policy:Unsure', signal: reply_mean_logprob, sign: -1, tie: null}"
    ran = cli("fit", written(ladder_log(400)), *PROMISED, "--policy", policy, "-o", "policy")
    assert ran.code == 0, ran.err
    assert "cascade.yaml" not in ran.out.splitlines()[-1]
    assert "write-a-policy.md" in ran.out.splitlines()[-1]
