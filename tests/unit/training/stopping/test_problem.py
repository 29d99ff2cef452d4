"""The problem that several estimators are given: made once for one table, and the same as made alone."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import WORLDS, simulate

from cascade.policies import model_file
from cascade.training import stopping
from cascade.training.stages import FitTarget
from cascade.training.stopping import Problem, SharedProblem, build, fit_net_benefit

TABLE = simulate(WORLDS["hotpotqa/llama-2-7b"], 300, seed=1)
ASKED = FitTarget("error", 0.2)


def test_estimators_that_share_a_problem_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*args: object, **more: object) -> Problem:
        nonlocal made
        made += 1
        return build(*args, **more)  # type: ignore[arg-type]

    alone = model_file.dumps(fit_net_benefit(build(TABLE, ASKED)))
    monkeypatch.setattr(stopping, "build", counted)
    shared = SharedProblem()
    assert [model_file.dumps(fit_net_benefit(shared(TABLE, ASKED))) for _ in range(2)] == [alone, alone]
    assert made == 1


def test_another_table_or_demand_is_another_problem() -> None:
    shared, other = SharedProblem(), TABLE.take(np.arange(200))
    assert shared(TABLE, ASKED).table is TABLE
    assert shared(other, ASKED).table is other
    assert shared(other, FitTarget("coverage", 0.1)).asked.kind == "coverage"
    first = shared(TABLE, FitTarget("coverage", 0.1), confidences=False)
    assert shared(TABLE, FitTarget("coverage", 0.1), confidences=False) is first
    assert shared(TABLE, FitTarget("coverage", 0.1), confidences=True) is not first
