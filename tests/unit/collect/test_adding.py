"""Nodes added to a log, of which only the new ones are asked; other ways to answer its questions, by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cascade.api.collecting import collect as collect_log
from cascade.collection import Collected, CollectSettings, collect
from cascade.collection.adding import LoggedCalls, added_nodes
from cascade.collection.collector import BASELINES, recorded_baselines
from cascade.config import CascadeConfig, load
from cascade.episodes.opening import open_log, rows_of
from cascade.errors import BudgetExceededError, RefusedError, UsageError
from cascade.factory import build_strategy
from cascade.logs.files import read_rows, write_rows
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import FAILED, request_digest
from cascade.policies.policy import Depth, Prompted
from cascade.providers.fake import FakeProvider, reply
from cascade.types import GUIDE_ONLY, Question, Request
from unit.builders import TWO_MODELS
from unit.collect.test_collect import PRICED, SHARED, Models, config, pair_reply, rivers

_PRICE = {"price": {"input": 0.5, "output": 2}, "max_tokens": 64}
THIRD = {**PRICED, "third": {"model": "middle", **_PRICE}, "other": {"model": "unlogged", **_PRICE}}
QUESTIONS = rivers(*range(12))


def ladder(*models: str) -> CascadeConfig:
    return config(models=THIRD, strategy={"kind": "ladder", "models": list(models)})


PAIR, WIDER = ladder("base", "guide"), ladder("base", "third", "guide")


def collected(
    settings: CascadeConfig,
    log: Path,
    models: Models,
    questions: Sequence[AskedQuestion] = QUESTIONS,
    recorded: LoggedCalls | None = None,
    **options: Any,
) -> Collected:
    how = CollectSettings(**{**SHARED, **options})
    return collect(settings, questions, log, how, recorded=recorded, providers={"fake": models})


def added(log: Path, new: Path, models: Models, settings: CascadeConfig = WIDER, **options: Any) -> Collected:
    plan = build_strategy(settings)
    recorded = LoggedCalls(rows_of(str(log)), plan, added_nodes(settings, plan, ["third"]))
    return collected(settings, new, models, recorded.questions(), recorded=recorded, **options)


def rows_in(log: Path) -> list[dict[str, Any]]:
    """Return the rows without what two runs have of their own."""
    return [{name: value for name, value in row.items() if name not in {"created_at", "latency_ms"}} for row in
            read_rows(log)]  # fmt: skip


def refusing(model: str) -> Models:
    def fails(request: Request) -> Any:
        refused = request.model == model and int(request.question.text.rstrip("?").split()[-1]) % 3 == 0
        return RefusedError("no", model=model) if refused else None

    return Models(pair_reply, fails)


@pytest.mark.parametrize("refused", ["", "small", "middle", "large"])
def test_the_new_log_is_that_of_all_nodes_and_only_the_new_node_is_asked(tmp_path, refused):
    whole, old, new = (tmp_path / f"{name}.jsonl" for name in ("whole", "old", "new"))
    collected(WIDER, whole, refusing(refused))
    collected(PAIR, old, refusing(refused))
    models = refusing(refused)
    done = added(old, new, models)
    assert {request.model for request in models.requests} == {"middle"}
    assert rows_in(new) == rows_in(whole)
    assert (done.questions, done.failures, done.stopped) == (12, (), None)
    new_calls = [row for row in read_rows(new) if row["source"] == "middle"]
    if refused != "middle":  # a refusal counts at its bound: it may be billed
        assert done.progress.spent_nano_usd == sum(row["cost_nano_usd"] for row in new_calls)
    assert any(row["signals"]["replay"].get(FAILED) for row in read_rows(new)) == bool(refused)


def test_a_node_of_a_node_list_can_be_a_sample_or_a_judge(tmp_path):
    nodes = [{"name": "first", "model": "base"}, {"name": "check", "model": "guide", "purpose": "judge"}]
    nodes[1]["parents"] = ["first"]  # type: ignore[assignment]
    last = {"name": "last", "model": "guide", "purpose": "outright"}
    both = [config(strategy={"kind": "nodes", "nodes": [*some, last]}) for some in (nodes[:1], nodes)]
    whole, old, new = (tmp_path / f"{name}.jsonl" for name in ("whole", "old", "new"))
    collected(both[1], whole, Models())
    collected(both[0], old, Models())
    plan, models = build_strategy(both[1]), Models()
    recorded = LoggedCalls(rows_of(str(old)), plan, added_nodes(both[1], plan, ["check"]))
    collected(both[1], new, models, recorded.questions(), recorded=recorded)
    assert {request.purpose for request in models.requests} == {"judge"}
    assert rows_in(new) == rows_in(whole)
    assert "p_yes" in open_log(str(new)).datasets[0].log.signals


@pytest.mark.parametrize(
    ("models", "asks"),
    [(["base", "guide"], "judge"), (["base", "other", "guide"], "judge"), (["base", "guide"], "other")],
)
def test_a_judge_is_added_and_a_judge_goes_with_each_model_that_is_added(tmp_path, models, asks):
    judged = config(models=THIRD, strategy={"kind": "ladder", "models": models, "judge": "third"})
    if asks == "other":
        before, judged = judged, config(
            models=THIRD, strategy={"kind": "ladder", "models": ["base", "other", "guide"], "judge": "third"}
        )  # fmt: skip
    else:
        before = ladder(*models)
    whole, old, new = (tmp_path / f"{name}.jsonl" for name in ("whole", "old", "new"))
    collected(judged, whole, Models())
    collected(before, old, Models())
    asked_now = Models()
    if asks == "judge":
        settings = CollectSettings(judge="third", concurrency=1, matcher="exact")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cascade.providers.registry.create", lambda *_: asked_now)
            result = collect_log(old, new, settings, config=ladder(*models))
        assert result.error is None
        assert {request.purpose for request in asked_now.requests} == {"judge"}
    else:
        plan = build_strategy(judged)
        recorded = LoggedCalls(rows_of(str(old)), plan, added_nodes(judged, plan, ["other"]))
        collected(judged, new, asked_now, recorded.questions(), recorded=recorded)
        assert {request.model for request in asked_now.requests} == {"unlogged", "middle"}
        assert len(asked_now.requests) == 24
    assert rows_in(new) == rows_in(whole)


def test_a_node_that_the_log_has_is_asked_again(tmp_path):
    whole, old, new = (tmp_path / f"{name}.jsonl" for name in ("whole", "old", "new"))
    collected(PAIR, whole, Models())
    collected(PAIR, old, Models(lambda _: "Inn"))
    plan, models = build_strategy(PAIR), Models()
    recorded = LoggedCalls(rows_of(str(old)), plan, added_nodes(PAIR, plan, ["base"]))
    collected(PAIR, new, models, recorded.questions(), recorded=recorded)
    assert {request.model for request in models.requests} == {"small"}
    answers = {(row["episode_id"], row["source"]): row["answer"] for row in rows_in(new)}
    assert {answers[name, "large"] for name, _ in answers} == {"Inn"}
    assert [row for row in rows_in(new) if row["source"] == "small"] == [
        row for row in rows_in(whole) if row["source"] == "small"
    ]


def test_a_cap_stops_it_and_resume_pays_for_the_rest_alone(tmp_path):
    whole, old, new = (tmp_path / f"{name}.jsonl" for name in ("whole", "old", "new"))
    collected(WIDER, whole, Models())
    collected(PAIR, old, Models())
    first, second, third = Models(), Models(), Models()
    done = added(old, new, first, max_cost_usd=0.0005)
    assert isinstance(done.stopped, BudgetExceededError)
    assert 0 < done.progress.spent_nano_usd <= 500_000
    assert 0 < len(first.requests) < 12
    added(old, new, second, resume=True)
    assert len(first.requests) + len(second.requests) == 12
    assert rows_in(new) == rows_in(whole)
    done = added(old, new, third, resume=True)
    assert (third.requests, done.progress.reused_calls) == ([], 12)
    assert done.progress.spent_nano_usd == sum(
        row["cost_nano_usd"] for row in read_rows(new) if row["source"] == "middle"
    )


def table(path: Path) -> Path:
    """Write another tool's log: labels without accepted answers, a signal, and costs."""
    lines = [
        {"question": f"Which river is number {n}?", "small_answer": "Inn", "small_correct": n % 2 == 0}
        | {"small_logprob": -n / 12, "small_cost_usd": 0.001}
        | {"large_answer": "Rhine", "large_correct": True, "large_cost_usd": 0.01}
        for n in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def test_another_tools_log_keeps_its_answers_labels_signals_and_costs(tmp_path):
    models = Models(lambda request: "Answer: Inn" if "4" in request.question.text else "Answer: Oder")
    new = tmp_path / "new.jsonl"
    added(table(tmp_path / "table.jsonl"), new, models)
    assert {request.model for request in models.requests} == {"middle"}
    log, rows = open_log(str(new), reference="large").datasets[0].log, list(read_rows(new))
    assert [node.name for node in log.nodes] == ["small", "middle", "large"]
    assert sorted((-log.signals["reply_mean_logprob"][:, 0]).tolist()) == [n / 12 for n in range(12)]
    assert set(log.cost_nano_usd[:, 0].tolist()) == {1_000_000}
    assert set(log.cost_nano_usd[:, 2].tolist()) == {10_000_000}
    old = list(rows_of(str(tmp_path / "table.jsonl")))
    labels = {(row["question"], row["source"]): row["correct"] for row in old}
    for row in rows:
        key = row["question"], row["source"]
        # An answer that the log has already has its label; another one has none, and is never wrong for that.
        assert row["correct"] is (labels[key] if key in labels else True if "4" in row["question"] else None)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (ladder("base", "guide"), "large"),  # the strategy has no such node
        (ladder("other", "third", "guide"), "large"),  # the log has no answers of the base
        (config(models=THIRD, strategy={"kind": "base_guide", "rounds": 2}), "large"),
        (WIDER, "two data sets"),
        (WIDER, "no texts"),
    ],
)
def test_what_cannot_be_added_is_refused_before_anything_is_asked(tmp_path, settings, rows):
    log, models = table(tmp_path / "table.jsonl"), Models()
    changed = list(rows_of(str(log)))
    if rows == "two data sets":
        changed = [{**row, "dataset": row["question"][-2:-1]} for row in changed]
    if rows == "no texts":
        changed = [{**row, "question": None} for row in changed]
    write_rows(tmp_path / "rows.jsonl", changed)
    with pytest.raises(UsageError):
        added(tmp_path / "rows.jsonl", tmp_path / "new.jsonl", models, settings)
    assert models.requests == []
    assert not (tmp_path / "new.jsonl").exists()


def test_a_question_without_a_node_for_an_unknown_reason_is_left_out(tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    collected(PAIR, old, Models())
    rows = [row for row in read_rows(old) if (row["episode_id"], row["source"]) != ("q3", "small")]
    write_rows(old, rows)
    done = added(old, new, Models())
    assert [name for name, _ in done.failures] == ["q3"]
    assert {row["episode_id"] for row in read_rows(new)} == {f"q{n}" for n in range(12)} - {"q3"}


def test_a_chat_request_is_sent_as_it_was_and_a_message_with_a_fault_is_no_answer_as_it_is_none_live(tmp_path):
    from cascade.chat import chat_request

    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
    chat = chat_request({"messages": [{"role": "user", "content": "Find Graz."}], "tools": [tool]}, {})
    questions = [AskedQuestion("c1", Question.of_chat(chat), group="c1", matcher="tool_calls")]
    old, new, models = tmp_path / "old.jsonl", tmp_path / "new.jsonl", Models(lambda _: "Graz")
    before = Models(lambda _: "Graz")
    collected(PAIR, old, before, questions, matcher=None)
    added(old, new, models, matcher=None)
    (request,) = models.requests
    assert request.chat == before.requests[0].chat
    assert request_digest(request) != request_digest(before.requests[0])
    assert [row["source"] for row in read_rows(new)] == ["small", "middle", "large"]
    call = {"small": '{"city": 3', "large": "{}"}
    faulty = FakeProvider(lambda request: reply("", tool_calls=[("find", call[request.model])]))
    collected(PAIR, tmp_path / "log.jsonl", faulty, questions, matcher=None)
    rows = {row["source"]: row for row in read_rows(tmp_path / "log.jsonl")}
    assert (rows["small"]["answer"], rows["small"]["signals"]["message_faults"]) == (None, 1.0)
    assert (rows["large"]["candidate"], rows["large"]["signals"]["message_faults"]) == (0, 0.0)


NAMES = ("guide only", "LLM policy, base", "LLM-exit, base", "LLM policy, guide", "LLM-exit, guide")


def rounds_of(**strategy: object) -> CascadeConfig:
    return load(TWO_MODELS | {"strategy": {"rounds": 3, **strategy}})


def test_the_names_are_those_of_the_command_line_and_the_log():
    assert BASELINES == NAMES
    assert GUIDE_ONLY == "guide only"
    assert tuple(plan.walk for plan in recorded_baselines(rounds_of())) == NAMES


def nodes_of(strategy: Any) -> list[tuple[str, str, str]]:
    return [(node.name, node.use.name, node.purpose) for node in strategy.nodes]


def test_the_guide_only_is_a_ladder_of_the_guide_that_keeps_its_answer():
    (walk,) = recorded_baselines(rounds_of(), [GUIDE_ONLY])
    assert nodes_of(walk.strategy) == [("large", "large", "answer")]
    assert (walk.policy.rule, walk.policy.kappa) == (Depth(serves="surest"), -0.5)


@pytest.mark.parametrize(("place", "model"), [("base", "small"), ("guide", "large")])
def test_a_model_as_policy_decides_in_each_of_the_logs_rounds_and_exit_is_one_model_with_as_many(place, model):
    decides, exits = recorded_baselines(rounds_of(), [f"LLM policy, {place}", f"LLM-exit, {place}"])
    assert nodes_of(decides.strategy)[3::4] == [(place, model, "decide")] * 3
    assert nodes_of(exits.strategy) == [(place, model, "answer"), (place, model, "exit")] * 3
    assert [walk.policy.rule for walk in (decides, exits)] == [Prompted()] * 2  # type: ignore[union-attr]


def test_every_walk_uses_the_configured_prompts(tmp_path):
    (tmp_path / "answer.txt").write_text("[user]\nMine: {question}")
    for walk in recorded_baselines(rounds_of(prompts=str(tmp_path))):
        assert walk.strategy.prompts.answer.before == "Mine: "  # type: ignore[attr-defined]


def test_only_the_walks_asked_for_are_made_in_that_order_and_once():
    wanted = ["LLM-exit, base", GUIDE_ONLY, "LLM-exit, base"]
    assert [plan.walk for plan in recorded_baselines(rounds_of(), wanted)] == ["LLM-exit, base", GUIDE_ONLY]
    assert recorded_baselines(rounds_of(), []) == ()


@pytest.mark.parametrize("strategy", [{"kind": "ladder", "models": ["base", "guide"]}, {"kind": "exit"}])
def test_other_strategies_have_none(strategy):
    assert recorded_baselines(load(TWO_MODELS | {"strategy": strategy})) == ()


def test_an_unknown_walk_is_a_usage_error_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"'guide onli'.*guide only"):
        recorded_baselines(rounds_of(), ["guide onli"])


def test_the_configuration_is_left_as_it_was():
    given = rounds_of()
    recorded_baselines(given)
    assert given == rounds_of()
