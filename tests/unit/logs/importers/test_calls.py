"""Calls of one trace become one episode, in the order they were made, whatever order the log is in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cascade.episodes.rows import reads_of
from cascade.errors import UsageError
from cascade.identity import identity
from cascade.logs.importers.calls import (
    LoggedCall,
    checked_columns,
    checked_roles,
    episodes,
    field_of,
    mapped,
)
from cascade.logs.importers.langfuse import rows_from_langfuse
from cascade.logs.importers.litellm_spend import rows_from_litellm
from cascade.logs.importers.otel import rows_from_otel
from cascade.logs.importers.pairs import rows_from_pairs
from cascade.logs.importers.requests import rows_from_requests
from cascade.logs.schema import COLUMNS, Dropped

ROLES = {"small": "base", "large": "guide", "critic": "judge"}


def call(trace: str | None, at_s: float | None, model: str = "small", **columns: Any) -> LoggedCall:
    made = {"question": "Which?", "text": "Danube", "model": model} | columns
    return LoggedCall(f"log:{at_s}", None, trace, at_s, made, (model,))


def rows(
    *calls: LoggedCall, roles: dict[str, str] | None = None, dropped: Dropped | None = None
) -> list[dict[str, Any]]:
    return list(episodes(calls, roles or {}, dropped or Dropped(), "log"))


def part(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]


def test_traces_that_are_mixed_are_put_in_order() -> None:
    found = rows(call("b", 5, text="1"), call("a", 9, text="2"), call("b", 4, text="0"), call("a", 1, text="3"))
    assert part(found, "episode_id", "step", "answer") == [("b", 1, "0"), ("b", 2, "1"), ("a", 1, "3"), ("a", 2, "2")]
    assert all(list(row) == list(COLUMNS) for row in found)


def test_calls_without_a_time_keep_the_logs_order() -> None:
    assert part(rows(call("a", None, text="x"), call("a", None, text="y")), "step", "answer") == [(1, "x"), (2, "y")]


def test_a_call_of_no_trace_is_an_episode_by_itself() -> None:
    found = rows(call(None, 1), LoggedCall("log:2", "id", None, 2, {"text": "x"}))
    assert part(found, "episode_id", "step", "question") == [("log:1", 1, "Which?"), ("id", 1, None)]


def test_without_roles_each_call_is_a_rung() -> None:
    found = rows(call("a", 1), call("a", 2, "large"))
    assert part(found, "step", "candidate", "source", "horizon") == [(1, 0, "small", None), (2, 0, "large", None)]


def test_with_roles_the_kth_calls_are_the_kth_step() -> None:
    order = ("small", "large", "critic", "small", "small", "large", "large")
    found = rows(*[call("a", at, model) for at, model in enumerate(order)], roles=ROLES)
    assert part(found, "step", "candidate", "source") == [
        (1, 0, "base"),
        (1, 1, "guide"),
        (1, None, "judge"),
        (2, 0, "base"),
        (3, 0, "base"),
        (3, 1, "guide"),
        (4, 1, "guide"),
    ]
    assert part(found, "answer", "text")[2] == (None, "Danube")


def test_a_model_without_a_role_is_a_cost_and_is_named() -> None:
    dropped = Dropped()
    found = rows(call("a", 1), call("a", 2, "other", cost_nano_usd=7), roles=ROLES, dropped=dropped)
    assert part(found, "candidate", "source", "cost_nano_usd") == [(0, "base", None), (None, "other", 7)]
    assert "the model other has no role: its calls are costs without an answer" in dropped.notes


def test_what_is_the_same_in_an_episode_is_told_once() -> None:
    found = rows(
        call("a", 1, gold=["Danube"]), call("a", 2, split="test", question="Other?"), dropped=(said := Dropped())
    )
    assert part(found, "question", "gold", "split", "dataset") == [("Which?", ["Danube"], "test", "log")] * 2
    assert said.notes["a question that differs from the first of its trace; the first is kept for all"] == 1


def test_the_same_question_is_never_on_both_sides_of_a_split() -> None:
    found = rows(call("a", 1), call("b", 2), call("c", 3, group="g"), call("d", 4, question=None))
    shared = identity("Which?")
    assert part(found, "group") == [(shared,), (shared,), ("g",), ("d",)]


def test_a_reply_without_an_answer_is_no_candidate_and_an_unknown_reply_is_an_unknown_answer() -> None:
    """0.5.0: a call whose reply was not on record was read as a model that answered nothing, and so as wrong."""
    found = rows(call("a", 1, text=None), call("a", 2, text=" "), call("a", 3, text=None, correct=True))
    assert part(found, "candidate", "answer", "correct") == [(0, None, None), (None, None, None), (0, None, True)]
    dropped = Dropped()
    with pytest.raises(UsageError, match="no episode to judge"):
        reads_of(found, dropped)
    assert dict(dropped.rows) == {"an episode with an answer of which it is unknown whether it is right": 1}


def test_the_lone_answer_of_a_walk_was_kept_and_its_steps_are_its_own() -> None:
    """0.5.0: `import --from table` wrote a null `kept`, and numbered a walk's call as a rung between the steps."""
    found = rows(
        call("a", 1, text="Inn", correct=False),
        call("a", 2, text="Danube", correct=True, walk="guide only"),
        call("a", 3, text="Danube", correct=True),
    )
    assert part(found, "walk", "step", "kept") == [(None, 1, None), ("guide only", 1, True), (None, 2, None)]
    (read,) = reads_of(found)
    assert read.log.reference is not None
    assert (read.facts.reference, read.log.reference.right.tolist()) == ("guide only", [1])


def test_what_a_walk_of_several_answers_kept_stays_unknown() -> None:
    found = rows(
        call("a", 1, text="Inn", correct=False),
        call("a", 2, text="Inn", correct=False, walk="z"),
        call("a", 3, text="Danube", correct=True, walk="z"),
    )
    assert part(found, "walk", "kept") == [(None, None), ("z", None), ("z", None)]


def test_the_same_call_twice_is_one_call() -> None:
    one = call("a", 1)._replace(call_id="c1")
    dropped = Dropped()
    assert len(rows(one, one._replace(place="log:9"), dropped=dropped)) == 1
    assert dropped.first == ["log:9: the same call a second time"]


def test_half_a_pair_of_surrogates_is_no_crash() -> None:
    (found,) = rows(call("a\ud800", 1, text="\ud800")._replace(call_id="\udfff"))
    assert (found["episode_id"], found["answer"]) == ("a\ud800", "\ud800")


def test_roles_and_columns_that_there_are_not_are_all_named() -> None:
    assert (checked_roles(None), checked_columns(None)) == ({}, {})
    with pytest.raises(UsageError, match=r"large=gide; did you mean guide\?.*tiny=x"):
        checked_roles({"small": "base", "large": "gide", "tiny": "x"})
    with pytest.raises(UsageError, match=r"mapped to qestion; did you mean question\?.*nor to schema_version"):
        checked_columns({"qestion": "a", "schema_version": "b", "answer": "c"})


def test_a_field_is_a_name_or_a_path() -> None:
    fields = {"a.b": 1, "a": {"b": {"c": 2}}, "d": 3}
    assert [field_of(fields, path) for path in ("a.b", "a.b.c", "d", "d.e", "x", "a.x")] == [1, 2, 3, None, None, None]


def test_a_mapped_value_that_says_nothing_is_noted() -> None:
    dropped = Dropped()
    fields = {"right": "maybe", "n": "3", "empty": ""}
    made = mapped(fields, {"correct": "right", "step": "n", "answer": "empty", "gold": "x"}, "log:1", dropped)
    assert (made, dropped.noted) == ({"step": 3}, ["log:1: correct is no true or false, read as null"])


SPEND = {"call_type": "completion", "spend": "EUR 0.1", "prompt_tokens": "12k", "messages": [], "response": {}}
OBSERVATION = {"input": "Hi", "output": "Yo", "totalCost": "n/a", "usageDetails": {"input": "many"}}
SPAN = {"attributes": {"gen_ai.request.model": "m", "gen_ai.usage.cost": "free", "gen_ai.usage.input_tokens": "many"}}
REQUEST = {
    "request_id": "1",
    "model": "m",
    "messages_json": None,
    "cost_usd": 1,
    "latency_s": "soon",
    "output_text": "Yo",
}
PAIR = dict.fromkeys(("dataset", "question_id", "question", "base_model", "guide_model"), "a") | {
    "pair": "a>b", "round": 1, "T": 1, "base_correct": "perhaps", "guide_correct": 1, "guide_cost_usd": "free"
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows_from", "record", "unread"),
    [
        (rows_from_litellm, SPEND, {"spend", "prompt_tokens"}),
        (rows_from_langfuse, OBSERVATION, {"total_cost", "usage_details.input"}),
        (rows_from_otel, SPAN, {"gen_ai.usage.cost", "gen_ai.usage.input_tokens"}),
        (rows_from_requests, REQUEST, {"latency_s"}),
        (rows_from_pairs, PAIR, {"base_correct", "guide_cost_usd"}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_an_export_says_and_nobody_can_read_is_counted(
    rows_from: Any, record: dict[str, Any], unread: set[str], tmp_path: Path
) -> None:
    log, dropped = tmp_path / "log.jsonl", Dropped()
    log.write_text(json.dumps(record), "utf-8")
    list(rows_from(log, dropped))
    assert {note.partition(" is ")[0] for note in dropped.notes if note.endswith("read as null")} == unread
