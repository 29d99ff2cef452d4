"""From the chunks of a stream to one payload: whole only if a finish reason came."""

from __future__ import annotations

from typing import Any

import pytest
from cases import each

from cascade.chat import ChatRequest
from cascade.errors import BadResponseError, RateLimitedError, StreamInterruptedError
from cascade.providers.assembling import Assembler
from cascade.providers.reading import MAX_TEXT_CHARS, read_completion
from unit.builders import payload, request


def chunk(text: Any = None, finish: Any = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **fields}]}


def assembled(*chunks: Any) -> tuple[list[str], Assembler]:
    assembler = Assembler(request())
    return [assembler.add(part) for part in chunks], assembler


def choice_of(content: str, finish: str = "stop", **fields: Any) -> list[dict[str, Any]]:
    more = {"logprobs": fields.pop("logprobs")} if "logprobs" in fields else {}
    message = {"role": "assistant", "content": content, **fields}
    return [{"index": 0, "message": message, "finish_reason": finish, **more}]


TOKENS = [{"token": "a"}, {"token": "b"}, {"token": "c"}]
REFUSED = {"choices": [{"index": 0, "delta": {"refusal": "I cannot"}}]}
BOTH = {"choices": [{"index": 1, "delta": {"content": "x"}}, {"index": 0, "delta": {"content": "a"}}]}


@each(
    "chunks, texts, wanted",
    [
        ([chunk("Dan"), chunk("ube"), chunk(finish="stop")], ["Dan", "ube", ""], {"choices": choice_of("Danube")}),
        # the last usage counts once; it may come after the end without a choice
        (
            [
                {**chunk("a"), "usage": {"prompt_tokens": 1}},
                {**chunk(finish="stop"), "usage": {"prompt_tokens": 2}},
                {},
            ],
            ["a", "", ""],
            {"usage": {"prompt_tokens": 2}},
        ),
        (
            [chunk("a", "stop"), {"choices": [], "usage": {"prompt_tokens": 3}}],
            ["a", ""],
            {"usage": {"prompt_tokens": 3}},
        ),
        ([chunk("a", "stop"), {"usage": None}], ["a", ""], {"usage": None}),
        # the first id and model count
        (
            [{"id": "", "model": None}, {"id": "1", "model": "m"}, {**chunk("a", "stop"), "id": "2", "model": "n"}],
            ["", "", "a"],
            {"id": "1", "model": "m"},
        ),
        (
            [chunk("a", logprobs={"content": TOKENS[:2]}), chunk("c", "stop", logprobs={"content": TOKENS[2:]})],
            ["a", "c"],
            {"choices": choice_of("ac", logprobs={"content": TOKENS})},
        ),
        ([chunk("a", "stop", logprobs={"content": None})], ["a"], {"choices": choice_of("a")}),
        ([BOTH, chunk(finish="stop")], ["a", ""], {"choices": choice_of("a")}),  # the wanted one behind another
        ([chunk("a\x00\udc00"), chunk(finish="stop")], ["a\ufffd\ufffd", ""], {}),
        # a character in two halves is whole
        ([chunk("a\ud83d"), chunk("\ude00b", "stop")], ["a", "\U0001f600b"], {"choices": choice_of("a\U0001f600b")}),
        ([chunk("a\ud83d"), chunk(finish="stop")], ["a", ""], {"choices": choice_of("a")}),
        # 0.5.0 dropped a refusal beside content and served what text there was
        (
            [chunk("Dan"), REFUSED, REFUSED, chunk(finish="stop")],
            ["Dan", "", "", ""],
            {"choices": choice_of("Dan", refusal="I cannotI cannot")},
        ),
        ([payload("Danube")], ["Danube"], {"choices": choice_of("Danube")}),  # 0.5.0: an empty answer
        # an end that is not known to be good stays
        ([chunk("Dan", finish="error"), chunk(finish="stop")], ["Dan", ""], {"choices": choice_of("Dan", "error")}),
    ],
)
def test_the_chunks_of_a_stream_are_one_payload(chunks, texts, wanted):
    came, assembler = assembled(*chunks)
    whole = assembler.payload()
    assert (came, assembler.text) == (texts, "".join(texts))
    assert {name: whole[name] for name in wanted} == wanted


@each(
    "chunks, partial",
    [
        ([], ""),
        ([chunk("Dan")], "Dan"),
        ([chunk("Dan"), chunk("x", "stop", index=1)], "Dan"),  # the end of another choice
        ([chunk("a", 7)], "a"),  # an end that is no word
    ],
)
def test_a_stream_without_a_finish_reason_was_cut(chunks, partial):
    with pytest.raises(StreamInterruptedError) as caught:
        assembled(*chunks)[1].payload()
    assert (caught.value.partial or "", caught.value.model) == (partial, "small")


@each(
    "odd",
    [
        {},
        *({"choices": odd} for odd in (None, {}, [], [None], ["x"], [{}])),
        *({"choices": [{"delta": odd, "logprobs": 7}]} for odd in (None, "x")),
        *(chunk(odd) for odd in (7, [{"type": "image_url"}])),
        *(chunk("other", finish, index=1) for finish in (None, "stop")),
    ],
)
def test_what_adds_nothing_changes_nothing(odd):
    texts, assembler = assembled(chunk("Danube"), odd, chunk(finish="stop"))
    assert texts[1] == ""
    assert assembler.payload()["choices"][0]["message"]["content"] == "Danube"


@pytest.mark.parametrize("odd", [None, [], "x"])
def test_a_chunk_that_is_no_object_is_refused(odd):
    with pytest.raises(BadResponseError):
        assembled(odd)


def test_an_error_inside_a_stream_repeats_no_secret():
    assembler = Assembler(request(), ("hunter2",))
    with pytest.raises(RateLimitedError) as caught:
        assembler.add({"error": {"code": 429, "message": "hunter2"}})
    assert "hunter2" not in str(caught.value) + repr(assembler)


def test_half_a_character_and_what_is_no_text_are_noted():
    _, halved = assembled(chunk("a\ud83d"), chunk(finish="stop"))
    halved.payload()
    texts, listed = assembled(chunk([{"type": "text", "text": "Dan"}, {"type": "image_url"}]), chunk("ube"))
    assert (texts, len(halved.notes), len(listed.notes), "1 of 2" in listed.notes[0]) == (["Dan", "ube"], 1, 1, True)
    late = {"choices": [{"index": 0, "delta": {"content": "b", "refusal": None}}]}
    assert [len(assembled(chunk("a", "stop"), more)[1].notes) for more in (late, chunk(None))] == [1, 0]


def test_an_endless_text_is_not_kept():
    texts, assembler = assembled(chunk("x" * MAX_TEXT_CHARS), chunk("y"), chunk("z"))
    assert [len(text) for text in texts] == [MAX_TEXT_CHARS, 1, 0]
    assert len(assembler.text) == MAX_TEXT_CHARS + 1


def piece(index: Any, arguments: str, name: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    call = ({} if index is None else {"index": index}) | fields | {"function": function}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


A, B = {"name": "add", "id": "a"}, {"name": "add", "id": "b"}
STREAMED = {
    "one index, two ids": (piece(0, '{"n": 1}', **A), piece(0, '{"n": 2}', **B)),
    "one index, two names": (piece(0, '{"n": 1}', "add"), piece(0, '{"n": 2}', "sub")),
    "one index, one name, two whole arguments": (piece(0, '{"n": 1}', "add"), piece(0, '{"n": 2}', "add")),
    "no index": (piece(None, '{"n": 1}', **A), piece(None, '{"n": 2}', **B)),
    "no index, in pieces": (
        *(piece(None, "", **A), piece(None, '{"n": 1}')),
        *(piece(None, '{"n"', **B), piece(None, ": 2}")),
    ),
    "an index that moves on": (*(piece(0, "", **A), piece(1, '{"n": 1}')), *(piece(1, '{"n"', **B), piece(2, ": 2}"))),
    "id and name with every piece": (
        *(piece(0, '{"n"', **A), piece(0, ": 1}", **A)),
        *(piece(1, '{"n"', **B), piece(1, ": 2}", **B)),
    ),
    "a name with every piece": (
        *(piece(0, '{"n"', "add"), piece(0, ": 1}", "add")),
        *(piece(1, '{"n": 2}', "add"), piece(1, "", "add")),
    ),
}


@each("name", STREAMED)
def test_parallel_calls_are_told_apart(name):
    chat = ChatRequest.from_openai({"messages": [{"role": "user", "content": "Add."}]})
    assembler = Assembler(request(chat=chat))
    for sent in (*STREAMED[name], chunk(finish="tool_calls")):
        assembler.add(sent)
    calls = assembler.payload()["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"n": 1}', '{"n": 2}']


def test_a_block_of_thinking_ends_with_its_signature_and_has_no_part_of_another_kind():
    blocks = [
        {"type": "redacted_thinking", "data": "x"},
        *({"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b", "signature": "s"}),
        {"type": "thinking", "thinking": "c", "signature": "t"},
    ]
    assembler = Assembler(request(chat=ChatRequest([{"role": "user", "content": "Add."}])))
    for block in blocks:
        assembler.add({"choices": [{"index": 0, "delta": {"thinking_blocks": [block]}}]})
    assembler.add(chunk("3", "stop"))
    whole = [blocks[0], {**blocks[2], "thinking": "ab"}, blocks[3]]
    assert assembler.payload()["choices"][0]["message"]["thinking_blocks"] == whole


def test_two_halves_of_a_character_in_arguments_are_one():
    chat = ChatRequest.from_openai({"messages": [{"role": "user", "content": "Add."}]})
    assembler = Assembler(request(chat=chat))
    for sent in (piece(0, '{"n": "\ud83d', "add", id="a"), piece(0, '\ude00"}'), chunk(finish="tool_calls")):
        assembler.add(sent)
    completion = read_completion(assembler.payload(), request(chat=chat), 0.1)
    assert completion.message["tool_calls"][0]["function"]["arguments"] == '{"n": "\U0001f600"}'


@pytest.mark.parametrize("odd", [[], [7], {}, {"a": 1}])
def test_a_list_or_object_in_the_place_of_a_text_or_a_number_breaks_no_stream(odd):
    named = {"index": 0, "function": {"name": odd, "arguments": "{"}}
    calls = [named, {"index": 0, "id": "c", "function": {"name": "add"}}, named, {**named, "id": odd}, {"index": odd}]
    pieces = [
        {"choices": [{"index": odd}]},
        *[{"choices": [{"index": 0, "delta": {"tool_calls": [at]}}]} for at in calls],
    ]
    texts, assembler = assembled(*pieces, {**chunk("x"), "choices": [{"index": odd, "delta": {}}]}, chunk("Vi", "stop"))
    assert (texts[-1], assembler.payload()["choices"][0]["message"]["content"]) == ("Vi", "Vi")
