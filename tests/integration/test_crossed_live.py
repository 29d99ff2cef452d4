"""What is cross-calibrated on a log is what is served: each third question of the demo log, replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cascade.calibration.scores import scored
from cascade.conformal.arrays import levels, rollout
from cascade.evaluation.logs import DEMO, DEMO_LADDER
from cascade.guarantees.base import Guarantee
from cascade.orchestrator import Orchestrator
from cascade.policies.artifact import write
from cascade.policies.config import DirectoryConfig
from cascade.training.crossing import fit_crossed
from integration.test_fitted_live import assert_same_bits, logged


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "method", "alpha"), [(DEMO, "net_benefit", 0.05), (DEMO_LADDER, "threshold", 0.15)])
def test_a_cross_calibrated_policy_decides_live_as_on_the_log(
    name: str, method: str, alpha: float, tmp_path: Path
) -> None:
    held = logged(name)
    done = fit_crossed([held.table], Guarantee("coverage", alpha), method=method, config=held.config)
    write(tmp_path, done.artifact)
    config = held.config.model_copy(update={"policy": DirectoryConfig(kind="directory", path=str(tmp_path))})
    with Orchestrator.from_config(config, providers={"local": held.provider}) as orchestrator:
        answers = {row: orchestrator.ask(held.questions[row][0]) for row in range(0, held.table.n, 8)}
    (certificate,) = done.artifact.certificates
    assert (certificate.alpha, certificate.kappa) == (2 * alpha, alpha)
    assert all(not answer.warnings and answer.certificate == certificate for answer in answers.values())
    table, scores = scored(done.policy, held.table)
    walked = rollout(table.arrays, levels(table.arrays, scores), certificate.kappa)
    assert walked.length.min() < walked.length.max()  # it decides something
    for row, answer in answers.items():
        assert len(answer.steps) == walked.length[row]
        assert answer.cost_nano_usd == walked.cost[row]
        assert sum(len(step.decision.keep) for step in answer.steps if step.decision) == walked.leaves[row]
        for step in answer.steps:
            assert_same_bits(step, table.sources, scores, table.confidence, row)
