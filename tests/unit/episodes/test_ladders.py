"""A base-guide log read as a ladder holds what the ladder itself would have logged, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cascade.config import CascadeConfig, load
from cascade.demo.requests import PAIR, demo_config
from cascade.episodes.ladders import as_ladder
from cascade.episodes.schema import COLUMNS, GUIDE_ONLY, rows
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.evaluation.logs import DEMO, DEMO_LADDER, open_log
from cascade.orchestrator import Orchestrator
from cascade.providers.replay import Replay
from cascade.types import Question


def row(**columns: Any) -> dict[str, Any]:
    blank = dict.fromkeys(COLUMNS) | {"episode_id": "q", "dataset": "log", "step": 1, "horizon": 4, "candidate": 0}
    return blank | {"correct": False, "signals": {"reply_mean_logprob": -0.5, "p_yes": 0.7}} | columns


BASE = row(source="base", model="small", answer="The Inn", text="x", confidence=0.7, cost_nano_usd=3)
JUDGE = row(source="guide", model="large", answer="Inn", text="x", candidate=1, cost_nano_usd=5)
LATER = row(source="base", model="small", answer="Elbe", step=2, cost_nano_usd=4)
OUTRIGHT = row(source="large", model="large", answer="inn", text="x", walk=GUIDE_ONLY, kept=True, cost_nano_usd=7)


@pytest.mark.parametrize("logged", [[BASE, JUDGE, LATER, OUTRIGHT], [OUTRIGHT, LATER, JUDGE, BASE]])
def test_the_base_and_the_guide_outright_are_the_two_steps(logged: list[dict[str, Any]]) -> None:
    first, second = as_ladder(logged)
    assert [(one["step"], one["source"], one["answer"], one["cost_nano_usd"]) for one in (first, second)] == [
        (1, "small", "The Inn", 3),
        (2, "large", "inn", 7),
    ]
    shared = {"walk": None, "horizon": 2, "dataset": "log-ladder", "confidence": None, "kept": None}
    assert all(one[name] == value for one in (first, second) for name, value in shared.items())
    assert first["signals"] == {"reply_mean_logprob": -0.5, "agrees_with_earlier": None}
    assert second["signals"] == {"reply_mean_logprob": -0.5, "agrees_with_earlier": 1.0}


def test_the_table_says_which_model_answers_which_step() -> None:
    (table,) = tables_from_rows(as_ladder([BASE, JUDGE, OUTRIGHT]))
    assert table.step_models == ("small", "large")
    assert table.take(np.arange(1)).step_models == ("small", "large")
    (alone,) = tables_from_rows(as_ladder([BASE, JUDGE]))
    assert alone.step_models == ("small", None)
    (rounds,) = tables_from_rows([BASE, JUDGE, LATER])  # base and guide are told apart by their roles
    assert rounds.step_models == ()


def test_a_base_without_an_answer_agrees_with_nothing() -> None:
    silent = BASE | {"candidate": None, "answer": None, "correct": None}
    first, second = as_ladder([silent, OUTRIGHT])
    assert "agrees_with_earlier" not in first["signals"]
    assert second["signals"]["agrees_with_earlier"] is None
    (table,) = tables_from_rows([first, second])
    assert (table.arrays.answer >= 0).tolist() == [[[False], [True]]]


def test_without_the_guides_own_answer_a_question_has_one_step_of_two() -> None:
    (table,) = tables_from_rows(as_ladder([BASE, JUDGE]))
    assert (table.arrays.steps.tolist(), table.arrays.complete.tolist()) == ([1], [False])


def ladder(**changes: Any) -> CascadeConfig:
    """The ladder of the demo's two models, to its end."""
    document = demo_config(*PAIR).model_dump(mode="json", exclude_none=True)
    asked = {"strategy": {"kind": "ladder", "models": ["base", "guide"]}, "policy": {"kind": "fixed", "depth": 2}}
    return load(document | asked | changes)


def test_a_ladder_asked_live_logs_the_same_rows_on_every_question_of_the_demo_log() -> None:
    logged = list(open_log(DEMO_LADDER).rows())
    same = ("step", "horizon", "candidate", "source", "model", "answer", "text", "confidence", "cost_nano_usd")
    by_question: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for one in logged:
        by_question.setdefault((one["question"], one["context"]), []).append(dict(one))
    assert len(by_question) == len(logged) / 2 == 244
    with Orchestrator.from_config(ladder(), providers={"local": Replay.of(logged)}) as orchestrator:
        for (text, context), then in by_question.items():
            now = list(rows(orchestrator.ask(Question(text, context)), horizon=2))
            assert [[one[name] for name in same] for one in now] == [[one[name] for name in same] for one in then]
            assert [_signals(one) for one in now] == [_signals(one) for one in then]
            assert _digests(now) == _digests(then)


def _signals(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one["signals"].items() if name != "replay"}


def _digests(made: list[dict[str, Any]]) -> list[str]:
    return [one["signals"]["replay"]["request"] for one in made]


def test_the_demo_ladder_has_the_answers_of_the_demo_log() -> None:
    (rounds,), (climb,) = open_log(DEMO).tables, open_log(DEMO_LADDER).tables
    assert climb.ids == tuple(sorted(climb.ids, key=rounds.ids.index))
    assert climb.dataset == "demo-ladder"
    assert (climb.arrays.horizon, climb.sources) == (2, ("answer",))
    assert climb.arrays.complete.all()
    assert climb.cost_known
    place = [rounds.ids.index(one) for one in climb.ids]
    assert (climb.walks["base only"].right == rounds.walks["base only"].right[place]).all()
    assert (climb.walks["last model only"].right == rounds.walks[GUIDE_ONLY].right[place]).all()
    assert (climb.walks["last model only"].cost == rounds.walks[GUIDE_ONLY].cost[place]).all()


def test_rows_of_the_demo_ladder_are_chosen_by_the_columns_of_the_log() -> None:
    (table,) = open_log(DEMO_LADDER, {"episode_id": "fact-002"}).tables
    assert table.ids == ("fact-002",)
    with pytest.raises(UsageError):
        open_log(DEMO_LADDER, {"step": "1"})
