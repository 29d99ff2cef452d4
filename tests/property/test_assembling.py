"""A stream cut into any chunks is the same payload as the whole."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from unit.made import request

from cascade.providers.assembling import Assembler
from cascade.providers.reading import as_storable, read_completion

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
def test_chunks_and_the_whole_are_the_same_completion(both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, chunks = both
    made = Assembler(request())
    texts = [made.add(chunk) for chunk in chunks]
    asked = request(top_logprobs=1)
    assert read_completion(made.payload(), asked, 0.0) == read_completion(whole, asked, 0.0)._replace(notes=())
    assert "".join(texts) == as_storable(whole["choices"][0]["message"]["content"])
