"""A log whose truth is the reference's output: who the reference is, what equals it, and what is not known of it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cases import each

from cascade.episodes import reading
from cascade.episodes.opening import open_log
from cascade.episodes.reading import Judgements, labelled_by_reference, ladder_of_models, reviewed
from cascade.episodes.rows import Truth, datasets_of, joined
from cascade.errors import UsageError
from cascade.identity import identity, plain, question_id
from cascade.logs.columns import Calls, calls_of
from cascade.logs.files import opened_log, read_rows, write_rows
from cascade.logs.schema import CHAT, COLUMNS, FAILED, TIER, TOLD, UNJUDGED, WRITTEN, Dropped
from cascade.money import Price
from cascade.policies import features
from cascade.policies.policy import tie_of
from cascade.types import GUIDE_ONLY
from unit.plain import row

SMALL, MIDDLE, LARGE = "small", "middle", "large"


def row_of_reading(episode: str, step: int, model: str, answer: str | None, **fields: Any) -> dict[str, Any]:
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


def pair(episode: str, cheap: str | None, dear: str | None, **fields: Any) -> list[dict[str, Any]]:
    return [row_of_reading(episode, 1, SMALL, cheap, **fields), row_of_reading(episode, 2, LARGE, dear, **fields)]


def judged(rows: Sequence[dict[str, Any]], comparator: str | None = "exact") -> dict[tuple[str, str], bool | None]:
    labelled = labelled_by_reference(lambda: rows, comparator).rows(Dropped())
    return {(row["episode_id"], row["walk"] or row["model"]): row["correct"] for row in labelled}


def test_right_is_what_equals_the_last_model_whatever_the_labels_say():
    rows = [*pair("a", "the Danube", "Danube", correct=False), *pair("b", "Rhine", "Danube", correct=True)]
    assert judged(rows) == {("a", SMALL): True, ("a", LARGE): True, ("b", SMALL): False, ("b", LARGE): True}


def test_the_guide_asked_outright_is_the_reference_where_it_was():
    rows = [
        row_of_reading("a", 1, SMALL, "Rhine", source="base"),
        row_of_reading("a", 1, LARGE, "Rhine", source="guide", candidate=1),
    ]
    outright = row_of_reading("a", 1, LARGE, "Danube", walk=GUIDE_ONLY)
    verdicts = judged([*rows, outright])
    assert verdicts == {("a", SMALL): False, ("a", LARGE): False, ("a", GUIDE_ONLY): True}


def test_an_output_that_the_comparator_cannot_read_equals_itself_and_nothing_else():
    rows = [*pair("a", "no JSON", "no JSON"), *pair("b", "none", "no JSON"), *pair("c", '{"a": 1.0}', '{"a":1}')]
    verdicts = judged(rows, "json")
    assert [verdicts[name, SMALL] for name in "abc"] == [True, False, True]


def test_a_reference_that_replied_without_an_answer_or_failed_counts_against_every_other_answer():
    failed = {"replay": {FAILED: [[2, LARGE, "TimeoutError"]], "purpose": "answer"}}
    rows = [
        *pair("a", "Danube", None),
        row_of_reading("b", 1, SMALL, "Danube", signals=failed),
        *pair("c", "Danube", "Danube"),
    ]
    log = labelled_by_reference(lambda: rows, "exact")
    labelled = {(row["episode_id"], row["model"]): row for row in log.rows(Dropped())}
    assert [labelled[name, SMALL]["correct"] for name in "abc"] == [False, False, True]
    assert FAILED not in labelled["b", SMALL]["signals"]["replay"]


def test_an_episode_in_which_another_model_failed_stays_marked():
    failed = {"replay": {FAILED: [[1, SMALL, "TimeoutError"], [2, LARGE, "TimeoutError"]]}}
    rows = [*pair("a", "Danube", "Danube"), row_of_reading("b", 1, SMALL, "Danube", signals=failed)]
    labelled = list(labelled_by_reference(lambda: rows, "exact").rows(Dropped()))
    assert labelled[-1]["signals"] == failed


def test_of_production_traces_only_the_audits_tell():
    traces = [*pair("a", "x", "x", split="audit"), *pair("b", "x", "y"), row_of_reading("c", 1, SMALL, "x")]
    dropped = Dropped()
    labelled = list(labelled_by_reference(lambda: traces, "exact").rows(dropped))
    assert {row["episode_id"] for row in labelled} == {"a"}
    assert dropped.count == 2


def test_without_audits_a_question_that_ends_early_counts_as_different():
    assert judged([*pair("a", "x", "x"), row_of_reading("b", 1, SMALL, "x")])["b", SMALL] is False


def test_the_form_of_the_requests_chooses_the_comparator():
    def chat_row(**body: Any) -> dict[str, Any]:
        context = json.dumps({"messages": [{"role": "user", "content": "?"}], **body})
        return row_of_reading("a", 1, SMALL, "x", context=context, signals={"replay": {CHAT: True}})

    def chosen(*requests: dict[str, Any]) -> str:
        last = [row | {"step": 2, "model": LARGE, "source": LARGE} for row in requests]
        (truth,) = labelled_by_reference(lambda: [*requests, *last]).truths.values()
        return truth.comparator

    assert chosen(chat_row(tools=[{"type": "function"}])) == "tool_calls"
    assert chosen(chat_row(response_format={"type": "json_schema"})) == "json"
    assert chosen(chat_row(), row_of_reading("b", 1, SMALL, "x")) == "text"
    assert chosen(*[chat_row(tools=[{"type": "function"}])] * 9, chat_row()) == "request"


def test_a_log_without_a_reference_is_refused():
    rounds = [row_of_reading("a", 1, SMALL, "x", horizon=1), row_of_reading("a", 1, LARGE, "y", candidate=1, horizon=1)]
    with pytest.raises(UsageError, match="--models CHEAP,DEAR"):
        labelled_by_reference(lambda: rounds, "exact")


def three(episode: str, *answers: str) -> list[dict[str, Any]]:
    named = zip((SMALL, MIDDLE, LARGE), answers, strict=True)
    return [row_of_reading(episode, step, name, text, horizon=3) for step, (name, text) in enumerate(named, 1)]


def test_some_models_of_a_log_make_a_ladder_in_the_order_asked_for():
    rows = [*three("a", "x", "y", "x"), *three("b", "x", "y", "y")]
    ladder = list(ladder_of_models(lambda: rows, (LARGE, SMALL))())
    places = {(row["episode_id"], row["model"]): (row["step"], row["horizon"]) for row in ladder}
    assert places == {(name, model): (at, 2) for name in "ab" for at, model in ((1, LARGE), (2, SMALL))}
    agrees = {row["episode_id"]: row["signals"]["agrees_with_earlier"] for row in ladder if row["step"] == 2}
    assert agrees == {"a": 1.0, "b": 0.0}


def test_one_reference_takes_the_models_before_it():
    ladder = list(ladder_of_models(lambda: three("a", "x", "y", "z"), (MIDDLE,))())
    assert [(row["model"], row["step"], row["horizon"]) for row in ladder] == [(SMALL, 1, 2), (MIDDLE, 2, 2)]


@pytest.mark.parametrize(
    ("models", "problem"),
    [(("smal", LARGE), "small"), ((SMALL, SMALL), "Name each model once"), ((SMALL,), "nothing can be saved")],
)
def test_models_that_make_no_ladder_are_refused(models, problem):
    with pytest.raises(UsageError, match=problem):
        ladder_of_models(lambda: three("a", "x", "y", "z"), models)


def written(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def test_a_log_without_labels_is_compared_with_its_last_model(tmp_path):
    rows = [*pair("a", "x", "x"), *pair("b", "x", "y"), *pair("c", None, None)]
    log = open_log(written(tmp_path / "log.jsonl", rows))
    (read,) = log.datasets
    assert log.unlabelled
    assert read.facts.truth == Truth(LARGE, "text")
    assert np.nan_to_num(read.log.right).tolist() == [[1, 1], [0, 1], [0, 0]]
    assert read.log.reference_only().answers[:, 0].tolist() == [True, True, False]


def test_labels_are_used_where_there_are_some_unless_a_reference_is_named(tmp_path):
    rows = [*pair("a", "x", "y", correct=True), *pair("b", "y", "y", correct=True)]
    path = written(tmp_path / "log.jsonl", rows)
    assert open_log(path).datasets[0].facts.truth is None
    (read,) = open_log(path, reference="guide").datasets
    assert read.log.right[:, 0].tolist() == [0, 1]
    assert open_log(path).compared("json").datasets[0].facts.truth == Truth(LARGE, "json")


def test_any_model_of_a_log_can_be_the_reference(tmp_path):
    path = written(tmp_path / "log.jsonl", [*three("a", "x", "x", "z"), *three("b", "x", "y", "x")])
    (read,) = open_log(path, reference=MIDDLE).datasets
    assert read.facts.step_models == (SMALL, MIDDLE)
    assert read.log.right[:, 0].tolist() == [1, 0]
    with pytest.raises(UsageError, match="name the reference last"):
        open_log(path, reference=MIDDLE, models=(MIDDLE, LARGE))


def test_accepted_answers_judge_only_where_a_matcher_is_named(tmp_path):
    path = written(tmp_path / "log.jsonl", [*pair("a", "x", "x", gold=["x"]), *pair("b", "x", "y", gold=["x"])])
    unasked, named = open_log(path), open_log(path, matcher="exact")
    assert (unasked.unlabelled, unasked.unjudged, named.unlabelled) == (True, True, False)
    assert named.datasets[0].log.right.tolist() == [[1, 1], [1, 0]]


# --- rounds, and their calls outright as a ladder ---


def test_the_base_and_the_guide_of_the_demo_outright_are_the_two_steps_of_its_ladder():
    (rounds,), (ladder,) = (open_log(name).datasets for name in ("demo", "demo-ladder"))
    assert (rounds.facts.step_models, rounds.facts.sources) == ((), ("base", "guide"))
    assert ladder.facts.step_models == (rounds.facts.models["base"][0], rounds.facts.models["guide"][0])
    assert (ladder.log.ids, ladder.log.complete.all()) == (rounds.log.ids, True)
    assert equal(np.nan_to_num(ladder.log.right[:, 1]), rounds.log.reference.right)  # NaN: it gave no answer
    assert equal(ladder.log.right[:, 0], rounds.log.right[:, 0])
    assert equal(ladder.log.cost_nano_usd[:, 1], rounds.log.reference.cost_nano_usd)


# --- people's judgements ---


def test_an_output_that_differs_is_right_if_people_found_no_loss_and_unknown_if_nobody_looked():
    rows = [each for name in "abcd" for each in pair(name, "x" if name == "a" else "y", "x")]
    loses = {"b": True, "c": False, "d": None}
    judgements = Judgements("regret", 0.5, lambda name: name[-1] != "a", lambda each: loses[each["episode_id"]])
    (read,) = reviewed(labelled_by_reference(lambda: rows, "exact"), judgements, Dropped())
    assert np.array_equal(read.log.right, [[1, 1], [0, 1], [1, 1], [np.nan, 1]], equal_nan=True)
    assert read.facts.truth == Truth(LARGE, "exact", "regret", 0.5)
    assert read.log.drawn is not None


Row = Mapping[str, Any]


def equal(left: Any, right: Any) -> bool:
    return np.array_equal(left, right, equal_nan=True)


# --- by hand ---


class Case(NamedTuple):
    """Rows, and the columns of the first request that they become; None: the episode is left out, for `why`."""

    rows: list[Row]
    columns: dict[str, list[Any]]


NAN = float("nan")
QUESTION: Row = {"question": "Which?"}
CASES = {
    "a null answer is no answer": Case(
        [row(), row(step=2, candidate=None)],
        {"answer": [0, -1], "right": [1, NAN], "cost_nano_usd": [10, 10], "bought": [True, True]},
    ),
    "a null cost is unknown": Case([row(cost_nano_usd=None), row(step=2)], {"cost_nano_usd": [-1, 10]}),
    "a cost that no call has is unknown": Case([row(cost_nano_usd=2**63), row(step=2)], {"cost_nano_usd": [-1, 10]}),
    "a cost is that of the call's own node": Case(
        [row(), row(candidate=1, source="guide", cost_nano_usd=100), row(candidate=None, cost_nano_usd=3)],
        {"cost_nano_usd": [13, 100], "answer": [0, 0]},
    ),
    "a call of neither candidate lies on the last node": Case(
        [row(), row(candidate=1, source="guide"), row(candidate=None, source="judge", cost_nano_usd=5)],
        {"cost_nano_usd": [10, 15]},
    ),
    "an unknown confidence and signal": Case(
        [row(signals={"p_yes": None}, confidence=None), row(step=2, signals={"p_yes": 0.5}, confidence=0.25)],
        {"confidence": [NAN, 0.25], "p_yes": [NAN, 0.5]},
    ),
    "answers are equal as the engine compares them": Case(
        [row(answer="The Danube."), row(step=2, answer="Rhine", correct=False), row(step=3, answer="danube")],
        {"answer": [0, 1, 0], "right": [1, 0, 1]},
    ),
    "without texts all right answers are one": Case(
        [row(step=step, answer=None, correct=right) for step, right in ((1, True), (2, False), (3, True), (4, False))],
        {"answer": [0, 1, 0, 2], "right": [1, 0, 1, 0]},
    ),
    "a request whose record ends early": Case([row(horizon=3)], {"bought": [True, False, False], "complete": [False]}),
    "a call that may have been left out": Case(
        [row(parents=[]), row(step=3, parents=[])],
        {"bought": [True, False, True], "answer": [0, -1, 0], "cost_nano_usd": [10, 0, 10]},
    ),
    "the reply's length is that of the output": Case(
        [row(input_tokens=50, output_tokens=7), row(step=2, input_tokens=60, output_tokens=None)],
        {"reply_tokens": [7, NAN], "prompt_tokens": [50, 60]},
    ),
    "a call that was cut off is no step": Case([row(), row(walk="cut off", candidate=None)], {"cost_nano_usd": [10]}),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_rows_become_columns(case):
    (read,) = datasets_of(case.rows)
    for name, values in case.columns.items():
        column = read.log.signals[name] if name in read.log.signals else getattr(read.log, name)
        assert equal(np.asarray(column[0]).ravel(), np.array(values)), name


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row(correct=None)], UNJUDGED),
        ([row(step=2)], "an episode with a step missing in the middle"),
        ([row(walk=GUIDE_ONLY, kept=True)], "an episode without a step, such as when only the guide was asked"),
        (
            [row(signals={"replay": {FAILED: [[1, "base", "Timeout"]]}})],
            "an episode in which the call of a model failed",
        ),
        ([row(candidate=None, text=None)], "an episode with a step without a recorded answer or reply"),
        ([row(step=1, parents=[1])], "an episode with a step that depends on itself or on a later step"),
    ],
)
def test_what_cannot_be_judged_is_left_out_and_counted(rows, why):
    dropped = Dropped()
    (read,) = datasets_of([*rows, row("other")], dropped)
    assert (read.log.n, dict(read.dropped.rows), read.facts.unjudged) == (1, {why: 1}, int(why == UNJUDGED))
    with pytest.raises(UsageError) as caught:
        datasets_of(rows)
    assert ("gold" in str(caught.value)) == (why == UNJUDGED)


def test_two_answers_under_the_questions_own_id_are_two_runs_in_one():
    name = question_id("Which?", None)
    dropped = Dropped()
    datasets_of([row(name, **QUESTION), row(name, **QUESTION), row("other")], dropped)
    assert dropped.count == 1
    (read,) = datasets_of([row(**QUESTION), row(**QUESTION)])  # an id of its own: two calls that made one answer
    assert read.log.cost_nano_usd.tolist() == [[20]]


def test_repeated_questions_have_one_id_however_they_are_spelled():
    (read,) = datasets_of(
        [row("a", question="Which?"), row("b", question="which"), row("c", question="Who?"), row("d")]
    )
    same_id = identity("Which?", None)
    assert read.log.ids == (same_id, same_id, identity("Who?", None), "d")


def test_a_run_that_ends_when_a_model_is_told_shows_no_length_and_no_cost_to_a_policy():
    replay = {"replay": {TOLD: True}}
    (read,) = datasets_of([row("a", output_tokens=5, signals=replay), row("b", output_tokens=6)])
    assert "cost" in read.log.hidden
    assert "reply_tokens" not in read.log.signals
    assert tie_of(read.log) is None
    assert np.isnan(features.read(read.log, (0,), ("cost",))).all()
    assert read.log.cost_nano_usd.tolist() == [[10], [10]]


def test_a_baseline_knows_its_own_cost():
    rows = [row("a"), row("b"), row("a", walk="z", kept=True, cost_nano_usd=None), row("a", walk=GUIDE_ONLY, kept=True)]
    (read,) = datasets_of(rows)
    way, reference = read.log.baselines["z"], read.log.reference
    assert reference is not None
    assert (way.known.tolist(), way.cost_nano_usd.tolist()) == ([True, False], [-1, -1])
    assert (reference.cost_nano_usd.tolist(), read.facts.reference) == ([10, -1], GUIDE_ONLY)
    assert read.log.take(np.array([1])).baselines["z"].known.tolist() == [False]
    assert read.log.priced.tolist() == [True, False]


def test_costs_are_compared_with_prices():
    prices = {"a": Price.per_million(input=0.15, output=0.6), "b": Price.per_million(input=3, output=15, cache_write=4)}
    usage = {"input_tokens": 1_000, "output_tokens": 1_000}
    rows = [row(model="a", cost_nano_usd=cost, **usage) for cost in (1, 750_000)]
    rows.append(row(model="b", cost_nano_usd=18_900_000, signals={"replay": {WRITTEN: 900}}, **usage))
    prices["c"] = replace(prices["a"], tiers=(("flex", Price.per_million(input=1, output=1)),))
    rows += [
        row(model="c", cost_nano_usd=2_000_000, signals={"replay": {TIER: tier}}, **usage) for tier in ("flex", "x")
    ]
    rows.append(row(model="a", cost_nano_usd=1))  # without tokens nothing can be compared
    compared, differing = reading.mispriced(rows, prices)
    assert compared == 4  # the price of the tier "x" is unknown
    assert differing == {"a": (1, 1, 750_000)}


# --- several data sets ---


def ladder(dataset: str, models: Sequence[str] = ("small", "large"), **columns: Any) -> list[Row]:
    each = enumerate(models, 1)
    return [row("a", step, dataset=dataset, source=name, model=name, horizon=2, **columns) for step, name in each]


def test_data_sets_of_one_cascade_are_joined():
    whole = joined(datasets_of([*ladder("x"), *ladder("y", signals={"late": 1.0})]))
    assert (whole.log.name, whole.log.n, whole.facts.step_models) == ("x, y", 2, ("small", "large"))
    assert equal(whole.log.signals["late"], np.array([[np.nan, np.nan], [1, 1]]))
    outright = row("a", dataset="x", kept=True, walk=GUIDE_ONLY)
    mixed = joined(datasets_of([outright, *ladder("x"), *ladder("y")]))
    assert (mixed.facts.reference, mixed.log.reference.cost_nano_usd.tolist()) == (GUIDE_ONLY, [10, -1])


@pytest.mark.parametrize("other", [("small", "huge"), ("large", "small"), ("small", "middle", "large"), ()])
def test_data_sets_of_other_cascades_are_not(other):
    with pytest.raises(UsageError):
        joined(datasets_of([*ladder("x"), *ladder("y", other)]) if other else [])


pytest.importorskip("duckdb")

SHIPPED = Path(str(resources.files("cascade").joinpath("data")))
TEXTS = (
    "Who wrote  HAMLET ?", "who wrote hamlet", "x+1?", "a, b", "f(a, b).", "Yes!! Is it?", "n!", "5!", " \t ", "...", "?",
    "", "3.5 or 35.", "well,then", "end.\n", "The end;", "naïve?", "2²", "it''s “so”", "A\x1cB", "a\u00a0b", "\x00", "The",
    "the Danube", "an a the", "DANUBE.", "{}", "[1]", "sha256:" + "0" * 64,
)  # fmt: skip


def equal_of_columns(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if hasattr(left, "keys"):
        return left.keys() == right.keys() and all(equal_of_columns(left[name], right[name]) for name in left)
    if isinstance(left, tuple) and left and isinstance(left[0], np.ndarray):
        return all(map(equal_of_columns, left, right))
    return bool(left == right)


def same(first: Calls, second: Calls) -> None:
    for dataset, other in zip(datasets_of(first), datasets_of(second), strict=True):
        for part in ("log", "facts"):
            left, right = getattr(dataset, part), getattr(other, part)
            unlike = [
                f.name for f in fields(left) if not equal_of_columns(getattr(left, f.name), getattr(right, f.name))
            ]
            assert unlike == []


@pytest.mark.parametrize("name", ["demo_log.parquet", "demo_requests.parquet"])
def test_columns_of_a_shipped_log_are_those_of_its_rows(name):
    with opened_log(SHIPPED / name) as log:
        same(log.columns(), calls_of(read_rows(SHIPPED / name)))


@pytest.mark.parametrize("name", ["log.jsonl", "log.parquet"])
def test_columns_of_odd_texts_are_those_of_their_rows(tmp_path, name):
    chance = random.Random(7)
    replay = {"finish_reason": "stop", "purpose": "answer", "echoed": "m-1"}
    rows = [
        row(f"q{number}", step, question=text, context=chance.choice([None, text]), answer=chance.choice(TEXTS))
        | {"source": f"m{step}", "model": f"m{step}", "group": chance.choice([None, "", "g"])}
        | {
            "signals": {"p_yes": chance.random(), 'odd "name/~': 1.0, "replay": replay},
            "correct": chance.random() < 0.5,
        }
        for number, text in enumerate(TEXTS)
        for step in (1, 2)
    ]
    write_rows(tmp_path / name, rows)
    with opened_log(tmp_path / name) as log:
        same(log.columns(), calls_of(rows))


RIVER = "Which river runs through Vienna?"


@pytest.mark.parametrize(
    "written",
    [
        "which river runs through vienna?",
        "WHICH RIVER RUNS THROUGH VIENNA?",
        f"  {RIVER} \n",
        "Which  river\truns through\u00a0Vienna ?",
        "Which river runs through Vienna",
        "Which river runs through Vienna…",
        "Which river runs through Vienna??",
        "Which river, runs through Vienna?",
        "Which river runs through Vienna\uff1f",
        "\ufeffWhich ri\u200bver runs through Vienna?",
        "Which river runs through \uff36ienna?",
    ],
)
def test_near_duplicates_are_one_question_which_is_known_as_before(written):
    assert identity(written) == identity(RIVER)
    assert identity("x + 1", None) == question_id("x + 1", None)


@each(
    "question, other",
    [
        ("What is x+1?", "What is x-1?"),
        ("What is x+1?", "What is x1?"),
        ("Is 3 < 5?", "Is 3 > 5?"),
        ("Is a <= b?", "Is a < b?"),
        ("What is 3.5 times 2?", "What is 35 times 2?"),
        ("What is 1,5 plus 2?", "What is 15 plus 2?"),
        ("Add 1, 2", "Add 12"),
        ("What is 5!", "What is 5"),
        ("Simplify n!", "Simplify n"),
        ("What is 2² plus 1?", "What is 22 plus 1?"),
        ("What is H₂?", "What is H2?"),
        ("What is 1½ m in cm?", "What is 11/2 m in cm?"),
        ("What is -5 plus 2?", "What is 5 plus 2?"),
        ("Which is right?\nA. yes\nB. no", "Which is right?\nA. no\nB. yes"),
        ("Which is right?\nA. yes\nB. no", "Which is right?\nA. yes\nB. maybe"),
        ("What does print('a') show?", "What does print(a) show?"),
        ("What does a[0] hold?", "What does a(0) hold?"),
        ("What does f(a, b) give?", "What does f(a b) give?"),
        ("What does a*b give?", "What does a**b give?"),
        ("What does x == y give?", "What does x = y give?"),
        ("What is 50% of 8?", "What is 50 of 8?"),
        ("How long is 2'?", 'How long is 2"?'),
        ("Who was Peña?", "Who was Pena?"),
        ("What is under $5?", "What is under €5?"),
        ("?", "!"),
    ],
)
def test_what_differs_in_meaning_stays_apart(question, other):
    assert identity(question) != identity(other)


def test_the_context_belongs_to_the_question():
    assert identity(RIVER, "Vienna lies on the Danube.") == identity(RIVER, "vienna lies  on the danube")
    assert identity(RIVER, "Vienna lies on the Danube.") != identity(RIVER, None)


@each("text", ["", " ", "?", "\u200b", "!!", "a" * 10_000, "\ud800", "ẞ", "İ", "e\u0301", "½", "n!?"])
def test_any_text_has_a_form_that_stays_as_it_is(text):
    assert plain(plain(text)) == plain(text)
