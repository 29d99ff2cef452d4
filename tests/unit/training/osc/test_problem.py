"""The problem that several estimators are given: made once for one table, and the same as made alone."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.evaluation.simulate import simulate
from cascade.evaluation.worlds import WORLDS
from cascade.policies import model_file
from cascade.training.osc import problem
from cascade.training.osc.index2 import fit_index2
from cascade.training.osc.net_benefit import fit_net_benefit
from cascade.training.osc.problem import Posed, pose
from cascade.training.osc.targets import Asked

TABLE = simulate(WORLDS["hotpotqa/llama-2-7b"], 300, seed=1)
ASKED = Asked("error", 0.2)


def test_estimators_that_share_a_problem_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*args: object, **more: object) -> problem.Problem:
        nonlocal made
        made += 1
        return pose(*args, **more)  # type: ignore[arg-type]

    alone = [
        fit_net_benefit(TABLE, ASKED),
        fit_net_benefit(TABLE, ASKED, products=True),
        fit_index2(TABLE, ASKED),
    ]
    monkeypatch.setattr(problem, "pose", counted)
    shared = Posed()
    together = [
        fit_net_benefit(TABLE, ASKED, poser=shared),
        fit_net_benefit(TABLE, ASKED, products=True, poser=shared),
        fit_index2(TABLE, ASKED, poser=shared),
    ]
    assert [model_file.dumps(one) for one in together] == [model_file.dumps(one) for one in alone]
    assert made == 1


def test_another_table_or_demand_is_another_problem() -> None:
    shared, other = Posed(), TABLE.take(np.arange(200))
    assert shared(TABLE, ASKED).table is TABLE
    assert shared(other, ASKED).table is other
    assert shared(other, Asked("coverage", 0.1)).asked.kind == "coverage"
    first = shared(TABLE, Asked("coverage", 0.1), confidences=False)
    assert shared(TABLE, Asked("coverage", 0.1), confidences=False) is first
    assert shared(TABLE, Asked("coverage", 0.1), confidences=True) is not first
    assert shared(TABLE, Asked("coverage", 0.1), confidences=True, products=True).stages[0].design.pairs.size
    assert not shared(TABLE, Asked("coverage", 0.1), confidences=True).stages[0].design.pairs.size
