"""What a cascade is, from its configuration or its log, and every change of it in words."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.calibration.fingerprint import differences, holds_for, made_for, unknown
from cascade.config import load
from cascade.policies.artifact import PolicyArtifact
from cascade.strategies.ladder import LadderConfig
from cascade.types import Certificate
from unit.calibration.logs import config, log


def changed(**more: Any) -> list[str]:
    return differences(made_for(config()), made_for(config(**more)))


def models(**base: Any) -> dict[str, Any]:
    plain = {"model": "small", "price": {"input": 1.0, "output": 2.0}}
    return {"base": plain | base, "guide": {"model": "large", "price": {"input": 5.0, "output": 15.0}}}


def test_the_same_cascade_does_not_differ() -> None:
    assert changed() == []
    assert differences(made_for(log(3)), made_for(config())) == []
    assert differences(made_for(config()), made_for(log(3))) == []


def test_it_is_plain_json_and_survives_it() -> None:
    then = json.loads(json.dumps(made_for(config()), allow_nan=False))
    assert then == made_for(config())
    assert then["models"]["base"] == {"name": "small", "max_tokens": 256, "temperature": 0.0, "seed": None}
    assert then["prices"]["small"]["input"] == 1_000_000  # pico-USD
    assert then["horizon"] == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"models": models(model="tiny")}, ["base is tiny", "made for small"]),
        ({"models": models(max_tokens=512)}, ["base has max_tokens 512", "256"]),
        ({"models": models(temperature=0.7)}, ["base has temperature 0.7", "0.0"]),
        ({"models": models(seed=1)}, ["base has seed 1", "None"]),
        ({"models": models(price={"input": 1.5, "output": 2.0})}, ["price of small", "1.5 in", "1 in"]),
        ({"models": models(price={"input": 1.0, "output": 2.0, "request": 0.1})}, ["price of small"]),
        ({"strategy": {"kind": "base_guide", "rounds": 5}}, ["rounds 5", "rounds 4"]),
        ({"strategy": {"kind": "base_guide", "verdict": "sampled"}}, ["verdict sampled", "verdict auto"]),
        ({"strategy": {"kind": "exit"}}, ["strategy is exit", "base_guide", "nothing is base"]),
    ],
)
def test_a_change_is_said_in_words(more: dict[str, Any], words: list[str]) -> None:
    said = " / ".join(changed(**more))
    assert all(word in said for word in words), said


def test_other_offers_are_said_by_their_names_and_by_what_differs() -> None:
    small, large = {"name": "first", "model": "base"}, {"name": "last", "model": "guide"}
    both, swapped = ({"kind": "offers", "offers": listed} for listed in ([small, large], [large, small]))
    judged = {
        "kind": "offers",
        "offers": [small, {**large, "name": "check", "purpose": "judge", "parents": ["first"]}, large],
    }
    verified = {"kind": "offers", "offers": [small, {**judged["offers"][1], "purpose": "verify"}, large]}

    def said(then: dict[str, Any], now: dict[str, Any]) -> str:
        return differences(made_for(config(strategy=then)), made_for(config(strategy=now)))[0]

    order = "the strategy is offers (offers last, first); the certificate was made for offers (offers first, last)"
    assert said(both, swapped) == order
    purpose = (
        "the strategy is offers (offers check: purpose verify); the certificate was made for offers (offers check: "
    )
    assert said(judged, verified) == f"{purpose}purpose judge)"


def test_what_does_not_bear_on_the_answers_is_no_change() -> None:
    assert changed(models=models(price={"input": 1.0, "output": 2.0, "note": "new"})) == []
    assert changed(timeouts={"per_call_s": 5}, traces="off", budget={"per_question": 1.0}) == []


def test_other_prompts_are_another_cascade(tmp_path: Path) -> None:
    assert changed(strategy={"kind": "base_guide", "prompts": str(tmp_path)}) == []  # none of its own
    (tmp_path / "answer.txt").write_text("[user]\nShort: {question}", "utf-8")
    assert "prompts" in changed(strategy={"kind": "base_guide", "prompts": str(tmp_path)})[0]


CODE = """from cascade.types import Request


def answers(request: Request):
    return (yield request)


def passes(question, message):
    return True
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of somebody's own, which can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "somebodys_own", raising=False)
    file = tmp_path / "somebodys_own.py"
    file.write_text(CODE, "utf-8")
    return file


def verified(**verifier: Any) -> Any:
    return made_for(
        config(models=models(), strategy={"kind": "verified", "models": ["base", "guide"], "verifier": verifier})
    )


def test_another_agent_or_a_change_in_its_file_is_another_cascade(own: Path) -> None:
    def with_agent() -> Any:
        return made_for(config(models=models(agent="somebodys_own:answers")))

    then = json.loads(json.dumps(with_agent(), allow_nan=False))
    assert differences(then, with_agent()) == []
    without = made_for(config(models=models()))
    added, left = differences(without, then), differences(then, without)
    assert added == ["base answers through the agent somebodys_own:answers; the certificate was made with no agent"]
    assert left == ["base answers through no agent; the certificate was made with the agent somebodys_own:answers"]
    own.write_text(CODE + "# mended\n", "utf-8")
    changed = "the file of the agent somebodys_own:answers has changed since the certificate was made"
    assert differences(then, with_agent()) == [changed]
    own.unlink()
    assert differences(then, {**then, "own_files": dict.fromkeys(then["own_files"])}) == [changed]  # it cannot be read
    assert differences({**then, "own_files": None}, then) == []  # a certificate that does not say


def test_a_change_in_the_files_of_a_verifier_is_another_cascade(own: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text("{}", "utf-8")
    ways = [
        {"kind": "function", "function": "somebodys_own:passes"},
        {"kind": "schema", "json_schema": str(schema)},
        {"kind": "command", "command": ["python", str(own)]},
    ]
    then = [verified(**way) for way in ways]
    assert [len(one["own_files"]) for one in then] == [1, 1, 1]
    assert [differences(was, verified(**way)) for was, way in zip(then, ways, strict=True)] == [[], [], []]
    own.write_text(CODE + "# mended\n", "utf-8")
    schema.write_text('{"type": "object"}', "utf-8")
    said = [differences(was, verified(**way)) for was, way in zip(then, ways, strict=True)]
    assert said == [
        ["the file of the verifier somebodys_own:passes has changed since the certificate was made"],
        [f"the file of the schema {schema} has changed since the certificate was made"],
        [f"the file of the verifier’s {own} has changed since the certificate was made"],
    ]


class OwnLadder(LadderConfig):
    """A strategy of somebody's own."""


def test_the_file_of_ones_own_strategy_is_on_record_and_ours_is_not() -> None:
    assert OwnLadder(kind="ladder", models=("base", "guide")).own_files == {"the strategy ladder": Path(__file__)}
    assert LadderConfig(kind="ladder", models=("base", "guide")).own_files == {}


def test_a_ladder_is_known_by_its_models_whatever_their_places_are_called() -> None:
    def ladder(*places: str) -> Any:
        entries = zip(places, ("small", "large"), strict=True)
        named = {place: {"model": model, "price": {"input": 1, "output": 1}} for place, model in entries}
        return made_for(load({"models": named, "strategy": {"kind": "ladder", "models": list(places)}}))

    assert differences(ladder("a", "b"), ladder("first", "second")) == []
    rungs = replace(log(3), models={"small": ("small",), "large": ("large",)}, sources=("answer",))
    assert differences(ladder("a", "b"), {**made_for(rungs), "horizon": 2}) == []


def rungs(*names: str | None, models: tuple[str, ...] = ("small", "large")) -> Any:
    """Return what a log of a ladder says of its cascade."""
    table = replace(log(3), models={name: (name,) for name in models}, sources=("answer",), step_models=names)
    return {**made_for(table), "horizon": len(names)}


def swapped(*models: str) -> Any:
    named = {model: {"model": model, "price": {"input": 1, "output": 1}} for model in models}
    return made_for(load({"models": named, "strategy": {"kind": "ladder", "models": list(models)}}))


def test_a_ladder_with_its_models_swapped_is_another_cascade() -> None:
    then = rungs("small", "large")
    assert differences(then, rungs("small", "large")) == []
    assert differences(then, swapped("small", "large")) == []
    said = "the order of the models is large, then small; the certificate was made for small, then large"
    assert differences(then, swapped("large", "small")) == [said]
    assert differences(then, rungs("large", "small")) == [said]
    once = differences(swapped("small", "large"), swapped("large", "small"))
    assert len(once) == 1  # the strategy's section names them in their order
    assert "strategy" in once[0]


def test_an_order_that_is_not_on_record_is_compared_with_nothing_and_named() -> None:
    old = {name: value for name, value in rungs("small", "large").items() if name != "step_models"}
    assert differences(old, swapped("large", "small")) == []
    assert "the order of the models" in unknown(old)
    assert "the order of the models" in unknown(rungs(None, "large"))
    assert "the order of the models" not in unknown(rungs("small", "large"))
    assert differences(rungs(None, "large"), swapped("small", "large")) == []


def test_what_the_log_adds_to_an_older_certificate_is_put_on_record() -> None:
    table = replace(log(3), models={"small": ("small",)}, step_models=("small",) * 4)
    old = Certificate("coverage", 0.1, 9, "x", made_for={**made_for(table), "step_models": None, "horizon": 4})
    before = PolicyArtifact({}, certificates=(old,))
    assert holds_for(table, None, before)["step_models"] == ["small"] * 4


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"base": ("other",), "guide": ("large",)}, ["base is other", "made for small"]),
        ({"base": ("small", "tiny"), "guide": ("large",)}, ["base is small or tiny"]),
        ({"guide": ("large",)}, ["nothing is base"]),
        ({"base": ("small",), "guide": ("large",), "judge": ("third",)}, ["third is judge"]),
    ],
)
def test_a_log_of_other_models_is_known(found: dict[str, tuple[str, ...]], words: list[str]) -> None:
    said = " / ".join(differences(made_for(config()), made_for(replace(log(3), models=found))))
    assert all(word in said for word in words), said


def test_the_models_of_a_ladder_are_compared_as_a_whole() -> None:
    then, now = ({"models": {name: {"name": name} for name in names}} for names in (("big", "tiny"), ("big", "small")))
    assert differences(then, now) == ["the models are big, small; the certificate was made for big, tiny"]


def test_a_log_of_another_number_of_steps_is_known() -> None:
    assert differences(made_for(config(strategy={"rounds": 3})), made_for(log(3))) == [
        "the number of steps is 4; the certificate was made for 3"
    ]


def test_a_log_that_says_nothing_of_models_is_held_against_nothing() -> None:
    assert differences(made_for(config()), made_for(replace(log(3), models={}))) == []


def test_what_is_not_on_record_is_named() -> None:
    assert unknown(made_for(config())) == []
    assert unknown(made_for(log(3))) == [
        "the strategy",
        "the prices",
        "the models’ settings",
        "where the models are served",
        "the prompts",
    ]
    assert unknown(made_for(replace(log(3), models={}))) == [
        "the strategy",
        "the models",
        "the prices",
        "where the models are served",
        "the prompts",
    ]


def test_an_unknown_price_is_a_change() -> None:
    free = {"base": {"model": "small"}, "guide": {"model": "large", "price": {"input": 5.0, "output": 15.0}}}
    assert changed(models=free) == [
        "the price of small is unknown; the certificate was made at 1 in, 2 out, USD per million tokens"
    ]
