"""What is fitted on a log is what is served: each third question of the demo log, replayed under a fitted policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cascade.calibration.scores import scored
from cascade.config import CascadeConfig
from cascade.conformal.arrays import Floats, ScoreArrays, levels, rollout
from cascade.conformal.served import serves, single
from cascade.demo.requests import PAIR, demo_config, ladder_config
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.logs import DEMO, DEMO_LADDER, open_log
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee
from cascade.orchestrator import Orchestrator
from cascade.policies.artifact import write
from cascade.policies.config import DirectoryConfig
from cascade.providers.replay import Replay
from cascade.serving.monitors import judge
from cascade.training.fitting import fit_policy
from cascade.types import Question, Step


class Logged(NamedTuple):
    """A log to serve from: its table, its questions with the accepted answers, a provider, the cascade that made it."""

    table: EpisodeTable
    questions: list[tuple[Question, Callable[[str], bool | None]]]
    provider: Replay
    config: CascadeConfig


@cache
def logged(name: str) -> Logged:
    """Return a log, read once for all modules."""
    log = open_log(name)
    rows = list(log.rows())
    asked = {row["episode_id"]: (Question(row["question"], row["context"]), tuple(row["gold"])) for row in rows}
    config = demo_config(*PAIR)
    return Logged(
        log.tables[0],
        [(question, judge(gold, "exact")) for question, gold in map(asked.__getitem__, log.tables[0].ids)],
        Replay.of(rows),
        ladder_config(config) if name == DEMO_LADDER else config,
    )


PROMISE = Guarantee("regret", 0.15, 0.1)
METHODS = ("depth", "threshold", "net_benefit")
PROMISES = {
    DEMO: [Guarantee("coverage", 0.05), Guarantee("error", 0.6, 0.1, abstain=True)],
    DEMO_LADDER: [Guarantee("coverage", 0.1), PROMISE],
}
CASES = [(name, promise, method) for name, promises in PROMISES.items() for promise in promises for method in METHODS]


@pytest.mark.parametrize(("name", "promise", "method"), CASES, ids=lambda one: getattr(one, "kind", one))
def test_a_fitted_policy_decides_live_as_on_the_log(name: str, promise: Guarantee, method: str, tmp_path: Path) -> None:
    held = logged(name)
    fitted = fit_policy([held.table], promise, method=method, config=held.config, allow_everything=True)
    write(tmp_path, fitted.artifact)
    config = held.config.model_copy(update={"policy": DirectoryConfig(kind="directory", path=str(tmp_path))})
    with Orchestrator.from_config(config, providers={"local": held.provider}) as orchestrator:
        answers = {row: orchestrator.ask(held.questions[row][0]) for row in range(0, held.table.n, 8)}
    (certificate,) = fitted.artifact.certificates
    assert all(answer.certificate == certificate for answer in answers.values())
    said = [warning for answer in answers.values() for warning in answer.warnings]
    assert {one.split(" of ")[0] for one in said} <= {"the reply", "no step gave an answer"}, (
        said
    )  # some logged replies cannot be read
    table, scores = scored(fitted.policy, held.table)
    kappa = -np.inf if certificate.keeps_everything else certificate.kappa
    found = levels(table.arrays, scores)
    walked = rollout(table.arrays, found, kappa)
    one = single(table.arrays, found, table.confidence, kappa, sure=table.sure)
    below = -np.inf if certificate.abstain_below is None else certificate.abstain_below
    shown = serves(one.sure, below) if math.isfinite(below) else np.ones(table.n, dtype=np.bool_)
    for row, answer in answers.items():
        assert len(answer.steps) == walked.length[row]
        assert answer.cost_nano_usd == walked.cost[row]
        assert sum(len(step.decision.keep) for step in answer.steps if step.decision) == walked.leaves[row]
        right = held.questions[row][1]
        assert (answer.text is not None and bool(right(answer.text))) == bool(one.right[row] and shown[row])
        assert (answer.stopped == "abstained") == (not shown[row])
        for step in answer.steps:
            assert_same_bits(step, table.sources, scores, table.confidence, row)


def assert_same_bits(step: Step, sources: tuple[str, ...], scores: ScoreArrays, confidence: Floats, row: int) -> None:
    """The scores that decided are those of the table, to the last bit."""
    assert step.decision is not None
    t = step.number - 1
    present = scores.candidates[row, t] > -np.inf
    logged_scores = scores.candidates[row, t][present]
    assert [one.hex() for one in map(float, logged_scores)] == [float(one).hex() for one in step.decision.scores]
    assert float(scores.next[row, t]).hex() == float(step.decision.next_score).hex()
    if step.decision.confidences is not None:
        live = [np.nan if one is None else one for one in step.decision.confidences]
        np.testing.assert_array_equal(confidence[row, t][present], live)


def test_a_fit_on_the_demo_ladder_is_cheaper_than_the_guide_and_keeps_its_promise() -> None:
    fitted = fit_policy(open_log(DEMO_LADDER).tables, PROMISE, config=ladder_config(demo_config(*PAIR)))
    (certificate,) = fitted.artifact.certificates
    assert (certificate.kind, certificate.alpha, certificate.delta) == ("regret", 0.15, 0.1)
    realised, guide = fitted.calibrated.realised, fitted.calibrated.reference_cost_nano_usd
    assert realised.cost_nano_usd is not None
    assert guide is not None
    assert realised.cost_nano_usd < guide
    live = {question.text for question, _ in logged(DEMO).questions}
    assert fitted.sizes.training + fitted.sizes.calibration == len(live) == 244


def test_a_promise_that_hardly_any_candidate_keeps_is_written_all_the_same(tmp_path: Path) -> None:
    """In some replicates of the choice a candidate keeps it at no threshold, at an infinite cost."""
    fitted = fit_policy([logged(DEMO).table], Guarantee("regret", 0.5, 0.1))
    write(tmp_path, fitted.artifact)
    assert read_policy(tmp_path).artifact.certificates == fitted.artifact.certificates
    bounds = [one.difference for one in fitted.choice.judged if one.difference is not None]
    assert all(math.isfinite(bound) for one in bounds for bound in one)
