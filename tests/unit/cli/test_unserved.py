"""What a log of one's own becomes: a policy that can be served, or a warning at once that it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.config import load
from cascade.config.policies import DirectoryConfig
from unit.cli.conftest import Ran

Cli = Callable[..., Ran]

PROMISED = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")
PAGE = Path(__file__).parents[3] / "docs" / "import.md"


def example() -> dict[str, Any]:
    """Return the row that the page shows."""
    (found,) = re.findall(r"```json\n(\{.*?\})\n```", PAGE.read_text("utf-8"))
    made: dict[str, Any] = json.loads(found)
    return made


def log(path: Path, signal: str | None = None) -> Path:
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


def config(folder: Path) -> Path:
    path = folder / "cascade.yaml"
    path.write_text(
        "models: {small: small, large: large}\nstrategy: {kind: ladder, models: [small, large]}\n"
        "policy: ./policy\nprovider: fake\ntraces: off\n"
    )
    return path


def test_the_example_log_is_fitted_and_served_from_any_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.5.0: the page's own example was fitted, `fit` said "serves it", and `ask` refused; `policy: ./policy` was
    looked for in the working directory."""
    episodes = log(tmp_path / "log.jsonl")
    ran = cli("fit", str(episodes), *PROMISED, "-o", str(tmp_path / "policy"))
    assert ran.code == 0, ran.err
    monkeypatch.chdir("/")
    with Orchestrator.from_config(load(config(tmp_path))) as orchestrator:
        answer = orchestrator.ask("1 + 1?")
    assert not [said for said in answer.warnings if "policy" in said]


def test_a_policy_that_the_configuration_cannot_serve_is_reported_at_once(cli: Cli, tmp_path: Path) -> None:
    episodes = log(tmp_path / "log.jsonl", "logprob")
    policy = ("--policy", "{kind: threshold, signal: logprob, sign: -1}", "--config", str(config(tmp_path)))
    ran = cli("fit", str(episodes), *PROMISED, *policy, "-o", str(tmp_path / "policy"))
    assert ran.code == 0, ran.err
    assert "no step of the strategy gives logprob" in " ".join(ran.err.split())


def test_a_policy_directory_is_relative_to_the_configurations_file(tmp_path: Path) -> None:
    policy = load(config(tmp_path)).policy
    assert policy == DirectoryConfig(kind="directory", path=str(tmp_path / "policy"))


def test_collect_does_not_open_the_policy(cli: Cli, tmp_path: Path) -> None:
    """0.5.0: with `policy: ./policy` in the configuration the log that it is to be fitted on could not be collected."""
    (tmp_path / "asked.jsonl").write_text(json.dumps({"question": "1 + 1?", "gold": ["2"]}))
    ran = cli("collect", "asked.jsonl", "-o", "log.jsonl", "--config", str(config(tmp_path)))
    assert "policy" not in ran.err
    assert (tmp_path / "log.jsonl").exists(), ran.err
