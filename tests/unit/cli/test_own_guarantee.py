"""A guarantee that an installed package brings in one file: the page's example, through every command and in service."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.recipes import CONFIGS, gold, log_of, said, table

from cascade import Policy, registry
from cascade.conformal import promise
from cascade.conformal.promise import Promise
from cascade.episodes.files import read_rows, write_rows
from cascade.guarantees.base import get
from cascade.orchestrator import Orchestrator
from cascade.policies.fixed import FixedPolicy
from cascade.providers.fake import FakeProvider
from cascade.serving.certified import fallback_of
from cascade.strategies.ladder import Ladder
from cascade.types import Question
from unit import plugged
from unit.cli.conftest import Ran

Cli = Callable[..., Ran]
PAGE = Path(__file__).parents[3] / "docs" / "write-a-guarantee.md"
EXAMPLE = plugged.EXAMPLES / "write_a_guarantee"
LOG = str(log_of("ladder"))
POLICY = "{kind: threshold, signal: reply_mean_logprob, sign: -1}"
ASKED = ("--guarantee", "avoidable", "--alpha", "0.3", "--delta", "0.2")
PROMISED = ("--promise", "avoidable", "--risk", "0.3", "--confidence", "0.8")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugged.installed_once(tmp_path_factory)


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the example's package known while a test runs."""
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "avoidable_guarantee", raising=False)
    get.cache_clear()
    promise.kind_of.cache_clear()
    yield
    get.cache_clear()
    promise.kind_of.cache_clear()


@pytest.mark.usefixtures("installed")
def test_the_page_shows_the_example() -> None:
    blocks = re.findall(r"```(python|toml)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,), (project,) = ([text for kind, text in blocks if kind == one] for one in ("python", "toml"))
    assert code == (EXAMPLE / "avoidable_guarantee.py").read_text("utf-8")
    assert project == (EXAMPLE / "pyproject.toml").read_text("utf-8")


@pytest.mark.usefixtures("installed")
def test_it_is_calibrated_verified_evaluated_and_monitored(cli: Cli, tmp_path: Path) -> None:
    write_rows(tmp_path / "some.jsonl", [one for one in read_rows(LOG) if int(one["episode_id"][1:]) < 90])
    ran = cli("fit", "some.jsonl", "--policy", POLICY, *PROMISED, "-o", "policy")
    assert ran.code == 0, ran.err
    (certificate,) = Policy.load("policy").certificates
    assert certificate.promise == Promise("avoidable", 0.3, 0.8)
    log = table("ladder")
    lost = np.array([_avoidable(log, row, certificate.kappa) for row in range(log.n)])
    verified = cli("verify", "policy", LOG)
    assert (verified.code, "a risk of 0.3 is not refuted" in " ".join(verified.out.split())) == (0, True), verified.out
    evaluated = json.loads(cli("evaluate", LOG, "--policy", "policy", "--json").out)["datasets"][0]
    assert evaluated["rows"][0]["promise"]["risk"] == pytest.approx(lost.mean())
    watched = json.loads(cli("monitor", "policy", LOG, "--json").out)["certificates"][0]
    assert (watched["alpha"], watched["alarmed"]) == (0.3, False)
    assert 0 < watched["misses"] < watched["audits"]


def _avoidable(log: Any, row: int, kappa: float) -> bool:
    """Whether the ladder, which goes on below this log-prob, serves a wrong answer though a model was right."""
    doubts, correct = -log.signals["reply_mean_logprob"][row], log.arrays.correct[row, :, 0]
    answers = log.arrays.answer[row, :, 0].tolist()
    walked = next((t for t in range(2) if doubts[t] < kappa), 2) + 1
    served = max(t for t in range(walked) if answers[t] >= 0)  # the newest
    return bool(not correct[served] and correct.any())


@pytest.mark.usefixtures("installed")
def test_it_is_fitted(cli: Cli) -> None:
    ran = cli("fit", LOG, *PROMISED, "-o", "policy")
    assert ran.code == 0, ran.err


@pytest.mark.usefixtures("installed")
def test_it_is_served_from_a_configuration_and_its_audits_count(cli: Cli, tmp_path: Path) -> None:
    settings = {name: one for name, one in CONFIGS["ladder"].items() if name != "policy"}
    (tmp_path / "cascade.yaml").write_text(json.dumps({**settings, "policy": CONFIGS["ladder"]["policy"]}), "utf-8")
    assert cli("fit", LOG, "--policy", POLICY, *PROMISED, "--config", "cascade.yaml", "-o", "policy").code == 0
    wanted = {"kind": "avoidable", "alpha": 0.3, "delta": 0.2, "required": True, "audit": {"probability": 1, "seed": 1}}
    (tmp_path / "cascade.yaml").write_text(json.dumps({**settings, "policy": "policy", "guarantee": wanted}), "utf-8")
    with Orchestrator.from_config("cascade.yaml", providers={"fake": FakeProvider(said)}) as orchestrator:
        for number in range(40):
            answer = orchestrator.ask(Question(f"What is the word of number {number}?"))
            assert answer.certificate is not None
            truth = orchestrator.record_outcome(answer, gold(number))
            some = any(one.text == gold(number) for step in answer.steps for one in step.candidates)
            assert (truth.missed, truth.counted) == (answer.text != gold(number) and some, True)
        assert orchestrator.runtime.alarm is None
        ladder = orchestrator.runtime.strategy
    assert isinstance(ladder, Ladder)
    assert fallback_of(None, "avoidable", ladder)[1] == FixedPolicy()


@pytest.mark.usefixtures("installed")
def test_without_the_package_its_certificates_are_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("fit", LOG, "--policy", POLICY, *PROMISED, "-o", "policy").code == 0
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    get.cache_clear()
    promise.kind_of.cache_clear()
    assert cli("verify", "policy", LOG).code == 3
    assert cli("fit", LOG, *PROMISED, "-o", "other").code == 2
