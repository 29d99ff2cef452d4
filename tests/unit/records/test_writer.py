"""Traces: an ask hands its answer over and goes on; what is written, what is lost, and who is told."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S, at_once, in_child, until
from stores import rows_in

from cascade.chat import ChatRequest
from cascade.episodes.rows import datasets_of
from cascade.errors import AuthenticationError, BudgetExceededError, ClosedError, ConfigError, ProviderError, UsageError
from cascade.identity import identity
from cascade.logs.schema import COLUMNS, CUT, hashed
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.records import writer as writer_module
from cascade.records.traces import Store
from cascade.records.writer import TraceCounts, TraceWriter
from cascade.resilience.event_loop import run
from cascade.runtime import AskOptions
from cascade.safety import holds_key
from cascade.types import Answer, Call, Question, Request, TextDelta, Token
from unit.builders import RIVER, TWO_MODELS, candidate, completion, request, step, two_models

KEY = "sk-abcdefghijklmnop"


def answer_of(text: str = "Answer: Danube", question: Question = RIVER, **fields: Any) -> Answer:
    """Return an answer of one step and one call."""
    done = completion(text, **fields)
    only = step(1, candidate("Danube"), calls=(Call(request(question=question), done, 14_000, 14_000),))
    return Answer(question, "Danube", ("Danube",), (only,), "policy", 0.1)


# --- what is written ---


def test_an_answer_becomes_rows_with_an_id_of_its_own(store_url):
    with TraceWriter(store_url) as writer:
        writer.submit(answer_of(), {"horizon": 4, "dataset": "live"})
        writer.submit(answer_of(), {"horizon": 4, "dataset": "live"})
        assert writer.flush()
        assert writer.counts == TraceCounts(accepted=2, written=2, lost=0, waiting=0, failures=0)
        row, other = rows_in(store_url)
    assert uuid.UUID(row["episode_id"]) != uuid.UUID(other["episode_id"])
    assert row["group"] == identity(RIVER.text)
    assert (row["question"], row["answer"], row["text"]) == (RIVER.text, "Danube", "Answer: Danube")
    assert (row["horizon"], row["dataset"], row["cost_nano_usd"]) == (4, "live", 14_000)
    assert row["signals"]["replay"]["stopped"] == "policy"
    assert tuple(row) == COLUMNS


def test_a_writer_that_was_never_used_makes_no_file(tmp_path, file_url):
    with TraceWriter(file_url) as writer:
        assert writer.flush(0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="not a kind of store"):
        TraceWriter("mysql://host/db")


def test_answers_are_committed_in_groups(file_url, blocked, monkeypatch):
    sizes, append = list[int](), Store.append
    monkeypatch.setattr(Store, "append", lambda self, rows: sizes.append(append(self, rows)) or sizes[-1])
    writer = TraceWriter(file_url)

    def work(name: int) -> None:
        for number in range(250):
            writer.submit(answer_of(question=Question(f"{name} {number:03}")))

    at_once(*(partial(work, name) for name in range(4)))
    blocked.may_go.set()
    writer.close()
    writer.close()
    assert (sum(sizes), len(sizes) <= 11) == (1_000, True)
    texts = [row["question"] for row in rows_in(file_url)]
    assert sorted(texts) == [f"{name} {number:03}" for name in range(4) for number in range(250)]
    assert [text for text in texts if text.startswith("0")] == [f"0 {number:03}" for number in range(250)]  # in order
    with pytest.raises(UsageError):
        writer.submit(answer_of())


# --- what is kept of the texts ---


@pytest.mark.parametrize("content", ["full", "hash", "none"])
def test_texts_are_kept_hashed_or_left_out(store_url, content):
    def stored(text: str) -> str | None:
        return {"full": text, "hash": hashed(text), "none": None}[content]

    chat = Question.of_chat(ChatRequest([{"role": "user", "content": "Hi"}], {"user": "ann"}, "ann's"))
    plain = Question("Which river?", "Vienna lies on it.")
    with TraceWriter(store_url, content=content) as writer:
        writer.submit(answer_of(question=plain, tokens=(Token("Danube", -0.5),)), {"gold": ["Danube"]})
        writer.submit(answer_of(question=chat))
    row, other = rows_in(store_url)
    texts = {"question": plain.text, "context": plain.context, "answer": "Danube", "text": "Answer: Danube"}
    assert {name: row[name] for name in texts} == {name: stored(text or "") for name, text in texts.items()}
    assert (row["gold"], other["user"]) == (None if content == "none" else [stored("Danube")], stored("ann"))
    assert other["group"] == ("ann's" if content == "full" else hashed("ann's"))
    assert (row["signals"]["replay"]["tokens"] is None) is (content != "full")
    assert (row["cost_nano_usd"], row["model"]) == (14_000, "small")
    with Store(store_url) as store:
        assert store.purge(user="ann") == (0 if content == "none" else 1)


async def test_a_keys_name_is_recorded_if_a_request_names_no_user(file_url):
    ladder = {"kind": "ladder", "models": ["base", "guide"]}
    async with Orchestrator("small", "large", provider="fake", strategy=ladder, traces=file_url) as cascade:
        for options in ({}, {"user": "ann"}):
            request = ChatRequest([{"role": "user", "content": "Hi"}], options)
            await cascade.runtime.start(request, AskOptions(key="team")).answer()
    assert list(dict.fromkeys(row["user"] for row in rows_in(file_url))) == ["team", "ann"]


# --- keys (F68) ---


@pytest.mark.parametrize("content", ["full", "hash"])
@pytest.mark.parametrize(
    "place",
    [
        {"question": Question(f"my key is {KEY}")},
        {"question": Question("what?", f"Bearer {KEY}")},
        {"text": f"Answer: {KEY}"},
        {"text": "Answer: x", "tokens": tuple(Token(piece, -0.1) for piece in ("so: ", "sk", "-abcdefgh", "ijklmnop"))},
        {"text": "Answer: my own secret word"},
        {"columns": {"gold": ["fine", f"not {KEY}"]}},
        {"columns": {"dataset": f"of {KEY}"}},
    ],
)
def test_no_key_reaches_the_file(file_url, tmp_path, place, content):
    columns = place.pop("columns", None) if "columns" in (place := dict(place)) else None
    with TraceWriter(file_url, content=content, secrets=("my own secret word",)) as writer:
        writer.submit(answer_of(**place), columns)
    (row,) = rows_in(file_url)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for key in (b"abcdefgh", b"secret word", hashed(f"my key is {KEY}").encode()):
        assert key not in files
    if content == "full":
        assert "[redacted]" in str(row) or row["signals"]["replay"]["tokens"] is None


_PIECES = st.sampled_from([
    "sk", "gsk", "xai", "key", "ſk", "-", "_", "abcdefgh1", "Bearer", "AIza", "://", "user:word@host", "é", ".", " ", "\x00"
])  # fmt: skip


@given(st.lists(st.lists(_PIECES, max_size=4).map("".join), max_size=4))
@settings(max_examples=100, deadline=None)
def test_texts_that_are_joined_hide_no_key(texts):
    assert holds_key("\n".join(texts)) or not any(map(holds_key, texts))


# --- the queue ---


class Blocked:
    """A store that stands still until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go, self.reached = threading.Event(), threading.Event()
        append = Store.append

        def wait(store: Store, rows: Any) -> int:
            self.reached.set()
            assert self.may_go.wait(PATIENCE_S)
            return append(store, rows)

        monkeypatch.setattr(Store, "append", wait)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    blocker = Blocked(monkeypatch)
    yield blocker
    blocker.may_go.set()


def test_a_full_queue_drops_the_oldest_counts_and_never_makes_an_ask_wait(file_url, blocked, monkeypatch, caplog):
    monkeypatch.setattr(writer_module, "MAX_ANSWERS", 5)
    with TraceWriter(file_url) as writer:
        writer.submit(answer_of(question=Question("first")))
        assert blocked.reached.wait(PATIENCE_S)
        for number in range(20):
            writer.submit(answer_of(question=Question(f"number {number}")))
        assert writer.counts == TraceCounts(accepted=21, written=0, lost=15, waiting=6, failures=0)
        blocked.may_go.set()
        assert writer.flush()
    assert [row["question"] for row in rows_in(file_url)] == ["first", *(f"number {n}" for n in range(15, 20))]
    warnings = [record for record in caplog.records if "queue was full" in record.getMessage()]
    assert len(warnings) == 1  # once a minute
    assert "the answers themselves are not affected" in warnings[0].getMessage()


def test_long_texts_fill_the_queue_too_and_the_longest_go_first(file_url, blocked, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_CHARS", 10_000)
    with TraceWriter(file_url) as writer:
        writer.submit(answer_of())
        assert blocked.reached.wait(PATIENCE_S)
        for length in (20_000, 1, *[3_000] * 10, 20_000):  # one that is too long alone is kept
            writer.submit(answer_of(question=Question("x" * length)))
        blocked.may_go.set()
    assert [len(row["question"]) for row in rows_in(file_url)][1:] == [1, 3_000, 3_000, 3_000]


def test_flush_waits_for_the_oldest_also_when_later_ones_are_dropped(file_url, blocked, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_ANSWERS", 2)
    with TraceWriter(file_url) as writer:
        writer.submit(answer_of())
        assert blocked.reached.wait(PATIENCE_S)
        for _ in range(8):
            writer.submit(answer_of())
        assert writer.flush(0.05) is False
        blocked.may_go.set()


def test_closing_does_not_hang_on_a_stalled_store(file_url, blocked, caplog):
    writer = TraceWriter(file_url)
    writer.submit(answer_of())
    assert blocked.reached.wait(PATIENCE_S)
    writer.close(timeout_s=0.05)
    assert "did not answer within" in caplog.text
    blocked.may_go.set()
    until(lambda: writer.counts.written == 1)
    writer.close()


# --- waiting for the commit ---


async def test_strict_returns_when_the_rows_are_committed(store_url):
    with TraceWriter(store_url, strict=True) as writer:
        for number in range(5):
            answer = answer_of()
            await writer.settle(writer.submit(answer), answer)
            assert writer.counts.written == number + 1
    assert len(rows_in(store_url)) == 5


async def recorded(writer: TraceWriter) -> None:
    answer = answer_of()
    await writer.settle(writer.submit(answer), answer)


async def test_settle_waits_without_blocking_the_loop(file_url, blocked):
    with TraceWriter(file_url, strict=True) as writer:
        recording = asyncio.create_task(recorded(writer))
        await asyncio.to_thread(blocked.reached.wait, PATIENCE_S)
        assert not recording.done()  # and this runs meanwhile
        blocked.may_go.set()
        await recording
        assert writer.counts.written == 1


async def test_f48_to_cancel_the_wait_loses_nothing(file_url, blocked):
    with TraceWriter(file_url, strict=True) as writer:
        recording = asyncio.create_task(recorded(writer))
        await asyncio.to_thread(blocked.reached.wait, PATIENCE_S)
        recording.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recording
        second = asyncio.create_task(recorded(writer))
        await asyncio.sleep(0)
        second.cancel()  # while it waits in the queue
        blocked.may_go.set()
        assert await asyncio.to_thread(writer.flush)
    assert len(rows_in(file_url)) == 2


# --- the end ---


# It collects garbage, and with it sockets that litellm left open in an earlier test.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
def test_f48_left_without_close_it_warns_once_and_writes_all_the_same(file_url):
    left = [TraceWriter(file_url)]
    left[0].submit(answer_of())
    queue = left[0]._queue
    with pytest.warns(ResourceWarning, match="was not closed") as caught:
        left.clear()
    gc.collect()
    assert len(caught) == 1
    until(lambda: queue.counts().waiting == 0)
    assert len(rows_in(file_url)) == 1


_EXITS = """
from cascade import Orchestrator
made = Orchestrator("small", "large", provider="fake", traces="{url}")
made.ask("Which river?")
"""


def test_a_process_that_ends_without_close_leaves_its_traces(file_url):
    subprocess.run([sys.executable, "-c", _EXITS.replace("{url}", file_url)], check=True, timeout=PATIENCE_S)
    assert {row["question"] for row in rows_in(file_url)} == {"Which river?"}


def test_f50_a_forked_child_writes_its_own_and_its_parents_stay_its_parents(store_url, monkeypatch):
    writer = TraceWriter(store_url)
    writer.submit(answer_of(question=Question("parent, before")))
    assert writer.flush()
    writer.submit(answer_of(question=Question("parent, in the queue")))

    def child() -> None:
        assert writer.counts.accepted == 0
        writer.submit(answer_of(question=Question("child")))
        writer.close()
        assert writer.counts.written == 1

    in_child(child)
    writer.submit(answer_of(question=Question("parent, after")))
    writer.close()
    questions = sorted(row["question"] for row in rows_in(store_url))
    assert questions == ["child", "parent, after", "parent, before", "parent, in the queue"]


def test_f50_what_was_closed_is_closed_in_a_child_too(file_url):
    writer = TraceWriter(file_url)
    writer.submit(answer_of())
    writer.close()

    def child() -> None:
        with pytest.raises(UsageError, match="was closed"):
            writer.submit(answer_of())

    in_child(child)


# --- a whole cascade ---


def wired(url: Any, provider: Any = None, **more: Any) -> Orchestrator:
    return Orchestrator.from_config(TWO_MODELS | {"traces": url} | more, providers={"fake": provider or two_models()})


def test_all_four_ways_to_ask_are_recorded(store_url):
    async def both(cascade: Orchestrator) -> None:
        await cascade.aask("aask")
        _ = [event async for event in cascade.astream("astream")]

    with wired(store_url) as cascade:
        cascade.ask("ask")
        list(cascade.stream("stream"))
        asyncio.run(both(cascade))
        cascade.many(["many 1", "many 2"])
    rows = rows_in(store_url)
    assert {row["question"] for row in rows} == {"ask", "stream", "aask", "astream", "many 1", "many 2"}
    assert all(len([row for row in rows if row["question"] == q]) == 2 for q in ("ask", "stream", "aask", "astream"))
    assert {row["horizon"] for row in rows} == {4}
    assert len({row["episode_id"] for row in rows}) == 6


def test_a_failed_ask_is_recorded_with_its_cost(file_url):
    cut, down = reply("Reasoning: cut", finish_reason="length"), AuthenticationError("no")
    with wired(file_url, FakeProvider({"small": [cut], "large": [down]})) as cascade, pytest.raises(ProviderError):
        cascade.ask("what?")
    rows = rows_in(file_url)
    assert {(row["question"], row["text"], row["candidate"]) for row in rows} == {("what?", "Reasoning: cut", None)}
    assert {row["signals"]["replay"]["stopped"] for row in rows} == {"provider error"}


def test_an_ask_that_ran_out_of_money_is_recorded(file_url):
    priced = {
        "base": {"model": "small", "price": {"input": 1, "output": 1}, "max_tokens": 10},
        "guide": {"model": "large", "price": {"input": 1_000, "output": 1_000}, "max_tokens": 10},
    }
    wanted = pytest.raises(BudgetExceededError)
    with wired(file_url, models=priced, budget={"per_question": 0.01}) as cascade, wanted as caught:
        cascade.ask("what?")
    assert len(caught.value.calls) == 1
    (row,) = rows_in(file_url)
    assert (row["model"], row["candidate"], row["signals"]["replay"]["stopped"]) == ("small", None, "budget")
    assert row["cost_nano_usd"] == caught.value.calls[0].cost_nano_usd


def test_an_ask_that_failed_before_anything_came_leaves_nothing(file_url, tmp_path):
    down = AuthenticationError("no")
    with wired(file_url, FakeProvider({"small": [down], "large": [down]})) as cascade, pytest.raises(ProviderError):
        cascade.ask("what?")
    assert list(tmp_path.iterdir()) == []


async def test_f47_a_cancelled_ask_is_recorded(file_url):
    reached = asyncio.Event()

    class Hangs(FakeProvider):
        async def complete(self, request: Request, timeout_s: float) -> Any:
            if request.role == "guide":
                reached.set()
                await asyncio.sleep(PATIENCE_S)
            return await super().complete(request, timeout_s)

    cascade = wired(file_url, Hangs({"small": ["Answer: Danube"]}))
    asking = asyncio.create_task(cascade.aask("what?"))
    await reached.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await cascade.aclose()
    row, cut = rows_in(file_url)
    assert (row["text"], row["signals"]["replay"]["stopped"]) == ("Answer: Danube", "cancelled")
    assert (cut["source"], cut["walk"], cut["cost_nano_usd"]) == ("guide", CUT, None)


def test_an_abandoned_stream_is_recorded_with_its_cost(file_url):
    with wired(file_url) as cascade:
        events: Any = cascade.stream("what?", raw=True)
        for event in events:
            if getattr(event, "role", "") == "guide":
                break
        events.close()
    assert [(row["source"], row["walk"]) for row in rows_in(file_url)] == [("base", None), ("guide", CUT)]
    assert {row["signals"]["replay"]["stopped"] for row in rows_in(file_url)} == {"cancelled"}
    with wired(file_url) as cascade:
        untouched: Any = cascade.stream("what?", raw=True)
        next(untouched)
        untouched.close()  # a call was under way, which may be billed
    assert [(row["source"], row["walk"]) for row in rows_in(file_url)[2:]] == [("base", CUT)]
    with pytest.raises(UsageError):  # it is money, and no part of an episode
        datasets_of(rows_in(file_url)[2:])


def test_a_stream_that_is_read_after_the_end_makes_no_further_call(file_url, caplog):
    provider = two_models()
    cascade = wired(file_url, provider)
    events = cascade.stream("what?", raw=True)
    for event in events:  # the base has answered, the guide is about to
        if isinstance(event, TextDelta) and event.role == "guide":
            break
    cascade.close()
    with pytest.raises(ClosedError):
        list(events)
    assert [request.role for request in provider.requests] == ["base", "guide"]
    assert "writer was closed before" in caplog.text


# --- where they go ---


def default_of(monkeypatch: pytest.MonkeyPatch, setting: str | None, traces: Any = True) -> str | None:
    monkeypatch.delenv("CASCADE_TRACES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CASCADE_TRACES", setting)
    with wired(traces) as cascade:
        return None if cascade.runtime.traces is None else cascade.runtime.traces.address.shown


def test_by_default_they_go_to_the_projects_folder_which_git_ignores(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CASCADE_TRACES")
    with Orchestrator("small", "large", provider="fake") as cascade:
        cascade.ask("what?")
    path = tmp_path / ".cascade" / "records.db"
    assert {row["question"] for row in rows_in(f"sqlite:///{path}")} == {"what?"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert (path.parent / ".gitignore").read_text() == "*\n"


def test_the_variable_comes_before_the_default_and_after_the_configuration(monkeypatch):
    assert default_of(monkeypatch, "off") is None
    assert default_of(monkeypatch, "OFF", {"content": "hash"}) is None
    assert default_of(monkeypatch, "sqlite:////tmp/told.db") == "sqlite:////tmp/told.db"
    assert default_of(monkeypatch, "off", "sqlite:////tmp/configured.db") == "sqlite:////tmp/configured.db"
    assert default_of(monkeypatch, "sqlite:////tmp/told.db", traces=False) is None
    assert (default_of(monkeypatch, None) or "").endswith(".cascade/records.db")


def test_a_url_may_stand_in_a_variable_of_ones_own(monkeypatch):
    monkeypatch.setenv("MY_STORE", "postgresql://me:hunter2@db.example/traces")
    with wired({"store_env": "MY_STORE"}) as cascade:
        assert cascade.runtime.traces.address.shown == "postgresql://me:***@db.example/traces"
        assert "hunter2" not in repr(cascade.runtime.traces) + repr(cascade.runtime.config) + repr(
            cascade.runtime.traces._queue._address
        )
    with pytest.raises(ConfigError, match=r"traces\.store_env: the environment variable NO_SUCH_STORE is not set"):
        wired({"store_env": "NO_SUCH_STORE"})
    monkeypatch.setenv("MY_STORE", "nonsense")
    with pytest.raises(ConfigError, match="MY_STORE: A store is sqlite"):
        wired({"store_env": "MY_STORE"})
    monkeypatch.setenv("CASCADE_TRACES", "../traces.db")
    with pytest.raises(ConfigError, match="CASCADE_TRACES: A store is sqlite"):
        wired(True)


def test_an_answer_whose_rows_do_not_fit_does_not_cost_the_others_of_its_group(file_url, caplog):
    with TraceWriter(file_url) as writer:
        for number in range(5):
            columns = {"no_such_column": "x"} if number == 2 else {"dataset": 7} if number == 3 else {}
            writer.submit(answer_of(question=Question(f"number {number}")), columns)
        assert writer.flush() is False
        assert writer.counts == TraceCounts(accepted=5, written=4, lost=1, waiting=0, failures=1)
    assert [row["question"] for row in rows_in(file_url)] == [f"number {n}" for n in (0, 1, 3, 4)]
    assert "there is no column 'no_such_column'" in caplog.text


def test_an_ask_does_not_fail_where_no_thread_can_be_started(file_url, monkeypatch, caplog):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    run(asyncio.sleep(0))  # the loop of calls has its thread
    with wired(file_url) as cascade:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert cascade.ask("first").text == "Danube"
        assert cascade.runtime.traces.counts[:3] == (1, 0, 1)
        cascade.ask("second")
        assert cascade.runtime.traces.flush()
    assert {row["question"] for row in rows_in(file_url)} == {"second"}
    assert "no thread could be started" in caplog.text


def test_an_answer_that_is_odd_costs_its_trace_and_nothing_else(file_url, monkeypatch):
    def broken(*_given: Any) -> str:
        raise TypeError("odd")

    with wired(file_url) as cascade:
        monkeypatch.setattr("cascade.records.writer.rows_of", broken)
        assert cascade.ask("what?").text == "Danube"
    assert cascade.runtime.traces.counts.lost == 1
