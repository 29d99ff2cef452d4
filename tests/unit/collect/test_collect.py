"""A log of all steps: what is in it, what is paid for and what is not, and how it goes on after a stop."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S

from cascade.budget.charges import most_nano_usd
from cascade.collection import MAX_FAILURES_IN_A_ROW, Collected, CollectSettings, Progress, collect
from cascade.collection.collector import BASELINES, RefusedRole
from cascade.config import CascadeConfig, load
from cascade.engine import RunPlan
from cascade.episodes.journal import Journal
from cascade.episodes.rows import datasets_of
from cascade.errors import (
    AuthenticationError,
    BadRequestError,
    BudgetExceededError,
    EmptyCompletionError,
    MissingExtraError,
    ProviderError,
    ProviderTimeoutError,
    RefusedError,
    UsageError,
)
from cascade.logs.files import read_rows, write_rows
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import COLUMNS, request_digest
from cascade.matching import Matcher
from cascade.orchestrator import Orchestrator
from cascade.plans.base import Walk
from cascade.providers.fake import FakeProvider, reply
from cascade.resilience.event_loop import in_thread
from cascade.types import GUIDE_ONLY, Candidate, Question, Request, Step
from unit.scripted import FixedPolicy

PRICED = {
    "base": {"model": "small", "price": {"input": 0.1, "output": 0.4}, "max_tokens": 64},
    "guide": {"model": "large", "price": {"input": 1, "output": 4}, "max_tokens": 64},
}
ROUNDS = 3
SHARED: Mapping[str, Any] = {"matcher": "exact", "dataset": "rivers", "concurrency": 1, "baselines": ()}
RIVERS = ("Danube", "Rhine", "Inn", "Oder")


def config(**settings: Any) -> CascadeConfig:
    return load({"models": PRICED, "provider": "fake", "strategy": {"rounds": ROUNDS}} | settings)


def rivers(*numbers: int) -> list[AskedQuestion]:
    return [
        AskedQuestion(f"q{n}", Question(f"Which river is number {n}?"), ("the Danube", "Inn"), f"group {n // 2}", "log")
        for n in numbers
    ]


def chance(request: Request, *options: Any) -> Any:
    """Return one of the options: the same for the same call, another for another."""
    return options[int(request_digest(request), 16) % len(options)]


def pair_reply(request: Request) -> Any:
    """Answer as a pair of models would, by what was asked alone."""
    if request.purpose == "judge":
        if chance(request, True, False):
            return reply("Yes", p_yes=0.9)
        return reply(f"No, {chance(request, *RIVERS)}", p_yes=0.2)
    if request.purpose == "decide":
        return chance(request, "1", "2", "3", "hm")
    if request.purpose == "exit":
        return chance(request, "EXIT", "CONTINUE", "hm")
    return f"Reasoning: it is.\nAnswer: {chance(request, *RIVERS)}"


def _metered(request: Request, given: Any) -> Any:
    """Give an answer the usage that such a prompt has."""
    payload = reply(given) if isinstance(given, str) else given
    if isinstance(payload, dict) and payload.get("usage"):
        payload["usage"]["prompt_tokens"] = sum(len(message.content) for message in request.messages) // 4
    return payload


class Models(FakeProvider):
    """Two models that count what they are asked, by digest; `fails` says which calls fail, and how."""

    def __init__(
        self, answer: Callable[[Request], Any] = pair_reply, fails: Callable[[Request], Any] = lambda _: None
    ) -> None:
        super().__init__(lambda request: fails(request) or _metered(request, answer(request)), keep=100_000)
        self.fails = fails

    @property
    def paid(self) -> Counter[str]:
        """The calls that were answered, by digest, and how often."""
        return Counter(request_digest(request) for request in self.requests if self.fails(request) is None)

    @property
    def paid_twice(self) -> list[str]:
        return [digest for digest, count in self.paid.items() if count > 1]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def journal_of(log: Path) -> Path:
    return log.with_name(log.name + ".journal")


def collected(
    log: Path,
    questions: Sequence[AskedQuestion],
    models: Models | None = None,
    *,
    cascade: CascadeConfig | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
    **options: Any,
) -> Collected:
    settings = CollectSettings(**{**SHARED, **options})
    return collect(cascade or config(), questions, log, settings, providers={"fake": models or Models()}, tell=tell)


def rows_of(log: Path) -> list[dict[str, Any]]:
    return list(read_rows(log))


def full_walk(log: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(log) if row["walk"] is None]


# --- what is in the log ---


@pytest.mark.parametrize("p_yes", [0.99, 0.01])
def test_all_steps_are_run_whatever_the_answers_are(log, p_yes):
    def sure(request: Request) -> Any:
        if request.purpose == "judge":
            return reply("Yes" if p_yes > 0.5 else "No, Inn", p_yes=p_yes)
        return {"exit": "EXIT", "decide": "1"}.get(request.purpose, "Answer: Danube")

    done = collected(log, rivers(1, 2), Models(sure), baselines=BASELINES)
    rows = full_walk(log)
    steps = [(row["episode_id"], row["step"], row["source"]) for row in rows]
    assert steps == [(q, step, source) for q in ("q1", "q2") for step in (1, 2, 3) for source in ("base", "guide")]
    assert {row["horizon"] for row in rows} == {3}
    assert {row["kept"] for row in rows} == {None}
    assert (done.rows, done.failures, done.stopped) == (len(rows_of(log)), (), None)
    assert done.progress.made_calls + done.progress.reused_calls == done.rows


def test_named_walks_stop_where_they_stop_and_say_what_they_kept(log):
    def sure(request: Request) -> Any:
        if request.purpose == "judge":
            return reply("No, Inn", p_yes=0.1)
        return {"exit": "EXIT", "decide": "2"}.get(request.purpose, "Answer: Danube")

    collected(log, rivers(1), Models(sure), baselines=BASELINES)
    by_walk: dict[str, list[Any]] = {}
    for row in rows_of(log):
        if row["walk"] is not None:
            by_walk.setdefault(row["walk"], []).append((row["step"], row["source"], row["candidate"], row["kept"]))
    decided = [(1, "base", 0, False), (1, "guide", 1, True)]
    assert by_walk == {
        "guide only": [(1, "large", 0, True)],
        "LLM policy, base": [*decided, (1, "base", None, None)],
        "LLM policy, guide": [*decided, (1, "guide", None, None)],
        "LLM-exit, base": [(1, "base", 0, True), (1, "base", None, None)],
        "LLM-exit, guide": [(1, "guide", 0, True), (1, "guide", None, None)],
    }


def test_a_row_says_whose_it_is_and_what_is_right(log):
    collected(log, rivers(1, 2), baselines=BASELINES)
    rows = rows_of(log)
    for row in rows:
        assert tuple(row) == COLUMNS
        number = int(row["episode_id"][1:])
        assert (row["dataset"], row["split"], row["group"]) == ("rivers", "log", f"group {number // 2}")
        assert (row["question"], row["gold"]) == (f"Which river is number {number}?", ["the Danube", "Inn"])
        assert row["correct"] == (None if row["answer"] is None else row["answer"] in {"Danube", "Inn"})
        assert row["answer"] is None or row["candidate"] is not None
    assert {row["correct"] for row in rows} == {True, False, None}


def test_without_an_accepted_answer_nothing_is_right_or_wrong_and_the_journal_goes(log):
    collected(log, [AskedQuestion("q1", Question("Which river?"))])
    assert [(row["gold"], row["correct"]) for row in rows_of(log)] == [(None, None)] * 2 * ROUNDS
    assert [path.name for path in log.parent.iterdir()] == ["log.jsonl"]


class _Noting(Matcher):
    """A matcher that notes what it is told."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        raise AssertionError("the question is known")

    def matches_question(self, question: str, answer: str, gold: Sequence[str]) -> bool | None:
        self.notes.append((question, answer, tuple(gold)))
        return None


def test_a_matcher_that_wants_the_question_is_told_it(log):
    matcher = _Noting()
    collected(log, rivers(1), matcher=matcher)
    assert {note[0] for note in matcher.notes} == {"Which river is number 1?"}
    assert {note[2] for note in matcher.notes} == {("the Danube", "Inn")}


def test_the_questions_keep_their_order_and_the_steps_theirs(log):
    numbers = [7, 3, 9, 1, 4, 8, 2]
    collected(log, rivers(*numbers), baselines=BASELINES, concurrency=8)
    ids = [row["episode_id"] for row in rows_of(log)]
    assert list(dict.fromkeys(ids)) == [f"q{n}" for n in numbers]
    assert [ids.index(name) for name in dict.fromkeys(ids)] == sorted(ids.index(name) for name in set(ids))
    for question in set(ids):
        walks = [row["walk"] for row in rows_of(log) if row["episode_id"] == question]
        assert list(dict.fromkeys(walks)) == [None, *BASELINES]


class _EndsEarly:
    """A strategy of up to four steps whose second step is final."""

    horizon, models, agents, blocks, step_names = 4, ("small",), {}, False, ()  # type: ignore[var-annotated]

    def plan(self, question: Question) -> Walk:
        for number in (1, 2):
            request = Request("small", (), "base", "answer", number, question, 8, sample=number - 1)
            completion = yield request
            yield Step(number, (Candidate(completion.text, "base", "small"),), {}, final=number == 2)


def test_the_horizon_of_a_walk_that_could_not_go_on_is_where_it_ended(log, monkeypatch):
    early = RunPlan(_EndsEarly(), FixedPolicy("both", 4), walk="early")
    monkeypatch.setattr("cascade.collection.recorded_baselines", lambda _config, _names: [early])
    collected(log, rivers(1))
    assert [(row["step"], row["horizon"]) for row in rows_of(log) if row["walk"] == "early"] == [(1, 2), (2, 2)]
    assert {row["horizon"] for row in full_walk(log)} == {3}


def test_a_row_was_made_when_its_call_was(log, monkeypatch):
    recorded: dict[str, str] = {}
    add = Journal.add

    def noting(self: Journal, rows: Any) -> None:
        batch = list(rows)
        recorded.update({row["signals"]["replay"]["request"]: row["created_at"] for row in batch})
        add(self, batch)

    monkeypatch.setattr(Journal, "add", noting)
    collected(log, rivers(1, 2), baselines=BASELINES)
    rows = rows_of(log)
    assert {row["signals"]["replay"]["request"]: row["created_at"] for row in rows} == recorded


# --- what is paid ---


def test_what_is_drawn_is_drawn_anew_at_every_step(log):
    """A live run would ask again; an answer from the record would make the rounds more alike than they are."""

    def repeats(request: Request) -> Any:
        return "Answer: Inn" if request.role == "base" else reply(chance(request, "Yes", "No, Oder"), logprobs=())

    drawn = {"rounds": ROUNDS, "samples": 2}
    for seed, judged in ((None, 1 + ROUNDS), (7, 2)):
        models = Models(repeats)
        guide = {**PRICED["guide"], "seed": seed}
        cascade = config(models={**PRICED, "guide": guide}, strategy=drawn)
        collected(log, rivers(1), models, cascade=cascade)
        judges = [call for call in models.requests if call.purpose == "judge"]
        assert (len({call.messages for call in judges}), len(judges)) == (1, judged)
        log.unlink()


class _Slow(Models):
    """Models whose answers differ each time, and that wait until as many calls are in flight as there can be."""

    def __init__(self, together: int) -> None:
        super().__init__(lambda request: f"Answer: {len(self.requests)}" if request.role == "base" else "Yes")
        self.gate = threading.Barrier(together)

    async def complete(self, request: Request, timeout_s: float) -> Any:
        await in_thread(self._wait)
        return await super().complete(request, timeout_s)

    def _wait(self) -> None:
        try:
            self.gate.wait(0.2)
        except threading.BrokenBarrierError:
            self.gate.reset()


def test_two_equal_questions_at_the_same_time_are_asked_once(log):
    question = Question("Which river?")
    twins = [AskedQuestion(name, question, ("Inn",)) for name in ("one", "other")]
    models = _Slow(2)
    cascade = config(strategy={"rounds": 2, "samples": 1})
    collected(log, twins, models, cascade=cascade, concurrency=2)
    assert models.paid_twice == []
    assert len(models.requests) == 4
    rows = rows_of(log)
    assert [row["text"] for row in rows[:4]] == [row["text"] for row in rows[4:]]


def test_an_unknown_cost_is_said_to_be_unknown_on_every_run(log):
    cascade = load({"models": {"base": "small", "guide": "large"}, "provider": "fake", "strategy": {"rounds": 1}})
    for resume in (False, True):
        done = collected(log, rivers(1), cascade=cascade, resume=resume)
        assert (done.progress.spent_nano_usd, done.progress.cost_known) == (0, False)
    assert {row["cost_nano_usd"] for row in rows_of(log)} == {None}


@pytest.mark.parametrize("error", [ProviderTimeoutError("slow"), EmptyCompletionError("nothing")])
def test_a_failed_call_that_may_be_billed_makes_the_cost_unknown(log, error):
    models = Models(fails=lambda request: error if "number 2" in request.question.text else None)
    done = collected(log, rivers(1, 2), models)
    bound = most_nano_usd(models.requests[-1], config().prices()["small"]).nano_usd  # type: ignore[arg-type]
    by_digest = {row["signals"]["replay"]["request"]: row["cost_nano_usd"] for row in rows_of(log)}
    assert done.progress.spent_nano_usd == sum(by_digest.values()) + bound
    assert not done.progress.cost_known


def test_progress_is_told_after_every_question_and_grows(log):
    seen: list[Progress] = []
    collected(log, rivers(1, 2, 3), tell=seen.append)
    assert [(state.done, state.total, state.failed) for state in seen] == [(1, 3, 0), (2, 3, 0), (3, 3, 0)]
    assert [state.made_calls + state.reused_calls for state in seen] == [6, 12, 18]
    assert seen[0].spent_nano_usd < seen[1].spent_nano_usd < seen[2].spent_nano_usd
    assert seen[2].eta_s == 0.0
    assert Progress(2, 10, 0, 4, 0, 0, cost_known=True, elapsed_s=5.0).eta_s == pytest.approx(20.0)
    assert Progress(0, 10, 0, 0, 0, 0, cost_known=True, elapsed_s=5.0).eta_s is None


# --- the cap ---


@pytest.mark.parametrize("usage", [{}, {"usage": None}], ids=["known", "bounded"])
def test_what_stands_in_the_log_is_counted_not_what_was_asked_this_time(log, usage):
    """A cost without a usage counts at its bound, also after a stop."""
    models = Models(lambda request: {**reply("Inn" if request.role == "base" else "Yes"), **usage})
    progress = collected(log, rivers(1, 3), models).progress
    calls, spent = len(models.requests), progress.spent_nano_usd
    done = collected(log, rivers(2, 1, 3), models, resume=True, max_cost_usd=(spent + 1) / 1e9)
    assert (spent > 0, progress.cost_known, type(done.stopped)) == (True, not usage, BudgetExceededError)
    assert (done.progress.done, done.questions, done.rows, len(models.requests)) == (0, 2, 2 * 2 * ROUNDS, calls)
    assert {row["episode_id"] for row in rows_of(log)} == {"q1", "q3"}


def test_under_a_cap_a_call_that_may_be_billed_is_not_tried_again(log, monkeypatch):
    """Three tries of one call cost up to three times what was held for it."""
    monkeypatch.setattr("cascade.providers.guard.time.sleep", lambda _: None)
    odd = {"not": "a completion"}
    tries: list[bool] = []

    def first_is_odd(request: Request) -> Any:
        tries.append(request.at_most_once)
        return odd if len(tries) == 1 else pair_reply(request)

    done = collected(log, rivers(1), Models(first_is_odd), max_cost_usd=1)
    assert [name for name, _ in done.failures] == ["q1"]
    assert tries == [True]
    tries.clear()
    done = collected(log, rivers(1), Models(first_is_odd), resume=True)
    assert (done.failures, tries[:2]) == ((), [False, False])


# --- failures ---


def broken(*numbers: int, when: Callable[[Request], bool] = lambda _: True) -> Models:
    """Return models that refuse the key for some questions."""
    names = {f"Which river is number {n}?" for n in numbers}
    error = AuthenticationError("no key")
    return Models(fails=lambda request: error if request.question.text in names and when(request) else None)


@pytest.mark.parametrize(
    "when", [lambda call: call.role == "base", lambda call: call.role == "guide", lambda call: call.step == 2]
)
def test_a_question_with_a_failed_call_is_left_out_and_named_and_asked_again(log, when):
    models = broken(2, when=when)
    done = collected(log, rivers(1, 2, 3), models)
    assert {row["episode_id"] for row in rows_of(log)} == {"q1", "q3"}
    assert [name for name, _ in done.failures] == ["q2"]
    assert "AuthenticationError: no key" in done.failures[0][1]
    assert (done.progress.done, done.progress.failed, done.stopped) == (3, 1, None)
    assert journal_of(log).exists()
    (*_, last) = [request for request in models.requests if "number 2" in request.question.text]
    assert when(last)  # what would come after a hole is of no use, and is not paid for
    before = models.paid
    well = Models()
    done = collected(log, rivers(1, 2, 3), well, resume=True)
    assert (done.failures, [row["episode_id"] for row in rows_of(log)][:: 2 * ROUNDS]) == ((), ["q1", "q2", "q3"])
    assert not before.keys() & well.paid.keys()
    assert not journal_of(log).exists()


def test_a_named_walk_that_fails_leaves_the_steps_in_the_log(log):
    models = Models(fails=lambda request: AuthenticationError("no key") if request.purpose == "exit" else None)
    done = collected(log, rivers(1), models, baselines=[GUIDE_ONLY, "LLM-exit, base"])
    assert {row["walk"] for row in rows_of(log)} == {None, GUIDE_ONLY}
    assert [name for name, _ in done.failures] == ["q1"]
    collected(log, rivers(1), models, resume=True, baselines=["LLM-exit, base", GUIDE_ONLY])
    assert {row["walk"] for row in rows_of(log)} == {None, GUIDE_ONLY}
    collected(log, rivers(1), resume=True, baselines=[GUIDE_ONLY, "LLM-exit, base"])
    assert {row["walk"] for row in rows_of(log)} == {None, GUIDE_ONLY, "LLM-exit, base"}


# --- what a model refuses for good ---

OFFERED: dict[str, Any] = {
    "kind": "nodes",
    "nodes": [
        {"name": "first", "model": "base"},
        {"name": "check", "model": "guide", "purpose": "judge", "parents": ["first"]},
        {"name": "second", "model": "base", "parents": ["first", "check"]},
        {"name": "last", "model": "guide", "purpose": "outright"},
    ],
}
LADDER: dict[str, Any] = {"kind": "ladder", "models": ["base", "guide"]}
OFFERED_RULE = {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5}


def refusing(*numbers: int, role: str, error: ProviderError | None = None) -> Models:
    """Models of which one refuses some questions, whatever is tried."""
    refused = error or RefusedError("the filter declined")

    def fails(request: Request) -> Any:
        names = [f"Which river is number {n}?" for n in numbers]
        return refused if request.role == role and request.question.text in names else None

    return Models(fails=fails)


@pytest.mark.parametrize(
    ("strategy", "role", "unknown", "read"),
    [
        (OFFERED, "first", (1, 2, 3), [4]),
        (OFFERED, "check", (2, 3), [1, 4]),
        (OFFERED, "last", (4,), [1, 2, 3]),
        (LADDER, "small", (1,), [2]),
        (LADDER, "large", (2,), [1]),
    ],
)
def test_a_question_that_a_model_refuses_for_good_stays_with_that_step_unknown(log, strategy, role, unknown, read):
    """0.6: the whole question was left out, so that the sample was of the questions that nobody refuses."""
    cascade = config(strategy=strategy, policy=OFFERED_RULE)
    done = collected(log, rivers(1, 2, 3), refusing(2, role=role), cascade=cascade)
    assert (done.questions, done.failures, done.stopped) == (3, (), None)
    assert done.refused == (RefusedRole(role, 1, "q2", "RefusedError: the filter declined"),)
    assert [row["step"] for row in rows_of(log) if row["episode_id"] == "q2"] == read
    (each,) = datasets_of(rows_of(log))
    at, table = 1, each.log
    for step in range(1, table.width + 1):
        assert table.bought[at, step - 1] == (step not in unknown)
    beyond = [step - 1 for step in unknown]
    assert np.isnan(table.signals["reply_mean_logprob"][at, beyond]).all()
    assert (table.answer[at, beyond] == -1).all()
    assert table.bought[:, beyond[0]].sum() == 2  # of the others it is known
    if table.width in unknown:
        assert not table.complete[at]
    assert not journal_of(log).exists()
    well = Models()
    done = collected(log, rivers(1, 2, 3), well, cascade=cascade, resume=True)
    assert (done.refused, done.questions, len(full_walk(log))) == ((), 3, 3 * table.width)
    assert {request.question.text for request in well.requests} == {"Which river is number 2?"}
    assert {request.role for request in well.requests} >= {role}


DOWN, NO_MODEL = AuthenticationError("no key"), BadRequestError("no such model")
DECLINED = RefusedError("the filter declined")


def all_refuse(request: Request) -> Any:
    return DECLINED if "number 2" in request.question.text else None


@pytest.mark.parametrize(
    ("count", "models", "failed", "why", "logged"),
    [
        (
            3,
            refusing(1, 2, 3, role="check", error=NO_MODEL),
            ["q1", "q2", "q3"],
            "BadRequestError",
            0,
        ),  # set up wrongly
        (2, Models(fails=all_refuse), ["q2"], "the filter declined", 1),
        # a server that is down hits any question alike, and the next run mends it
        (2, refusing(2, role="check", error=DOWN), ["q2"], "AuthenticationError", 1),
    ],
)
def test_a_question_that_is_refused_by_nobody_or_by_everybody_failed(log, count, models, failed, why, logged):
    done = collected(log, rivers(*range(1, count + 1)), models, cascade=config(strategy=OFFERED, policy=OFFERED_RULE))
    assert ([name for name, _ in done.failures], done.refused, done.questions) == (failed, (), logged)
    assert why in done.failures[0][1]
    assert journal_of(log).exists()


@pytest.mark.parametrize(
    ("models", "settings", "concurrency", "failed"),
    [
        *((broken(*range(60)), {}, concurrency, range(20, 20 + concurrency)) for concurrency in (1, 4)),
        (refusing(*range(1, 60), role="check"), {"strategy": OFFERED, "policy": OFFERED_RULE}, 1, (0,)),
        (broken(*(n for n in range(60) if n % 20)), {"strategy": {"rounds": 1}}, 1, None),  # an answer in between
    ],
)
def test_an_outage_stops_it(log, models, settings, concurrency, failed):
    done = collected(log, rivers(*range(60)), models, cascade=config(**settings), concurrency=concurrency)
    if failed is None:
        assert (done.stopped, len(done.failures), len(full_walk(log))) == (None, 57, 6)
        return
    assert isinstance(done.stopped, ProviderError)
    assert (done.stopped.exit_code, len(done.failures) in failed, MAX_FAILURES_IN_A_ROW) == (5, True, 20)
    assert len(models.requests) == len(done.failures) or "refused 20 consecutive calls" in str(done.stopped)


def test_questions_that_were_not_asked_because_it_stopped_did_not_fail(log):
    gate = threading.Event()

    def fails(request: Request) -> Any:
        if "number 0?" in request.question.text:
            return None
        return AuthenticationError("no key")

    def answer(request: Request) -> Any:
        gate.wait(PATIENCE_S)
        return pair_reply(request)

    def tell(progress: Progress) -> None:
        if progress.failed >= 20:
            gate.set()

    done = collected(log, rivers(*range(60)), Models(answer, fails), concurrency=2, tell=tell)
    assert "q0" not in {name for name, _ in done.failures}
    assert done.progress.done == len(done.failures)


def test_a_matcher_that_breaks_leaves_what_was_paid_on_record(log):
    class Broken(Matcher):
        def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
            raise UsageError("this matcher is broken")

    models = Models()
    with pytest.raises(UsageError, match="this matcher is broken"):
        collected(log, rivers(1), models, matcher=Broken())
    assert (log.exists(), journal_of(log).exists(), len(models.requests)) == (False, True, 2 * ROUNDS)
    collected(log, rivers(1), models, resume=True)
    assert (log.exists(), journal_of(log).exists(), len(models.requests)) == (True, False, 2 * ROUNDS)


# --- going on ---


def test_an_interrupt_lets_the_calls_in_flight_be_written_down(log):
    def tell(progress: Progress) -> None:
        if progress.done >= 2:
            raise KeyboardInterrupt

    models = Models()
    with pytest.raises(KeyboardInterrupt):
        collected(log, rivers(*range(20)), models, concurrency=4, tell=tell)
    with Journal(journal_of(log)) as journal:
        assert all(digest in journal for digest in models.paid)
    assert len(models.requests) < 20 * 2 * ROUNDS
    collected(log, rivers(*range(20)), models, resume=True)
    assert models.paid_twice == []


def test_another_walk_pays_for_what_is_new_and_what_was_paid_for_other_questions_stays_on_record(log):
    models = Models()
    collected(log, rivers(1, 2, 3), models)
    before = len(models.requests)
    done = collected(log, rivers(1, 2, 3), models, baselines=BASELINES[:1], resume=True)
    assert len(models.requests) - before == done.progress.made_calls == 3
    collected(log, rivers(1, 2, 3), models, baselines=BASELINES, resume=True)
    assert models.paid_twice == []
    whole, paid = log.read_bytes(), len(models.requests)
    done = collected(log, rivers(2), models, baselines=BASELINES, resume=True)
    assert {row["episode_id"] for row in rows_of(log)} == {"q2"}
    assert done.unused_calls > 0
    assert journal_of(log).exists()
    done = collected(log, rivers(1, 2, 3), models, baselines=BASELINES, resume=True)
    assert (log.read_bytes(), len(models.requests), done.unused_calls) == (whole, paid, 0)
    assert not journal_of(log).exists()


def test_with_other_settings_everything_is_asked_anew_and_the_old_calls_stay(log):
    models = Models()
    collected(log, rivers(1), models)
    other = config(models={**PRICED, "base": {**PRICED["base"], "temperature": 0.5}})
    done = collected(log, rivers(1), models, cascade=other, resume=True)
    assert done.progress.made_calls > 0
    assert (done.unused_calls > 0) is journal_of(log).exists() is True
    before = len(models.requests)
    collected(log, rivers(1), models, resume=True)
    assert len(models.requests) == before


def test_old_rows_without_a_digest_or_a_text_are_no_record(log):
    collected(log, rivers(1))
    rows = rows_of(log)
    del rows[0]["signals"]["replay"]["request"]
    rows[1]["text"] = None
    rows[2]["signals"] = None
    write_rows(log, rows)
    models = Models()
    collected(log, rivers(1), models, resume=True)
    assert len(models.requests) == 3
    assert len(rows_of(log)) == 2 * ROUNDS


@pytest.mark.parametrize("there", ["log", "journal", "both"])
def test_without_resume_what_is_there_is_left_alone(log, there):
    models = Models()
    if there == "log":
        collected(log, rivers(1), models)
    else:
        collected(log, rivers(1, 2), broken(2) if there == "both" else broken(1, 2))
    before = {path.name: path.read_bytes() for path in log.parent.iterdir()}
    calls = len(models.requests)
    with pytest.raises(UsageError) as caught:
        collected(log, rivers(1, 2), models)
    assert caught.value.exit_code == 2
    for path in (log, journal_of(log)):
        assert (f"{path} exists. Add --resume to continue it" in str(caught.value)) is path.exists()
    assert {path.name: path.read_bytes() for path in log.parent.iterdir()} == before
    assert len(models.requests) == calls


# --- what would fail later fails first ---


UNPRICED = {"models": {"base": "small", "guide": "large"}, "provider": "fake"}
NO_PRICE = ("small has no known price", "large has no known price")


@pytest.mark.parametrize(
    ("name", "there", "settings", "options", "parts"),
    [
        ("log.jsonl", None, UNPRICED, {"max_cost_usd": 1}, NO_PRICE),
        (
            "no/log.csv",
            None,
            UNPRICED,
            {"max_cost_usd": 1},
            ("no folder", ".jsonl, .jsonl.gz, .parquet", *NO_PRICE),
        ),
        ("log.jsonl", Path.mkdir, {}, {"resume": True}, ("is a folder",)),
        ("log.jsonl", lambda path: path.write_bytes(b"a diary\n"), {}, {"resume": True}, ()),  # it is no log
        ("log.parquet", None, {}, {}, ("[logs]",)),  # without duckdb
    ],
)
def test_everything_that_would_fail_later_is_said_at_once(tmp_path, monkeypatch, name, there, settings, options, parts):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    models, log = Models(), tmp_path / name
    if there is not None:
        there(log)
    before = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises((UsageError, MissingExtraError)) as caught:
        collected(log, rivers(1), models, cascade=load(settings) if settings else None, **options)
    assert [part for part in parts if part not in str(caught.value)] == []
    assert models.requests == []
    after = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    assert (after.items() >= before.items(), there is None and after != {}) == (True, False)


def test_without_a_provider_a_question_or_the_lock_nothing_is_written(log):
    models = Models()
    with pytest.raises(UsageError):
        collected(log, rivers(1), cascade=config(provider="replay:nowhere.jsonl"))
    with pytest.raises(UsageError):
        collected(log, [*rivers(1), *rivers(1)], models)
    done = collected(log, [], models)
    assert (done.rows, done.progress.total, list(log.parent.iterdir())) == (0, 0, [])
    with Journal(journal_of(log)), pytest.raises(UsageError, match="Another process is writing"):
        collected(log, rivers(1), models, resume=True)
    assert models.requests == []


def test_a_full_disk_stops_it_with_a_message_and_it_goes_on_later(log, monkeypatch):
    models, add = Models(), Journal.add

    def full(self: Journal, rows: Any) -> None:
        self._calls.execute(f"PRAGMA max_page_count = {5 if len([*self]) > 2 else 1000}")
        add(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", full)
        with pytest.raises(UsageError, match=r"journal cannot be written: database or disk is full"):
            collected(log, rivers(1, 2), models, concurrency=2)
    assert not log.exists()
    collected(log, rivers(1, 2), models, resume=True)
    assert len(rows_of(log)) == 4 * ROUNDS


# --- the log plays again ---


def same(first: Any, other: Any) -> bool:
    def contents(answer: Any) -> Any:
        calls = [(c.request, c.completion.text, c.completion.tokens, c.cost_nano_usd) for c in answer.calls]
        return [(s.number, s.candidates, s.signals) for s in answer.steps], calls, answer.answers

    return bool(contents(first) == contents(other))


def assert_replays(log: Path, *numbers: int, answer: Callable[[Request], Any] = pair_reply, **settings: Any) -> None:
    """Assert that questions are answered from the log as they are answered live."""
    with (
        Orchestrator.from_config(config(**settings, provider=f"replay:{log}")) as again,
        Orchestrator.from_config(config(**settings), providers={"fake": Models(answer)}) as live,
    ):
        for entry in rivers(*numbers):
            assert same(again.ask(entry.question), live.ask(entry.question))


@pytest.mark.parametrize("policy", [{"kind": "fixed", "depth": ROUNDS}, {"kind": "uala", "threshold": 0.2}])
def test_a_collected_log_replays_to_the_same_steps(log, policy):
    collected(log, rivers(*range(5)), baselines=BASELINES, concurrency=4)
    assert_replays(log, *range(5), policy=policy)
    with (
        Orchestrator.from_config(config(policy=policy, provider=f"replay:{log}")) as again,
        pytest.raises(ProviderError, match="has no call"),
    ):
        again.ask("A question that was never asked?")


@pytest.mark.parametrize("place", ["base", "guide"])
def test_a_named_walk_replays_as_itself(log, place):
    """The same model is asked twice at a step, with other words before it: each walk must get its own answer."""
    collected(log, rivers(*range(5)), baselines=BASELINES)
    assert_replays(log, *range(5), strategy={"kind": "exit", "model": place, "rounds": ROUNDS})


def test_a_walk_that_was_not_logged_is_not_made_up_from_another(log):
    collected(log, rivers(1))
    cascade = config(strategy={"kind": "exit", "model": "base"}, provider=f"replay:{log}")
    with Orchestrator.from_config(cascade) as again:
        answer = again.ask(rivers(1)[0].question)
    assert [step.signals["says_exit"] for step in answer.steps] == [None]
    assert answer.stopped == "provider error"
