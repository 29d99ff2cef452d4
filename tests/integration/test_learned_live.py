"""A learned policy does live what it does on the log: the demo log replayed, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner, Result
from unit import networks
from unit.policies import learned_made as made

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.scores import history_of, scored
from cascade.calibration.verifying import verify
from cascade.cli.main import app
from cascade.config import load
from cascade.conformal.arrays import ScoreArrays, levels, rollout
from cascade.conformal.served import single
from cascade.demo.requests import demo_config
from cascade.engine import abstains, sure_of
from cascade.episodes.files import read_rows, write_rows
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import ConfigError
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee
from cascade.orchestrator import Orchestrator
from cascade.policies.artifact import MODEL_FILE, PolicyArtifact, write
from cascade.policies.learned import LearnedPolicy
from cascade.policies.model_file import dumps
from cascade.policies.model_file import settings as settings_of
from cascade.providers.replay import Replay
from cascade.text import normalize_answer
from cascade.types import Answer, Question

KINDS = ("linear", "trees", "signal", "network")
_KAPPA = {"signal": -0.5}


class Demo(NamedTuple):
    """The demo log: its table, its questions with what is right, the text of each answer by (episode, step, source).

    `replay` answers from it. `path` holds each third question, for commands.
    """

    table: EpisodeTable
    questions: list[Question]
    gold: list[tuple[str, ...]]
    texts: Mapping[tuple[str, int, str], str]
    replay: Replay
    path: Path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    log = Path(str(resources.files("cascade").joinpath("data/demo_log.parquet")))
    rows = [row for row in read_rows(log) if row["walk"] is None]
    asked = {row["episode_id"]: Question(row["question"], row["context"]) for row in rows}
    gold = {row["episode_id"]: tuple(row["gold"]) for row in rows}
    made_by = [row for row in rows if row["candidate"] is not None]
    texts = {(row["episode_id"], row["step"], row["source"]): normalize_answer(row["answer"]) for row in made_by}
    (table,) = tables_from_rows(rows)
    path = tmp_path_factory.mktemp("demo") / "log.jsonl"
    write_rows(path, [row for row in rows if row["episode_id"] in set(table.ids[::3])])
    questions = [asked[name] for name in table.ids]
    return Demo(table, questions, [gold[name] for name in table.ids], texts, Replay.of(rows), path)


def replayed(demo: Demo, **changes: Any) -> Orchestrator:
    """Return a cascade that answers from the log, read once."""
    return Orchestrator.from_config(settings(demo, **changes), providers={"replay": demo.replay})


def settings(demo: Demo, **changes: Any) -> dict[str, Any]:
    made_by = demo_config("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b").model_dump(mode="json", exclude_none=True)
    return {**made_by, "provider": f"replay:{demo.path}", **changes}


def policy_on(demo: Demo, kind: str = "linear") -> LearnedPolicy:
    if kind == "network":
        return networks.on_log(history_of(demo.table))
    return replace(made.on_log(history_of(demo.table), kind), kappa=_KAPPA.get(kind, 0.0))


def directory(folder: Path, policy: LearnedPolicy) -> Path:
    data = dumps(policy)
    write(folder, PolicyArtifact(settings_of(policy, data), files={MODEL_FILE: data}))
    return folder


def ranked_offline(demo: Demo, table: EpisodeTable, scores: ScoreArrays, kappa: float, row: int) -> list[str]:
    """Return the answers that a question is served, best first, in plain Python on the arrays of the log."""
    kept: dict[str, list[tuple[float, int]]] = {}
    for t in range(int(table.arrays.steps[row])):
        places = np.flatnonzero(table.arrays.present[row, t])
        given = scores.candidates[row, t, places]
        best = int(np.argmax(given)) if places.size else -1
        last = t + 1 == table.arrays.horizon
        stays = last or (places.size > 0 and scores.next[row, t] <= given[best])
        for k, place in enumerate(places):
            if given[k] >= kappa or (k == best and stays):
                text = demo.texts[table.ids[row], t + 1, table.sources[place]]
                kept.setdefault(text, []).append((float(table.confidence[row, t, place]), t + 1))
        if last or not (scores.next[row, t] >= kappa or not stays):
            break

    def worth(text: str) -> tuple[float, int, int]:
        known = [sure for sure, _ in kept[text] if not math.isnan(sure)]
        return max(known, default=-1.0), len(kept[text]), max(step for _, step in kept[text])

    return sorted(kept, key=worth, reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_episode_is_answered_as_it_is_played(demo: Demo, kind: str, tmp_path: Path) -> None:
    policy = policy_on(demo, kind)
    table, scores = scored(policy, demo.table)
    did = rollout(table.arrays, levels(table.arrays, scores), policy.kappa)
    served = single(table.arrays, levels(table.arrays, scores), table.confidence, policy.kappa, sure=table.sure)
    reordered = 0
    with replayed(demo, policy=str(directory(tmp_path, policy))) as orchestrator:
        for row in range(0, demo.table.n, 8):
            answer = orchestrator.ask(demo.questions[row])
            same_numbers(answer, table, scores, row)
            assert (len(answer.steps), answer.cost_nano_usd) == (did.length[row], did.cost[row])
            texts = [normalize_answer(one) for one in answer.answers]
            assert texts == ranked_offline(demo, table, scores, policy.kappa, row)
            assert bool(served.right[row]) == (answer.text is not None and _right(demo, row, texts[0]))
            own = [
                step._replace(decision=step.decision._replace(confidences=None))
                for step in answer.steps
                if step.decision
            ]
            reordered += _rank_of(own) != texts
    assert len(set(did.length.tolist())) == 4  # walks of every length
    assert 0 < did.leaves.sum() < table.arrays.present.sum()
    assert reordered > 1  # the policy's confidences rank otherwise than the strategy's


def _rank_of(steps: Any) -> list[str]:
    from cascade.engine import rank

    return [normalize_answer(one) for one in rank(steps)]


def _right(demo: Demo, row: int, text: str) -> bool:
    arrays, name = demo.table.arrays, demo.table.ids[row]
    return any(
        arrays.correct[row, t, place] and demo.texts[name, t + 1, demo.table.sources[place]] == text
        for t, place in zip(*np.nonzero(arrays.present[row]), strict=True)
    )


def same_numbers(answer: Answer, table: EpisodeTable, scores: ScoreArrays, row: int) -> None:
    """Hold every number of every decision against the log's, to the bit."""
    for t, step in enumerate(answer.steps):
        assert step.decision is not None
        places = [table.sources.index(one.source) for one in step.candidates]
        assert list(step.decision.scores) == scores.candidates[row, t, places].tolist()
        assert step.decision.next_score == scores.next[row, t]
        assert step.decision.confidences is not None
        assert _nan(step.decision.confidences) == _nan(table.confidence[row, t, places].tolist())
        sure = [sure_of(step, index) for index in range(len(places))]
        assert _nan(sure) == _nan(table.sure[row, t, places].tolist())


def _nan(values: Any) -> list[str]:
    return ["unknown" if one is None or math.isnan(one) else repr(float(one)) for one in values]


# --- certified


@pytest.mark.parametrize(
    "guarantee",
    [
        Guarantee("coverage", 0.1),
        Guarantee("coverage", 0.15, 0.1),
        Guarantee("error", 0.35, 0.1, abstain=True),
    ],
    ids=["coverage", "pac", "error"],
)
@pytest.mark.parametrize("kind", ["linear", "network"])
def test_a_certificate_of_a_learned_policy_is_made_served_and_verified(
    demo: Demo, guarantee: Guarantee, kind: str, tmp_path: Path
) -> None:
    held = read_policy(directory(tmp_path / "fitted", policy_on(demo, kind)))
    config = load(settings(demo))
    done = calibrate_policy([demo.table], held.policy, held.section, guarantee, config=config, held=held.artifact)
    write(tmp_path / "certified", done.artifact)
    (certificate,) = done.artifact.certificates
    assert certificate.policy_sha256 == held.artifact.policy_sha256 or guarantee.single  # else the path is in it
    verdict = verify(tmp_path / "certified", [demo.table], config=config)
    assert verdict.ok, verdict
    table, scores = scored(held.policy, demo.table)
    found = levels(table.arrays, scores)
    did = rollout(table.arrays, found, certificate.kappa)
    best = single(table.arrays, found, table.confidence, certificate.kappa, sure=table.sure)
    asked = {
        "kind": guarantee.kind,
        "alpha": guarantee.alpha,
        "required": True,
        "audit": {"probability": 0.3, "seed": 1},
    }
    abstained = 0
    with replayed(demo, policy=str(tmp_path / "certified"), guarantee=asked) as orchestrator:
        for row, question in enumerate(demo.questions[:40]):
            answer = orchestrator.ask(question)
            assert answer.certificate == certificate
            same_numbers(answer, table, scores, row)  # of the steps that were run for an audit too
            assert sum(not step.audited for step in answer.steps) == did.length[row]
            sure = None if math.isnan(best.sure[row]) else float(best.sure[row])
            assert (answer.text is None) == abstains(sure, certificate.abstain_below)
            abstained += answer.text is None
            if answer.audited:
                assert orchestrator.record_outcome(answer, demo.gold[row]).missed is not None
    assert (abstained > 0) == guarantee.abstain


def test_keeping_everything_keeps_the_confidences(demo: Demo, tmp_path: Path) -> None:
    held = read_policy(directory(tmp_path / "fitted", policy_on(demo)))
    few, config = demo.table.take(np.arange(5)), load(settings(demo))
    done = calibrate_policy(
        [few], held.policy, held.section, Guarantee("coverage", 0.1), config=config, held=held.artifact,
        allow_everything=True,
    )  # fmt: skip
    write(tmp_path / "certified", done.artifact)
    deciding = read_policy(tmp_path / "certified").deciding
    table, scores = scored(deciding, demo.table)
    mine, _ = scored(held.policy, demo.table)
    assert np.array_equal(table.confidence, mine.confidence, equal_nan=True)
    assert np.array_equal(scores.candidates == math.inf, demo.table.arrays.present)
    with replayed(demo, policy=str(tmp_path / "certified")) as orchestrator:
        for row, question in enumerate(demo.questions[:20]):
            answer = orchestrator.ask(question)
            assert len(answer.steps) == 4
            same_numbers(answer, table, scores, row)
            texts = [normalize_answer(one) for one in answer.answers]
            assert texts == ranked_offline(demo, table, scores, deciding.kappa, row)


def test_after_an_alarm_the_fallback_serves(demo: Demo, tmp_path: Path) -> None:
    held = read_policy(directory(tmp_path / "fitted", policy_on(demo)))
    config = load(settings(demo))
    done = calibrate_policy(
        [demo.table], held.policy, held.section, Guarantee("coverage", 0.1), config=config, held=held.artifact
    )
    write(tmp_path / "certified", done.artifact)
    asked = {"audit": {"probability": 1.0, "seed": 1}, "monitor": {"level": 0.5}}
    with replayed(demo, policy=str(tmp_path / "certified"), guarantee=asked) as orchestrator:
        for question in demo.questions:
            answer = orchestrator.ask(question)
            if orchestrator.runtime.alarm is not None:
                break
            kept = {normalize_answer(one) for one in answer.answers}
            left_out = [one.text for one in answer.steps[-1].candidates if normalize_answer(one.text) not in kept]
            orchestrator.record_outcome(
                answer, left_out or ["nobody"]
            )  # a miss wherever the last step had another answer
        assert orchestrator.runtime.alarm is not None
        assert answer.certificate is None
        assert len(answer.steps) == 4
        assert all(step.decision is None or step.decision.confidences is None for step in answer.steps)


# --- the commands


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_a_directory_that_was_edited_is_refused(demo: Demo, tmp_path: Path) -> None:
    directory(tmp_path, policy_on(demo))
    data = bytearray((tmp_path / MODEL_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / MODEL_FILE).write_bytes(bytes(data))
    found = run("evaluate", demo.path, "--policy", tmp_path)
    assert found.exit_code != 0
    assert isinstance(found.exception, ConfigError)
