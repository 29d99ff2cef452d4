"""The examples of docs/import.md, from a table to a served answer: import, fit under a promise of regret, ask."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.config import load
from unit.cli.conftest import Ran

Cli = Callable[..., Ran]

PAGE = (Path(__file__).parents[3] / "docs" / "import.md").read_text("utf-8")
SECTION = PAGE.partition("## A flat table")[2].partition("\n## ")[0]


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", SECTION, re.DOTALL)
    return str(found)


IMPORT, FIT, ASK = (shlex.split(line)[1:] for line in block("text").splitlines())


def table(path: Path, n: int) -> None:
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
    table(tmp_path / "answers.csv", 800)
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
    table(tmp_path / "answers.csv", 400)
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

PROMISED = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")


def example() -> dict[str, Any]:
    """Return the row that the page shows."""
    (found,) = re.findall(r"```json\n(\{.*?\})\n```", PAGE)
    made: dict[str, Any] = json.loads(found)
    return made


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
    ran = cli("fit", str(episodes), *PROMISED, "-o", str(tmp_path / "policy"))
    assert ran.code == 0, ran.err
    monkeypatch.chdir("/")
    with Orchestrator.from_config(load(unserved_config(tmp_path))) as orchestrator:
        answer = orchestrator.ask("1 + 1?")
    assert not [said for said in answer.warnings if "policy" in said]


def test_a_policy_that_the_configuration_cannot_serve_is_reported_at_once(cli, tmp_path):
    episodes = own_log(tmp_path / "log.jsonl", "logprob")
    policy = ("--policy", "{kind: threshold, signal: logprob, sign: -1}", "--config", str(unserved_config(tmp_path)))
    ran = cli("fit", str(episodes), *PROMISED, *policy, "-o", str(tmp_path / "policy"))
    assert ran.code == 0, ran.err
    assert "no step of the strategy gives logprob" in " ".join(ran.err.split())


def test_collect_does_not_open_the_policy(cli, tmp_path):
    """0.5.0: with `policy: ./policy` in the configuration the log that it is to be fitted on could not be collected."""
    (tmp_path / "asked.jsonl").write_text(json.dumps({"question": "1 + 1?", "gold": ["2"]}))
    ran = cli("collect", "asked.jsonl", "-o", "log.jsonl", "--config", str(unserved_config(tmp_path)))
    assert "policy" not in ran.err
    assert (tmp_path / "log.jsonl").exists(), ran.err
