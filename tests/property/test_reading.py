"""Whatever JSON a server sends, it is a checked completion or an error of ours."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from unit.builders import payload, request

from cascade.errors import ProviderError
from cascade.providers.assembling import Assembler
from cascade.providers.reading import as_storable, read_completion

SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEY = st.sampled_from(
    [
        "choices",
        "usage",
        "message",
        "content",
        "index",
        "delta",
        "error",
        "code",
        "type",
        "model",
        "id",
        "logprobs",
        "token",
        "logprob",
        "top_logprobs",
        "prompt_tokens",
        "completion_tokens",
        "finish_reason",
        "refusal",
    ]
)
JSON = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=5), max_leaves=15
)


def merged(base: Any, odd: Any, places: list[str]) -> Any:
    """Return a good payload with something odd at one place."""
    copy = json.loads(json.dumps(base))
    inner = copy
    for place in places[:-1]:
        inner = inner[0] if isinstance(inner, list) else inner[place]
    (inner[0] if isinstance(inner, list) else inner)[places[-1]] = odd
    return copy


PLACES = st.sampled_from(
    [
        ["choices"],
        ["usage"],
        ["model"],
        ["id"],
        ["error"],
        ["choices", "message"],
        ["choices", "index"],
        ["choices", "finish_reason"],
        ["choices", "logprobs"],
        ["usage", "prompt_tokens"],
        ["usage", "prompt_tokens_details"],
    ]
)


def check(given_payload: Any) -> None:
    try:
        completion = read_completion(given_payload, request(top_logprobs=20), 0.1)
    except ProviderError:
        return
    assert completion.text.strip() or completion.truncated
    completion.text.encode()
    usage = completion.usage
    assert usage.input_tokens is not None
    assert usage.input_tokens > 0
    assert usage.output_tokens is not None
    assert 0 <= (usage.cached_input_tokens or 0) <= usage.input_tokens
    assert 0 <= (usage.reasoning_tokens or 0) <= usage.output_tokens
    for token in completion.tokens or ():
        token.text.encode()
        for value in (token.logprob, *(value for _, value in token.top)):
            assert value is None or (value <= 0.0 and not math.isnan(value))


@given(JSON)
def test_any_json_is_a_completion_or_an_error_of_ours(odd):
    check(odd)


@given(JSON, PLACES)
def test_a_good_payload_with_one_odd_place_is_too(odd, places):
    inner = merged(payload(model="small", id="1"), odd, places)
    check(inner)


@given(st.lists(JSON, max_size=5))
def test_any_chunks_are_a_completion_or_an_error_of_ours(chunks):
    assembler = Assembler(request())
    try:
        for chunk in chunks:
            assembler.add(chunk)
        check(assembler.payload())
    except ProviderError:
        return


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw a payload and a stream of chunks that says the same."""
    text, finish = draw(TEXT), draw(st.sampled_from(["stop", "length"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    logprobs = [{"token": piece, "logprob": -0.5} for piece in pieces]
    usage = {"prompt_tokens": draw(st.integers(1, 99)), "completion_tokens": draw(st.integers(1, 99))}
    choice = {"index": 0, "message": {"content": text}, "finish_reason": finish, "logprobs": {"content": logprobs}}
    whole = {"id": "req-1", "model": "small", "choices": [choice], "usage": usage}
    chunks: list[dict[str, Any]] = [
        {
            "id": "req-1",
            "model": "small",
            "choices": [{"index": 0, "delta": {"content": piece}, "logprobs": {"content": [entry]}}],
        }
        for piece, entry in zip(pieces, logprobs, strict=True)
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    with_usage = draw(st.sampled_from(["own chunk", "last chunk", "first and last"]))
    if with_usage == "own chunk":
        chunks.append({"choices": [], "usage": usage})
    else:
        chunks[-1]["usage"] = usage
    if with_usage == "first and last":
        chunks[0]["usage"] = {"prompt_tokens": 1, "completion_tokens": 0}
    for place in draw(st.lists(st.integers(0, len(chunks)), max_size=3)):
        chunks.insert(
            place, draw(st.sampled_from([{"choices": []}, {"choices": [{"index": 1, "delta": {"content": "x"}}]}, {}]))
        )
    return whole, chunks


@given(streams())
def test_chunks_and_the_whole_are_the_same_completion(both):
    whole, chunks = both
    assembler = Assembler(request())
    texts = [assembler.add(chunk) for chunk in chunks]
    sent = request(top_logprobs=1)
    assert read_completion(assembler.payload(), sent, 0.0) == read_completion(whole, sent, 0.0)._replace(notes=())
    assert "".join(texts) == as_storable(whole["choices"][0]["message"]["content"])
