"""Every level serves live as it decides on the log: the demo log replayed at each, under each one's certificate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cascade.calibration.scores import scored
from cascade.conformal.arrays import levels as score_levels
from cascade.conformal.arrays import rollout
from cascade.evaluation.logs import DEMO
from cascade.factory import read_levels
from cascade.guarantees.base import Guarantee
from cascade.orchestrator import Orchestrator
from cascade.policies import levels
from cascade.policies.config import DirectoryConfig
from cascade.training.levels import fit_levels
from integration.test_fitted_live import assert_same_bits, logged

ALPHAS = {"low": 0.1, "medium": 0.05, "high": 0.02}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels") / "policy"
    log = logged(DEMO)
    fitted = fit_levels([log.table], Guarantee("coverage"), ALPHAS, method="net_benefit", config=log.config)
    levels.write(folder, {name: one.artifact for name, one in fitted.items()}, "medium")
    return folder


def test_every_level_decides_live_as_on_the_log(written: Path) -> None:
    log = logged(DEMO)
    table = log.table
    config = log.config.model_copy(update={"policy": DirectoryConfig(kind="directory", path=str(written))})
    held = read_levels(written)
    assert held is not None
    costs, covered = [], []
    with Orchestrator.from_config(config, providers={"local": log.provider}) as orchestrator:
        for name, one in held.policies.items():
            answers = {row: orchestrator.ask(log.questions[row][0], level=name) for row in range(0, table.n, 8)}
            (certificate,) = one.artifact.certificates
            assert all(not answer.warnings and answer.certificate == certificate for answer in answers.values())
            assert {answer.level for answer in answers.values()} == {name}
            shown, scores = scored(one.policy, table)
            kappa = -np.inf if certificate.keeps_everything else certificate.kappa
            walked = rollout(shown.arrays, score_levels(shown.arrays, scores), kappa)
            for row, answer in answers.items():
                assert len(answer.steps) == walked.length[row]
                assert answer.cost_nano_usd == walked.cost[row]
                assert sum(len(step.decision.keep) for step in answer.steps if step.decision) == walked.leaves[row]
                if shown.arrays.solvable[row]:
                    assert any(log.questions[row][1](text) for text in answer.answers) == walked.covered[row]
                for step in answer.steps:
                    assert_same_bits(step, shown.sources, scores, shown.confidence, row)
            costs.append(int(walked.cost.sum()))
            covered.append(float(walked.covered.mean()))
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    assert covered == sorted(covered)


def test_levels_have_certificates_of_their_own_from_the_same_questions(written: Path) -> None:
    held = read_levels(written)
    assert held is not None
    found = [one.artifact for one in held.policies.values()]
    assert len({one.certificates[0].calibration_id for one in found}) == 3
    assert len({one.certificates[0].data_sha256 for one in found}) == 1
    assert [one.certificates[0].alpha for one in found] == [0.1, 0.05, 0.02]
