"""A log whose truth is the reference's output: who the reference is, what equals it, and what is not known of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.episodes.opening import open_log
from cascade.episodes.reading import Judgements, as_ladder, as_nodes, labelled_by_reference, ladder_of_models, reviewed
from cascade.episodes.rows import Truth, reads_of
from cascade.errors import UsageError
from cascade.logs.schema import CHAT, COLUMNS, FAILED, GUIDE_ONLY, Dropped

SMALL, MIDDLE, LARGE = "small", "middle", "large"


def row(episode: str, step: int, model: str, answer: str | None, **fields: Any) -> dict[str, Any]:
    given = {
        "episode_id": episode,
        "question": f"Question {episode}?",
        "step": step,
        "horizon": 2,
        "candidate": None if answer is None else 0,
        "source": model,
        "model": model,
        "answer": answer,
        "text": answer or "",
        "cost_nano_usd": 10**step,
        "signals": {},
        "schema_version": 5,
    }
    return dict.fromkeys(COLUMNS) | given | fields


def pair(episode: str, cheap: str, dear: str | None, **fields: Any) -> list[dict[str, Any]]:
    return [row(episode, 1, SMALL, cheap, **fields), row(episode, 2, LARGE, dear, **fields)]


def judged(rows: Sequence[dict[str, Any]], comparator: str | None = "exact") -> dict[tuple[str, str], bool | None]:
    found = labelled_by_reference(lambda: rows, comparator).rows(Dropped())
    return {(one["episode_id"], one["walk"] or one["model"]): one["correct"] for one in found}


def test_right_is_what_equals_the_last_model_whatever_the_labels_say() -> None:
    rows = [*pair("a", "the Danube", "Danube", correct=False), *pair("b", "Rhine", "Danube", correct=True)]
    assert judged(rows) == {("a", SMALL): True, ("a", LARGE): True, ("b", SMALL): False, ("b", LARGE): True}


def test_the_guide_asked_outright_is_the_reference_where_it_was() -> None:
    rows = [row("a", 1, SMALL, "Rhine", source="base"), row("a", 1, LARGE, "Rhine", source="guide", candidate=1)]
    outright = row("a", 1, LARGE, "Danube", walk=GUIDE_ONLY)
    found = judged([*rows, outright])
    assert found == {("a", SMALL): False, ("a", LARGE): False, ("a", GUIDE_ONLY): True}


def test_an_output_that_the_comparator_cannot_read_equals_itself_and_nothing_else() -> None:
    rows = [*pair("a", "no JSON", "no JSON"), *pair("b", "none", "no JSON"), *pair("c", '{"a": 1.0}', '{"a":1}')]
    found = judged(rows, "json")
    assert [found[name, SMALL] for name in "abc"] == [True, False, True]


def test_a_reference_that_replied_without_an_answer_or_failed_counts_against_every_other_answer() -> None:
    failed = {"replay": {FAILED: [[2, LARGE, "TimeoutError"]], "purpose": "answer"}}
    rows = [*pair("a", "Danube", None), row("b", 1, SMALL, "Danube", signals=failed), *pair("c", "Danube", "Danube")]
    found = labelled_by_reference(lambda: rows, "exact")
    kept = {(one["episode_id"], one["model"]): one for one in found.rows(Dropped())}
    assert [kept[name, SMALL]["correct"] for name in "abc"] == [False, False, True]
    assert FAILED not in kept["b", SMALL]["signals"]["replay"]


def test_an_episode_in_which_another_model_failed_stays_marked() -> None:
    failed = {"replay": {FAILED: [[1, SMALL, "TimeoutError"], [2, LARGE, "TimeoutError"]]}}
    rows = [*pair("a", "Danube", "Danube"), row("b", 1, SMALL, "Danube", signals=failed)]
    kept = list(labelled_by_reference(lambda: rows, "exact").rows(Dropped()))
    assert kept[-1]["signals"] == failed


def test_of_production_traces_only_the_audits_tell() -> None:
    asked = [*pair("a", "x", "x", split="audit"), *pair("b", "x", "y"), row("c", 1, SMALL, "x")]
    dropped = Dropped()
    found = list(labelled_by_reference(lambda: asked, "exact").rows(dropped))
    assert {one["episode_id"] for one in found} == {"a"}
    assert dropped.count == 2


def test_without_audits_a_question_that_ends_early_counts_as_different() -> None:
    assert judged([*pair("a", "x", "x"), row("b", 1, SMALL, "x")])["b", SMALL] is False


def test_the_form_of_the_requests_chooses_the_comparator() -> None:
    def asked(**body: Any) -> dict[str, Any]:
        context = json.dumps({"messages": [{"role": "user", "content": "?"}], **body})
        return row("a", 1, SMALL, "x", context=context, signals={"replay": {CHAT: True}})

    def chosen(*requests: dict[str, Any]) -> str:
        last = [one | {"step": 2, "model": LARGE, "source": LARGE} for one in requests]
        (truth,) = labelled_by_reference(lambda: [*requests, *last]).truths.values()
        return truth.comparator

    assert chosen(asked(tools=[{"type": "function"}])) == "tool_calls"
    assert chosen(asked(response_format={"type": "json_schema"})) == "json"
    assert chosen(asked(), row("b", 1, SMALL, "x")) == "text"
    assert chosen(*[asked(tools=[{"type": "function"}])] * 9, asked()) == "request"


def test_a_log_without_a_reference_is_refused() -> None:
    rounds = [row("a", 1, SMALL, "x", horizon=1), row("a", 1, LARGE, "y", candidate=1, horizon=1)]
    with pytest.raises(UsageError, match="--models CHEAP,DEAR"):
        labelled_by_reference(lambda: rounds, "exact")


def three(episode: str, *answers: str) -> list[dict[str, Any]]:
    named = zip((SMALL, MIDDLE, LARGE), answers, strict=True)
    return [row(episode, step, name, text, horizon=3) for step, (name, text) in enumerate(named, 1)]


def test_some_models_of_a_log_make_a_ladder_in_the_order_asked_for() -> None:
    rows = [*three("a", "x", "y", "x"), *three("b", "x", "y", "y")]
    found = list(ladder_of_models(lambda: rows, (LARGE, SMALL)))
    places = {(one["episode_id"], one["model"]): (one["step"], one["horizon"]) for one in found}
    assert places == {(name, model): (at, 2) for name in "ab" for at, model in ((1, LARGE), (2, SMALL))}
    agrees = {one["episode_id"]: one["signals"]["agrees_with_earlier"] for one in found if one["step"] == 2}
    assert agrees == {"a": 1.0, "b": 0.0}


def test_one_reference_takes_the_models_before_it() -> None:
    found = list(ladder_of_models(lambda: three("a", "x", "y", "z"), (MIDDLE,)))
    assert [(one["model"], one["step"], one["horizon"]) for one in found] == [(SMALL, 1, 2), (MIDDLE, 2, 2)]


@pytest.mark.parametrize(
    ("models", "said"),
    [(("smal", LARGE), "small"), ((SMALL, SMALL), "Name each model once"), ((SMALL,), "nothing can be saved")],
)
def test_models_that_make_no_ladder_are_refused(models: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        list(ladder_of_models(lambda: three("a", "x", "y", "z"), models))


def written(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")
    return str(path)


def test_a_log_without_labels_is_compared_with_its_last_model(tmp_path: Path) -> None:
    log = open_log(written(tmp_path / "log.jsonl", [*pair("a", "x", "x"), *pair("b", "x", "y")]))
    (read,) = log.reads
    assert log.unlabelled
    assert read.facts.truth == Truth(LARGE, "text")
    assert read.log.right.tolist() == [[1, 1], [0, 1]]


def test_labels_are_used_where_there_are_some_unless_a_reference_is_named(tmp_path: Path) -> None:
    rows = [*pair("a", "x", "y", correct=True), *pair("b", "y", "y", correct=True)]
    path = written(tmp_path / "log.jsonl", rows)
    assert open_log(path).reads[0].facts.truth is None
    (read,) = open_log(path, reference="guide").reads
    assert read.log.right[:, 0].tolist() == [0, 1]
    assert open_log(path).compared("json").reads[0].facts.truth == Truth(LARGE, "json")


def test_any_model_of_a_log_can_be_the_reference(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", [*three("a", "x", "x", "z"), *three("b", "x", "y", "x")])
    (read,) = open_log(path, reference=MIDDLE).reads
    assert read.facts.step_models == (SMALL, MIDDLE)
    assert read.log.right[:, 0].tolist() == [1, 0]
    with pytest.raises(UsageError, match="name the reference last"):
        open_log(path, reference=MIDDLE, models=(MIDDLE, LARGE))


def test_accepted_answers_judge_only_where_a_matcher_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", [*pair("a", "x", "x", gold=["x"]), *pair("b", "x", "y", gold=["x"])])
    unasked, named = open_log(path), open_log(path, matcher="exact")
    assert (unasked.unlabelled, unasked.unjudged, named.unlabelled) == (True, True, False)
    assert named.reads[0].log.right.tolist() == [[1, 1], [1, 0]]


# --- rounds as a ladder, and call by call ---

SIGNALS = {"reply_mean_logprob": -0.5, "p_yes": 0.7}
ROUNDS = {"dataset": "log", "horizon": 4, "correct": False, "signals": SIGNALS}
BASE = row("q", 1, SMALL, "The Inn", source="base", **ROUNDS)
JUDGE = row("q", 1, LARGE, "Inn", source="guide", **{**ROUNDS, "candidate": 1})
LATER = row("q", 2, SMALL, "Elbe", source="base", **ROUNDS)
OUTRIGHT = row("q", 1, LARGE, "inn", walk=GUIDE_ONLY, kept=True, **ROUNDS)


@pytest.mark.parametrize("logged", [[BASE, JUDGE, LATER, OUTRIGHT], [OUTRIGHT, LATER, JUDGE, BASE]])
def test_the_base_and_the_guide_outright_are_the_two_steps(logged: list[dict[str, Any]]) -> None:
    first, second = as_ladder(logged)
    assert [(each["step"], each["source"], each["answer"]) for each in (first, second)] == [
        (1, SMALL, "The Inn"),
        (2, LARGE, "inn"),
    ]
    shared = {"walk": None, "horizon": 2, "dataset": "log-ladder", "confidence": None, "kept": None}
    assert all(each[name] == value for each in (first, second) for name, value in shared.items())
    assert first["signals"] == {"reply_mean_logprob": -0.5, "agrees_with_earlier": None}
    assert second["signals"] == {"reply_mean_logprob": -0.5, "agrees_with_earlier": 1.0}


def test_readings_of_rounds_say_which_model_answers_and_what_a_call_reads() -> None:
    (ladder,) = reads_of(as_ladder([BASE, JUDGE, OUTRIGHT]))
    assert (ladder.facts.step_models, ladder.log.complete.tolist()) == ((SMALL, LARGE), [True])
    (alone,) = reads_of(as_ladder([BASE, JUDGE]))
    assert (alone.facts.step_models, alone.log.complete.tolist()) == ((SMALL, None), [False])
    (offers,) = reads_of(as_nodes([BASE, JUDGE, LATER, OUTRIGHT]))
    assert [(node.name, node.reads) for node in offers.log.nodes] == [("base", ()), ("judge", (0,)), ("guide", ())]
    (rounds,) = reads_of([BASE, JUDGE, LATER])  # base and guide are told apart by their roles
    assert (rounds.facts.step_models, rounds.facts.sources) == ((), ("base", "guide"))


def test_a_base_without_an_answer_agrees_with_nothing() -> None:
    silent = BASE | {"candidate": None, "answer": None, "correct": None}
    first, second = as_ladder([silent, OUTRIGHT])
    assert "agrees_with_earlier" not in first["signals"]
    assert second["signals"]["agrees_with_earlier"] is None


# --- people's judgements ---


def test_an_output_that_differs_is_right_if_people_found_no_loss_and_unknown_if_nobody_looked() -> None:
    rows = [each for name in "abcd" for each in pair(name, "x" if name == "a" else "y", "x")]
    loses = {"b": True, "c": False, "d": None}
    judgements = Judgements("regret", 0.5, lambda name: name[-1] != "a", lambda each: loses[each["episode_id"]])
    (read,) = reviewed(labelled_by_reference(lambda: rows, "exact"), judgements, Dropped())
    assert np.array_equal(read.log.right, [[1, 1], [0, 1], [1, 1], [np.nan, 1]], equal_nan=True)
    assert read.facts.truth == Truth(LARGE, "exact", "regret", 0.5)
    assert read.log.drawn is not None
