"""What a model said then, it says again, to the letter; what it never said is an error."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from cascade.engine import run
from cascade.errors import BadRequestError, CascadeError, MissingExtraError, UsageError
from cascade.logs.files import write_rows
from cascade.logs.schema import rows
from cascade.orchestrator import Orchestrator
from cascade.plans.base import ModelUse
from cascade.providers.guard import Guard
from cascade.providers.replay import Replay
from cascade.resilience.portal import Deadline
from cascade.resilience.portal import run as run_now
from cascade.types import Answer, Completion, Question, Request, Token, Usage
from unit.made import PRICES, RIVER, TWO_MODELS, base_guide, by_purpose, drive, request, two_models, yes_no
from unit.scripted import ThresholdPolicy

BASE = Completion(
    "Reasoning: It flows.\nAnswer: Danube",
    "stop",
    Usage(40, 9, 8, 2),
    (Token("Answer:", -0.1), Token(" Danube", -0.5)),
)


def logged(base: Completion, judge: Completion, rounds: int = 1) -> Answer:
    strategy = base_guide(ModelUse("small"), ModelUse("large"), rounds=rounds)
    said = by_purpose({"base": base, "judge": judge, "direct": base})
    return drive(run(RIVER, strategy=strategy, policy=ThresholdPolicy(0.0), prices=PRICES), said)


def replayed(answer: Answer, one: Request) -> Completion:
    return run_now(Guard(Replay.of(rows(answer))).complete(one, Deadline()))


def alike(made: Completion) -> Completion:
    """Return what a log keeps: no latency, name or notes; what `details` say of cached tokens stands in `usage`."""
    return made._replace(latency_s=0.0, model=None, notes=(), details={})


@pytest.mark.parametrize(
    "base",
    [
        BASE,
        BASE._replace(tokens=None),
        BASE._replace(usage=Usage(40, 9)),
        BASE._replace(tokens=(Token("Answer:", None), Token(" Danube", -0.5))),
        BASE._replace(tokens=(Token("Answer:", -math.inf), Token(" Danube", -0.5))),
        BASE._replace(text="Answer: Dan", finish_reason="length"),
        BASE._replace(text='Answer: naïve 🙂 \u2028 "quoted"'),
    ],
)
def test_a_call_comes_back_to_the_letter(base: Completion) -> None:
    answer = logged(base, yes_no(0.25, "No, Inn"))
    for call in answer.calls:
        assert call.completion is not None
        assert alike(replayed(answer, call.request)) == alike(call.completion)


def test_an_impossible_alternative_stays_impossible() -> None:
    answer = logged(BASE, yes_no(1.0))
    again = drive(
        run(
            RIVER,
            strategy=base_guide(ModelUse("small"), ModelUse("large"), rounds=1),
            policy=ThresholdPolicy(0.0),
            prices={},
        ),
        lambda one: replayed(answer, one),
    )
    assert again.steps[0].signals == answer.steps[0].signals


def test_an_estimated_usage_is_estimated_again() -> None:
    answer = logged(BASE._replace(usage=Usage(40, 9, estimated=True)), yes_no(0.9))
    assert replayed(answer, answer.calls[0].request).usage.estimated


OTHERS = [{"question": Question("Another?")}, {"question": Question(RIVER.text, "a text")}]


@pytest.mark.parametrize(
    "changed",
    [{"step": 2}, {"role": "guide"}, {"purpose": "direct"}, {"sample": 1}, {"max_tokens": 64}, {"model": "x"}, *OTHERS],
)
async def test_a_call_that_was_never_made_is_an_error(changed: dict[str, Any]) -> None:
    answer = logged(BASE, yes_no(0.9))
    other = answer.calls[0].request._replace(**changed)
    with pytest.raises(BadRequestError):
        replayed(answer, other)
    with pytest.raises(BadRequestError):
        await Replay.of(rows(answer)).complete(other, 1.0)


def test_of_two_rows_of_the_same_call_the_first_counts() -> None:
    first, second = (list(rows(logged(BASE._replace(text=f"Answer: {name}"), yes_no(0.9)))) for name in ("Inn", "Oder"))
    said = run_now(Replay.of([*first, *second]).complete(request(), 1.0))
    assert said["choices"][0]["message"]["content"] == "Answer: Inn"


def test_a_log_file_answers_a_whole_question(tmp_path: Path) -> None:
    with Orchestrator.from_config(TWO_MODELS, providers={"fake": two_models()}) as live:
        before = live.ask(RIVER)
    log = tmp_path / "log.jsonl"
    write_rows(log, rows(before))
    with Orchestrator.from_config(TWO_MODELS | {"provider": f"replay:{log}"}) as again:
        after = again.ask(RIVER)
    assert (after.text, after.answers, after.explain()) == (before.text, before.answers, before.explain())
    assert after.cost_nano_usd == before.cost_nano_usd


def test_closing_gives_nothing_back() -> None:
    run_now(Replay({}).close())


def test_a_missing_log_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Replay.open(str(tmp_path / "nothing.jsonl"))


def test_without_duckdb_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "log.jsonl", [])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match="duckdb"):
        Replay.open(str(tmp_path / "log.jsonl"))


def test_a_log_of_many_forms_is_replayed(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    answer = logged(BASE, yes_no(0.9))
    for name in ("log.parquet", "log.jsonl.gz"):
        write_rows(tmp_path / name, rows(answer))
        assert Replay.open(str(tmp_path / name)).calls == Replay.of(rows(answer)).calls


@pytest.mark.parametrize(
    "row",
    [
        {"a": 1},
        {"question": "x"},
        {"schema_version": "2"},
        {"schema_version": [1], "signals": {}},
        {"question": "x", "signals": 7, "step": 1, "source": "base"},
        {"question": 7, "signals": {}, "step": [1], "source": {}},
        {"question": "x", "step": 1, "source": "base", "text": None},
        {"question": "x", "step": 1, "source": "base", "text": "x", "signals": {"replay": {"tokens": [7]}}},
    ],
)
def test_a_log_of_another_shape_is_a_usage_error(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(CascadeError):
        Replay.open(str(path))
