"""From a shipped log to a served answer: fitted, certified, written, and served as the log of the same requests says."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cascade.chat import ChatRequest
from cascade.config import CascadeConfig, load
from cascade.config.policies import DirectoryConfig
from cascade.conformal.certificate import Certificate
from cascade.conformal.promise import Promise
from cascade.demo.requests import PAIR, demo_config, demo_requests, ladder_config
from cascade.episodes.opening import DEMO, DEMO_REQUESTS, open_log
from cascade.episodes.rows import Dataset
from cascade.fitting.certificates import certified_for
from cascade.fitting.certificates import policy_directory as written
from cascade.fitting.fit import Fit, FitSettings, fit
from cascade.identity import identity
from cascade.money import total_nano_usd
from cascade.orchestrator import Orchestrator
from cascade.policies.base import Observation
from cascade.policies.directory import PolicyDirectory, Requests, hashed
from cascade.policies.live import row_of
from cascade.policies.policy import ReferenceOnly, Threshold
from cascade.providers.replay import Replay
from cascade.serving.conditions import made_for
from cascade.table import Log
from cascade.types import Question

CONFIG = ladder_config(demo_config(*PAIR))
CHATS = {request.request_id: request.chat for request in demo_requests("log")}
COUNT = 100


class Fitted(NamedTuple):
    """The demo's requests, a fit of them, and what replays them."""

    read: Dataset
    done: Fit
    directory: PolicyDirectory
    replay: Replay
    chats: tuple[ChatRequest, ...]

    @property
    def log(self) -> Log:
        return self.read.log


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    log = open_log(DEMO_REQUESTS).compared()
    (read,) = log.datasets
    done, rows = fit(read.log, Promise("agreement", 0.05, 0.9)), list(log.rows())
    chats = {identity(row["question"], row["context"]): CHATS[row["episode_id"]] for row in rows}
    return Fitted(read, done, directory_of(read, done), Replay.of(rows), tuple([chats[name] for name in read.log.ids]))


def directory_of(read: Dataset, done: Fit) -> PolicyDirectory:
    """Return the policy directory of a fit."""
    plan, (certified,) = read.log.nodes, done.certified.values()
    bare = PolicyDirectory(plan, done.policy, done.promise, {}, Requests(certified=hashed(done.log.ids)))
    kappa = certified.kappa
    cascade = certified_for(read.log, done.policy.walks(read.log).log, read.facts, made_for(CONFIG))
    only = Certificate(
        done.promise, kappa, certified.n, float(certified.losses), "0" * 64, bare.policy_sha256, "2026-11-21",
        level=certified.level, attempts=done.attempt.number, made_for=cascade, reference=PAIR[1], comparator="json",
    )  # fmt: skip
    return bare.certified(only)


def config(path: Path, **guarantee: Any) -> CascadeConfig:
    """Return the demo's configuration with a policy directory."""
    changed = CONFIG.model_copy(update={"policy": DirectoryConfig(kind="directory", path=str(path))})
    settings = changed.model_dump(mode="json", exclude_none=True)
    section = {"guarantee": guarantee} if guarantee else {}
    return load({**settings, "provider": "replay:the log", **section})


def served(fitted: Fitted, directory: PolicyDirectory, path: Path, **guarantee: Any) -> Orchestrator:
    directory.write(path)
    return Orchestrator.from_config(config(path, **guarantee), providers={"replay": fitted.replay})


def test_what_was_certified_is_served_request_by_request(fitted, tmp_path):
    log, directory = fitted.log, fitted.directory
    walked, kappa = fitted.done.policy.walks(log), directory.certificates[""].kappa
    stop, cost = walked.stop(kappa), walked.cost.at(kappa)
    with served(
        fitted, directory, tmp_path, promise="agreement", risk=0.05, confidence=0.9, required=True
    ) as orchestrator:
        for row, chat in enumerate(fitted.chats[:COUNT]):
            answer = orchestrator.chat(chat)
            assert answer.certificate.id == directory.certificates[""].id
            assert not answer.warnings
            assert len(answer.steps) == stop[row] + 1
            assert total_nano_usd(step.cost_nano_usd for step in answer.steps) == cost[row]
            first = row_of(Observation(answer.question, answer.steps[:1], last=False), log.nodes)
            for signal, values in log.signals.items():
                np.testing.assert_array_equal(first.signals.get(signal, np.nan * values[:1])[0, 0], values[row, 0])
            assert first.features == {name: values[row] for name, values in log.features.items()}
    assert np.isfinite(kappa)
    assert 0 < np.count_nonzero(stop[:COUNT]) < COUNT
    assert fitted.done.saves


def test_the_reference_alone_is_asked_at_once_also_at_a_level_where_nothing_is_proven(fitted, tmp_path):
    done = fit(fitted.log, fitted.done.promise, FitSettings(levels={"low": 0.05, "never": 1e-6}))
    cascade = certified_for(fitted.log, done.policy.walks(fitted.log).log, fitted.read.facts, made_for(CONFIG))
    levels = written(done, fitted.log.nodes, date(2026, 11, 26), made_for=lambda _: cascade, reference=PAIR[1])
    alone = PolicyDirectory(fitted.log.nodes, ReferenceOnly(), fitted.done.promise)
    for directory, level in [(alone, None), (levels, "never")]:
        with served(fitted, directory, tmp_path / str(level)) as orchestrator:
            answer = orchestrator.chat(fitted.chats[0], level=level)
        assert [call.request.model for step in answer.steps for call in step.calls] == [PAIR[1]]
    assert answer.certificate.promise.risk == 1e-6


@pytest.fixture(scope="module")
def demo() -> tuple[Dataset, list[dict[str, Any]]]:
    """Return the demo's log of rounds, and its rows."""
    opened = open_log(DEMO)
    return opened.datasets[0], list(opened.rows())


@pytest.mark.parametrize("kappa", [-np.inf, -0.6, np.inf])
def test_rounds_of_base_and_guide_are_served_as_on_their_log(demo, kappa, tmp_path):
    read, rows = demo
    log, policy = read.log, Threshold("p_yes", -1.0)
    bare = PolicyDirectory(log.nodes, policy, Promise("coverage", 0.1, 0.9))
    cascade = made_for(load(settings := demo_config(*PAIR).model_dump()))
    given: dict[str, Any] = {"level": 0.1, "made_for": certified_for(log, log, read.facts, cascade)}
    only = Certificate(bare.promise, kappa, 60, 0, "0" * 64, bare.policy_sha256, "2026-11-21", **given)  # type: ignore[arg-type]
    bare.certified(only).write(tmp_path)
    walked = policy.walks(log)
    questions = {identity(row["question"], row["context"]): Question(row["question"], row["context"]) for row in rows}
    stop, cost = walked.stop(kappa), walked.cost.at(kappa)
    settings |= {"provider": "replay:the log", "policy": str(tmp_path), "traces": "off"}
    with Orchestrator.from_config(settings, providers={"replay": Replay.of(rows)}) as orchestrator:
        for row, name in enumerate(log.ids[:20]):
            answer = orchestrator.ask(questions[name])
            assert answer.certificate is not None
            assert 2 * len(answer.steps) == stop[row] + 1
            assert answer.cost_nano_usd == cost[row]
            live = row_of(Observation(answer.question, answer.steps, last=True), log.nodes)
            there = live.bought[0]
            assert live.ids == (log.ids[row],)
            for signal, values in live.signals.items():
                np.testing.assert_array_equal(values[0, there], log.signals[signal][row, there])
            np.testing.assert_array_equal(live.answer[0, there], log.answer[row, there])
            np.testing.assert_array_equal(live.cost_nano_usd[0, there], log.cost_nano_usd[row, there])
            np.testing.assert_array_equal(live.confidence[0, there], log.confidence[row, there])
