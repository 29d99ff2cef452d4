"""From the chunks of a stream to one payload: whole only if a finish reason came."""

from __future__ import annotations

from typing import Any

import pytest
from cases import each

from cascade.chat import ChatRequest
from cascade.errors import BadResponseError, RateLimitedError, StreamInterruptedError
from cascade.providers.assembling import Assembler
from cascade.providers.reading import MAX_TEXT_CHARS, read_completion
from unit.made import payload, request


def chunk(text: Any = None, finish: Any = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **fields}]}


def assembled(*chunks: Any) -> tuple[list[str], Assembler]:
    made = Assembler(request())
    return [made.add(one) for one in chunks], made


def test_texts_are_joined_and_given_as_they_come() -> None:
    texts, made = assembled(chunk("Dan"), chunk("ube"), chunk(finish="stop"))
    assert texts == ["Dan", "ube", ""]
    assert made.text == "Danube"
    assert made.payload()["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "Danube"}, "finish_reason": "stop"}
    ]


def test_a_stream_without_a_finish_reason_was_cut() -> None:
    _, made = assembled(chunk("Dan"))
    with pytest.raises(StreamInterruptedError, match="no finish reason") as caught:
        made.payload()
    assert (caught.value.partial, caught.value.model) == ("Dan", "small")


def test_nothing_at_all_was_cut_too() -> None:
    with pytest.raises(StreamInterruptedError):
        Assembler(request()).payload()


def test_the_last_usage_counts_once() -> None:
    first, last = {"prompt_tokens": 1}, {"prompt_tokens": 2}
    _, made = assembled({**chunk("a"), "usage": first}, {**chunk(finish="stop"), "usage": last}, {"usage": None})
    assert made.payload()["usage"] == last


def test_usage_may_come_after_the_end_without_a_choice() -> None:
    _, made = assembled(chunk("a", "stop"), {"choices": [], "usage": {"prompt_tokens": 3}})
    assert made.payload()["usage"] == {"prompt_tokens": 3}


def test_without_usage_it_is_none() -> None:
    assert assembled(chunk("a", "stop"))[1].payload()["usage"] is None


def test_the_first_id_and_model_count() -> None:
    _, made = assembled(
        {"id": "", "model": None}, {"id": "1", "model": "m"}, {**chunk("a", "stop"), "id": "2", "model": "n"}
    )
    assert {name: made.payload()[name] for name in ("id", "model")} == {"id": "1", "model": "m"}


def test_logprobs_are_collected_in_order() -> None:
    entries = [{"token": "a"}, {"token": "b"}, {"token": "c"}]
    _, made = assembled(
        chunk("a", logprobs={"content": entries[:2]}), chunk("c", "stop", logprobs={"content": entries[2:]})
    )
    assert made.payload()["choices"][0]["logprobs"] == {"content": entries}


def test_without_logprobs_there_are_none() -> None:
    assert "logprobs" not in assembled(chunk("a", "stop", logprobs={"content": None}))[1].payload()["choices"][0]


@each(
    "odd",
    [
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": []},
        {"choices": [None]},
        {"choices": ["x"]},
        {"choices": [{}]},
        {"choices": [{"delta": None, "logprobs": 7}]},
        {"choices": [{"delta": "x"}]},
        chunk(7),
        chunk([{"type": "image_url"}]),
        chunk("other", index=1),
        chunk("other", "stop", index=1),
    ],
)
def test_what_adds_nothing_changes_nothing(odd: dict[str, Any]) -> None:
    texts, made = assembled(chunk("Danube"), odd, chunk(finish="stop"))
    assert texts[1] == ""
    assert made.payload()["choices"][0]["message"]["content"] == "Danube"


def test_a_choice_of_another_index_does_not_end_the_stream() -> None:
    _, made = assembled(chunk("Dan"), chunk("x", "stop", index=1))
    with pytest.raises(StreamInterruptedError):
        made.payload()


def test_the_wanted_choice_is_found_behind_another() -> None:
    both = {"choices": [{"index": 1, "delta": {"content": "x"}}, {"index": 0, "delta": {"content": "a"}}]}
    assert assembled(both)[0] == ["a"]


def test_a_finish_reason_that_is_no_word_ends_nothing() -> None:
    with pytest.raises(StreamInterruptedError):
        assembled(chunk("a", 7))[1].payload()


def test_an_error_inside_a_stream_is_raised() -> None:
    with pytest.raises(RateLimitedError):
        assembled(chunk("a"), {"error": {"code": 429}})


@pytest.mark.parametrize("odd", [None, [], "x"])
def test_a_chunk_that_is_no_object_is_refused(odd: Any) -> None:
    with pytest.raises(BadResponseError):
        assembled(odd)


def test_an_error_inside_a_stream_repeats_no_secret() -> None:
    made = Assembler(request(), ("hunter2",))
    with pytest.raises(RateLimitedError) as caught:
        made.add({"error": {"code": 429, "message": "hunter2"}})
    assert "hunter2" not in str(caught.value) + repr(made)


def test_text_is_fit_to_be_stored() -> None:
    assert assembled(chunk("a\x00\udc00"))[0] == ["a\ufffd\ufffd"]


def test_a_character_in_two_halves_is_whole() -> None:
    assert "".join(assembled(chunk("a\ud83d"), chunk("\ude00b"))[0]) == "a\U0001f600b"
    texts, made = assembled(chunk("a\ud83d"), chunk(finish="stop"))
    assert ("".join(texts), made.payload()["choices"][0]["message"]["content"]) == ("a", "a")
    assert made.notes != []


def test_an_endless_text_is_not_kept() -> None:
    texts, made = assembled(chunk("x" * MAX_TEXT_CHARS), chunk("y"), chunk("z"))
    assert [len(text) for text in texts] == [MAX_TEXT_CHARS, 1, 0]
    assert len(made.text) == MAX_TEXT_CHARS + 1


def test_a_streamed_refusal_beside_content_is_a_refusal() -> None:
    """0.5.0 dropped it and served what text there was."""
    refused = {"choices": [{"index": 0, "delta": {"refusal": "I cannot"}}]}
    _, made = assembled(chunk("Dan"), refused, refused, chunk(finish="stop"))
    assert made.payload()["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Dan",
        "refusal": "I cannotI cannot",
    }


def test_a_whole_reply_in_place_of_a_stream_is_read() -> None:
    """0.5.0 took it for an empty answer."""
    texts, made = assembled(payload("Danube"))
    assert texts == ["Danube"]
    assert made.payload()["choices"][0]["finish_reason"] == "stop"


def test_content_in_parts_is_joined_and_what_is_no_text_is_noted() -> None:
    texts, made = assembled(chunk([{"type": "text", "text": "Dan"}, {"type": "image_url"}]), chunk("ube"))
    assert texts == ["Dan", "ube"]
    assert made.notes == ["1 of 2 parts of the content are not text and were left out"]


def piece(index: Any, arguments: str, name: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    call = ({} if index is None else {"index": index}) | fields | {"function": function}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


STREAMED = {
    "one index, two ids": (piece(0, '{"n": 1}', "add", id="a"), piece(0, '{"n": 2}', "add", id="b")),
    "one index, two names": (piece(0, '{"n": 1}', "add"), piece(0, '{"n": 2}', "sub")),
    "one index, one name, two whole arguments": (piece(0, '{"n": 1}', "add"), piece(0, '{"n": 2}', "add")),
    "no index": (piece(None, '{"n": 1}', "add", id="a"), piece(None, '{"n": 2}', "add", id="b")),
    "no index, in pieces": (
        piece(None, "", "add", id="a"),
        piece(None, '{"n": 1}'),
        piece(None, '{"n"', "add", id="b"),
        piece(None, ": 2}"),
    ),
    "an index that moves on": (
        piece(0, "", "add", id="a"),
        piece(1, '{"n": 1}'),
        piece(1, '{"n"', "add", id="b"),
        piece(2, ": 2}"),
    ),
    "id and name with every piece": (
        piece(0, '{"n"', "add", id="a"),
        piece(0, ": 1}", "add", id="a"),
        piece(1, '{"n"', "add", id="b"),
        piece(1, ": 2}", "add", id="b"),
    ),
    "a name with every piece": (
        piece(0, '{"n"', "add"),
        piece(0, ": 1}", "add"),
        piece(1, '{"n": 2}', "add"),
        piece(1, "", "add"),
    ),
}


@each("name", STREAMED)
def test_parallel_calls_are_told_apart(name: str) -> None:
    chat = ChatRequest.from_openai({"messages": [{"role": "user", "content": "Add."}]})
    made = Assembler(request(chat=chat))
    for sent in (*STREAMED[name], chunk(finish="tool_calls")):
        made.add(sent)
    calls = made.payload()["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"n": 1}', '{"n": 2}']


def test_two_halves_of_a_character_in_arguments_are_one() -> None:
    chat = ChatRequest.from_openai({"messages": [{"role": "user", "content": "Add."}]})
    made = Assembler(request(chat=chat))
    for sent in (piece(0, '{"n": "\ud83d', "add", id="a"), piece(0, '\ude00"}'), chunk(finish="tool_calls")):
        made.add(sent)
    completion = read_completion(made.payload(), request(chat=chat), 0.1)
    assert completion.message is not None
    assert completion.message["tool_calls"][0]["function"]["arguments"] == '{"n": "\U0001f600"}'


def test_an_end_that_is_not_known_to_be_good_stays() -> None:
    _, made = assembled(chunk("Dan", finish="error"), chunk(finish="stop"))
    assert made.payload()["choices"][0]["finish_reason"] == "error"
