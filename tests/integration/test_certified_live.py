"""What is certified on a log is what is served: the demo log replayed under its own certificates, question by question."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.scores import table_scores
from cascade.config import load, policy_section
from cascade.conformal.arrays import levels, rollout
from cascade.conformal.served import single
from cascade.conformal.split import covered_at, critical_kappa
from cascade.demo.requests import demo_config
from cascade.episodes.files import read_rows
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.factory import policy_of
from cascade.guarantees.base import Guarantee
from cascade.money import total_nano_usd
from cascade.orchestrator import Orchestrator
from cascade.policies.artifact import write
from cascade.providers.replay import Replay
from cascade.serving.monitors import judge
from cascade.types import Answer, Question

POLICY = {"kind": "threshold"}
GUARANTEES = {  # alphas at which the log's thresholds are finite
    "coverage": Guarantee("coverage", 0.03),
    "pac": Guarantee("coverage", 0.04, 0.2),
    "error": Guarantee("error", 0.5, 0.1, abstain=True),
}
ASKED = 100


class Demo(NamedTuple):
    """The demo log: its table, each question with its accepted answers, and what answers from it."""

    table: EpisodeTable
    questions: list[tuple[Question, tuple[str, ...]]]
    replay: Replay


@pytest.fixture(scope="module")
def demo() -> Demo:
    path = Path(str(resources.files("cascade").joinpath("data/demo_log.parquet")))
    rows = [row for row in read_rows(path) if row["walk"] is None]
    by_episode = {row["episode_id"]: (Question(row["question"], row["context"]), tuple(row["gold"])) for row in rows}
    (table,) = tables_from_rows(rows)
    return Demo(table, [by_episode[name] for name in table.ids], Replay.of(rows))


def replayed(demo: Demo, **changes: Any) -> Orchestrator:
    return Orchestrator.from_config(settings(**changes), providers={"replay": demo.replay})


def settings(**changes: Any) -> dict[str, Any]:
    made = demo_config("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b").model_dump(mode="json", exclude_none=True)
    return {**made, "provider": "replay:the log", **changes}


@pytest.mark.parametrize("kind", sorted(GUARANTEES))
def test_a_certified_policy_does_live_what_it_does_on_the_log(demo: Demo, kind: str, tmp_path: Path) -> None:
    guarantee = GUARANTEES[kind]
    section = policy_section(POLICY)
    config = load(settings())
    made = calibrate_policy([demo.table], policy_of(section), section, guarantee, config=config)
    write(tmp_path, made.artifact)
    asked = {"kind": guarantee.kind, "alpha": guarantee.alpha, "required": True}
    asked |= {"audit": {"probability": 0.5, "seed": 5}, "monitor": {"level": 0.001}}
    with replayed(demo, policy=str(tmp_path), guarantee=asked) as orchestrator:
        answers = [orchestrator.ask(question) for question, _ in demo.questions[:ASKED]]
        truths = [
            orchestrator.record_outcome(answer, gold)
            for answer, (_, gold) in zip(answers, demo.questions[:ASKED], strict=True)
        ]
        assert orchestrator.runtime.alarm is None
    (held,) = made.artifact.certificates
    assert all(answer.certificate == held and not answer.warnings for answer in answers)
    assert 30 < sum(answer.audited for answer in answers) < 70
    steps, scores = demo.table.arrays, table_scores(policy_of(section), demo.table)
    found = levels(steps, scores)
    outcomes, served = rollout(steps, found, held.kappa), single(steps, found, demo.table.confidence, held.kappa)
    critical = critical_kappa(steps, found)
    missed = ~covered_at(critical, held.kappa)
    for row, (answer, truth) in enumerate(zip(answers, truths, strict=True)):
        right = judge(demo.questions[row][1], "exact")
        walked = [step for step in answer.steps if not step.audited]
        kept = sum(len(step.decision.keep) for step in answer.steps if step.decision)
        assert len(walked) == outcomes.length[row]
        assert total_nano_usd(step.cost_nano_usd for step in walked) == outcomes.cost[row]
        assert kept == outcomes.leaves[row]
        if answer.stopped == "abstained":
            assert held.abstain_below is not None
            assert answer.text is None
        else:
            assert len(answer.answers) == outcomes.distinct[row]
            assert (answer.text is not None and right(answer.text)) == served.right[row]
        if answer.audited:
            assert len(answer.steps) == steps.steps[row] == 4
            wanted = _missed(guarantee.kind, answer, bool(missed[row]), bool(served.right[row]))
            assert truth.missed == wanted
            assert truth.counted
    assert np.isfinite(held.kappa)
    assert len({len([step for step in answer.steps if not step.audited]) for answer in answers}) > 1
    assert (kind == "error") == any(answer.stopped == "abstained" for answer in answers)


def _missed(kind: str, answer: Answer, not_covered: bool, right: bool) -> bool:
    return (answer.text is not None and not right) if kind == "error" else not_covered


def test_segments_are_served_at_their_own_thresholds_and_small_ones_by_the_guide(demo: Demo, tmp_path: Path) -> None:
    section = policy_section(POLICY)
    config = load(settings())
    segments = tuple(["long" if len(question.text) > 60 else "short" for question, _ in demo.questions[3:]])
    segments = ("few",) * 3 + segments
    table = demo.table.take(np.ones(demo.table.n, dtype=np.bool_))
    object.__setattr__(table, "segments", segments)
    made = calibrate_policy(
        [table], policy_of(section), section, Guarantee("coverage", 0.04, by_segment=True), config=config
    )
    write(tmp_path, made.artifact)
    assert [(one.segment, one.n, one.needed_n) for one in made.too_small] == [("few", 3, 24)]
    assert made.realised.n == table.n - 3
    kappas = {one.segment: one.kappa for one in made.artifact.certificates}
    assert set(kappas) == {"long", "short"}
    kappas["few"] = np.inf
    found = levels(table.arrays, table_scores(policy_of(section), table))
    wanted = rollout(table.arrays, found, np.array([kappas[segment] for segment in segments]))
    with replayed(demo, policy=str(tmp_path)) as orchestrator:
        for row, (question, _) in enumerate(demo.questions[:ASKED]):
            answer = orchestrator.ask(Question(question.text, question.context, segment=segments[row]))
            if segments[row] == "few":
                assert (answer.certificate, answer.uncovered is None, len(answer.steps)) == (None, False, 1)
                assert answer.served is not None
                assert answer.served[0].source == "guide"
                continue
            assert answer.certificate is not None
            assert answer.certificate.segment == segments[row]
            assert (len(answer.steps), answer.cost_nano_usd) == (wanted.length[row], wanted.cost[row])
