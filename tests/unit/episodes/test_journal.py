"""What was paid for is on the disk before it is used, and is found again by what was asked."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import at_once

from cascade.budget.charges import paid_call
from cascade.engine import RunPlan, RunTerms, run
from cascade.episodes import journal as module
from cascade.episodes.journal import Journal, is_call
from cascade.errors import UsageError
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, call_row, completion_of, request_digest, rows
from cascade.plans.base import ModelUse
from cascade.providers.fields import wire_body
from cascade.types import Completion, Message, Request, Token, Usage
from unit.builders import CHEAP, PRICES, RIVER, base_guide, completion, drive, exits, request, yes_no
from unit.scripted import FixedPolicy


def row(number: int = 0, text: str = "Answer: Danube", **fields: Any) -> dict[str, Any]:
    """Return the row of a call; each number is another call."""
    call = request(messages=(Message("user", f"question {number}"),))
    return call_row(paid_call(call, completion(text), CHEAP), completion(text)) | fields


def digest(number: int = 0) -> str:
    return request_digest(request(messages=(Message("user", f"question {number}"),)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl.journal"


def written(path: Path, *call_rows: dict[str, Any]) -> None:
    with Journal(path) as journal:
        journal.add(call_rows)


# --- one call as a row, and back ---

FULL = Completion(
    "Reasoning: naïve 🙂 \u2028\nAnswer: Danube",
    "stop",
    Usage(100, 10, 4, 1),
    (Token("Dan", -0.5, (("Dan", -0.5), ("Rhi", -math.inf))), Token("ube", None), Token("", -math.inf)),
    latency_s=0.125,
)


@pytest.mark.parametrize(
    "reply",
    [
        FULL,
        FULL._replace(tokens=None),
        FULL._replace(tokens=()),
        FULL._replace(finish_reason="length", latency_s=0.0),
        FULL._replace(usage=Usage(None, None, estimated=True)),
        FULL._replace(maybe_billed=2),
        yes_no(0.25, "No, Inn"),
        yes_no(1.0),
    ],
)
def test_a_completion_comes_back_from_its_row_to_the_letter(reply):
    there = json.loads(json.dumps(call_row(paid_call(request(), reply, CHEAP), reply), allow_nan=False))
    assert completion_of(there) == reply


def test_what_a_log_does_not_keep_is_not_made_up():
    reply = FULL._replace(model="small-2026", request_id="id", notes=("odd",))
    assert completion_of(call_row(paid_call(request(), reply, CHEAP), reply)) == FULL._replace(model="small-2026")


def test_a_call_by_itself_has_every_column_and_no_candidate_truth_or_signals():
    call = call_row(paid_call(request(step=3, sample=1), FULL, CHEAP), FULL)
    assert tuple(call) == COLUMNS
    unknown = ("walk", "candidate", "answer", "correct", "confidence", "kept", "gold", "horizon", "dataset")
    assert [call[name] for name in unknown] == [None] * len(unknown)
    assert set(call["signals"]) == {"replay"}
    assert (call["step"], call["source"], call["model"], call["schema_version"]) == (3, "base", "small", SCHEMA_VERSION)
    assert (call["question"], call["context"]) == (RIVER.text, None)
    assert call["cost_nano_usd"] == 100 * 100 + 10 * 400


def test_where_a_cost_is_not_known_its_bound_is_kept():
    def replay(reply: Completion, price: Any = CHEAP) -> dict[str, Any]:
        signals: dict[str, Any] = call_row(paid_call(request(), reply, price), reply)["signals"]["replay"]
        return signals

    estimated = completion(usage=Usage(100, 10, estimated=True))
    assert replay(estimated)["cost_bound_nano_usd"] == 100 * 100 + 10 * 400
    assert replay(completion(maybe_billed=1))["cost_bound_nano_usd"] > 100 * 100 + 10 * 400
    assert "cost_bound_nano_usd" not in replay(completion())
    assert "cost_bound_nano_usd" not in replay(estimated, None)


SENT: list[dict[str, Any]] = [
    {"model": "large"},
    *({"messages": (message,)} for message in (Message("user", "Another?"), Message("system", RIVER.text))),
    *({"max_tokens": 65}, {"temperature": 0.5}, {"top_logprobs": 1}, {"seed": 1}, {"sample": 1}),
]
NOT_SENT: list[dict[str, Any]] = [{"role": "guide"}, {"purpose": "direct"}, {"step": 2}, {"at_most_once": True}]
DRAWN = {"temperature": 0.5}


@each(
    "fields, other, same",
    [
        *((changed, {}, False) for changed in SENT),
        *((changed, {}, True) for changed in NOT_SENT),
        # where an answer is drawn, another step draws anew
        (DRAWN, DRAWN | {"role": "guide"}, True),
        (DRAWN, DRAWN | {"step": 2}, False),
        (DRAWN | {"seed": 1}, DRAWN | {"seed": 1, "step": 2}, True),
    ],
)
def test_calls_are_told_apart_by_all_that_is_sent_and_nothing_else(fields, other, same):
    assert (request_digest(request(**fields)) == request_digest(request(**other))) is same


_STEADY = settings(deadline=None, derandomize=True, database=None, max_examples=25)


TEXT = st.text(max_size=12)
REQUESTS = st.builds(
    lambda messages, tokens, heat, top, seed, sample: request(
        messages=tuple(messages), max_tokens=tokens, temperature=heat, top_logprobs=top, seed=seed, sample=sample
    ),
    st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), TEXT), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5]),
    st.none() | st.integers(0, 2),
    st.none() | st.integers(0, 2),
    st.integers(0, 2),
)


@_STEADY
@given(REQUESTS, REQUESTS)
def test_two_calls_have_one_digest_only_if_the_same_is_sent(first, other):
    def sent(call: Request) -> Any:
        return wire_body(call, call.model), call.sample

    assert (request_digest(first) == request_digest(other)) == (sent(first) == sent(other))


def test_a_call_that_decides_has_no_candidate_so_that_no_answer_counts_twice():
    texts = {"base": "Answer: Rhine", "judge": "No, Danube", "decide": "2", "answer": "Answer: Danube", "exit": "EXIT"}

    def call(request: Request) -> Completion:
        deciding = request.purpose in {"decide", "exit"}
        return completion(texts[request.purpose if deciding or request.role != "base" else "base"])

    small, large = ModelUse("small"), ModelUse("large")
    both = {"base": base_guide(small, large, 1, samples=1, decider="base")}
    both |= {"guide": base_guide(small, large, 1, samples=1, decider="guide")}
    for strategy in (*both.values(), exits(small, "base", 1), exits(large, "guide", 1)):
        answer = drive(run(RIVER, RunPlan(strategy), RunTerms(PRICES)), call)
        candidates = {row["signals"]["replay"]["purpose"]: row["candidate"] for row in rows(answer)}
        wanted = {"answer": 0, "exit": None} if len(strategy.models) == 1 else {"answer": 0, "judge": 1, "decide": None}
        assert candidates == wanted


# --- writing and finding ---


def test_a_call_is_found_by_its_digest_and_no_other_is_also_when_it_is_opened_again(path):
    texts = {1: "Answer: Inn", 2: "Answer: 🙂 \u2028 naïve", 4: "Answer: \ud83d"}  # half of a pair of surrogates
    written(path, *(row(number, text) for number, text in texts.items()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for _ in range(2):
        with Journal(path) as journal:
            for number, text in texts.items():
                reply, there = journal.completion(digest(number)), journal.row(digest(number))
                assert reply.text == there["text"] == text.replace("\ud83d", "?")
            assert (journal.completion(digest(3)), journal.row(digest(3)), digest(3) in journal) == (None, None, False)
            assert list(journal) == [digest(number) for number in texts]
            texts[len(texts) + 2] = "Answer: Oder"
            journal.add([row(len(texts) + 1, "Answer: Oder")])


def test_of_two_rows_of_one_call_the_first_counts(path):
    written(path, row(1, "Answer: Inn"))
    with Journal(path) as journal:
        journal.add([row(1, "Answer: Oder"), row(2), row(2, "Answer: Oder")])
        assert (journal.completion(digest(1)) or completion()).text == "Answer: Inn"
        assert (len([*journal]), journal.spent_nano_usd) == (2, 2 * row(1)["cost_nano_usd"])


def test_rows_are_on_the_disk_when_add_returns(path, monkeypatch):
    monkeypatch.setattr(module, "SYNCHRONOUS", "FULL")
    with Journal(path) as journal:
        settings = [journal._value(f"PRAGMA {name}") for name in ("synchronous", "journal_mode")]
        assert settings == [2, "wal"]  # "2" is FULL (sqlite.org/pragma.html)
        journal.add([row(1)])
        assert not journal._calls.in_transaction


KNOWN = 100 * 100 + 10 * 400


@pytest.mark.parametrize(
    ("calls", "spent", "known"),
    [
        ([(False, CHEAP)], KNOWN, True),
        ([(False, CHEAP), (False, CHEAP), (True, CHEAP)], 3 * KNOWN, False),  # at its bound: a cap holds over it too
        ([(False, None)], 0, False),
    ],
)
def test_what_the_calls_cost_is_known_again(path, calls, spent, known):
    rows_of = []
    for number, (estimated, price) in enumerate(calls):
        reply = completion(usage=Usage(100, 10, estimated=estimated))
        rows_of.append(call_row(paid_call(request(messages=(Message("user", str(number)),)), reply, price), reply))
    written(path, *rows_of)
    with Journal(path) as journal:
        assert (journal.spent_nano_usd, journal.cost_known) == (spent, known)


def test_many_threads_write_and_read_at_once(path):
    wrong: list[str] = []

    def work(first: int) -> None:
        for number in range(first, first + 40):
            journal.add([row(number, f"Answer: {number} " + "x" * (number % 7) * 3_000)])
            reply = journal.completion(digest(number))
            if reply is None or not reply.text.startswith(f"Answer: {number} "):
                wrong.append(f"{number}: {reply}")

    with Journal(path) as journal:
        at_once(*(partial(work, first) for first in range(0, 160, 40)))
        assert (wrong, len([*journal])) == ([], 160)
    with Journal(path) as journal:
        assert len([*journal]) == 160


def test_removing_it_leaves_no_file(path):
    with Journal(path) as journal:
        journal.add([row(1)])
        journal.remove()
        assert list(path.parent.iterdir()) == []
    journal.close()


# --- what a crash or another program left there ---


def test_a_journal_cut_off_at_any_length_is_refused_or_has_whole_calls(path):
    with Journal(path) as journal:
        for number in (1, 2):
            journal.add([row(number)])
        files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    log = files[f"{path.name}-wal"]
    for length in range(0, len(log), 997):
        path.write_bytes(files[path.name])
        path.with_name(f"{path.name}-wal").write_bytes(log[:length])
        with Journal(path) as journal:
            assert [digest(number) for number in range(1, 1 + len([*journal]))] == list(journal)
            journal.add([row(2)])
            assert (journal.completion(digest(2)) or completion("")).text == "Answer: Danube"


def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(path):
    path.write_bytes(b"a diary\n" * 200)
    with pytest.raises(UsageError, match="cannot be written"):
        Journal(path)
    assert path.read_bytes() == b"a diary\n" * 200


def test_a_row_is_a_call_if_its_request_can_be_answered_from_it():
    assert is_call(row())
    assert not is_call({**row(), "text": None})
    old = {name: value for name, value in row()["signals"]["replay"].items() if name != "request"}
    assert not is_call({**row(), "signals": {"replay": old}})
    assert not is_call({**row(), "signals": None})


# --- two processes ---


def test_a_second_writer_is_refused_and_the_first_goes_on(path):
    with Journal(path) as journal:
        with pytest.raises(UsageError, match="Another process is writing") as caught:
            Journal(path)
        assert str(path) in str(caught.value)
        journal.add([row(1)])
    with Journal(path) as journal:
        assert len([*journal]) == 1


_HOLDS = """
import sys
from pathlib import Path
from cascade.episodes.journal import Journal
with Journal(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_the_first_has_died(path):
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(path)], **pipes) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(UsageError, match="Another process is writing"):
            Journal(path)
        other.kill()
    Journal(path).close()


# --- a disk that does not take it ---


def test_a_folder_that_cannot_be_written_to_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        Journal(tmp_path / "nowhere" / "j")
    with pytest.raises(UsageError, match="cannot be written"):
        Journal(tmp_path)


def test_a_full_disk_is_a_usage_error_and_leaves_no_half_row(path):
    with Journal(path) as journal:
        journal.add([row(1)])
        journal._calls.execute("PRAGMA max_page_count = 5")
        with pytest.raises(UsageError, match="cannot be written: database or disk is full"):
            journal.add([row(2), row(3, "x" * 100_000)])
        assert (len([*journal]), digest(2) in journal, journal.completion(digest(2))) == (1, False, None)
        journal._calls.execute("PRAGMA max_page_count = 1000")
        journal.add([row(2)])
        assert (journal.completion(digest(2)) or completion("")).text == "Answer: Danube"


def test_a_row_that_is_no_json_is_not_written_nor_are_those_beside_it(path):
    with Journal(path) as journal:
        with pytest.raises(ValueError, match="JSON"):
            journal.add([row(1), row(2, latency_ms=math.nan)])
        assert len([*journal]) == 0
        journal.add([row(3)])
        assert len([*journal]) == 1


def test_a_walk_can_be_made_from_the_record_alone(path):
    texts = {"base": "Answer: Rhine", "guide": "No, Danube"}
    strategy = base_guide(ModelUse("small"), ModelUse("large"), 2, samples=2)
    plan, terms = RunPlan(strategy, FixedPolicy("both", 2)), RunTerms(PRICES)
    with Journal(path) as journal:

        def pays(request: Request) -> Completion:
            reply = completion(texts[request.role])
            journal.add([call_row(paid_call(request, reply, PRICES[request.model]), reply)])
            return reply

        paid = drive(run(RIVER, plan, terms), pays)

        def recalls(request: Request) -> Completion:
            reply = journal.completion(request_digest(request))
            assert reply is not None
            return reply

        again = drive(run(RIVER, plan, terms), recalls)
    assert [step.calls for step in again.steps] == [step.calls for step in paid.steps]
    assert again.cost_nano_usd == paid.cost_nano_usd
