"""Bodies that are packed, too long or oddly named: bounded in time and memory, whichever way the question is asked."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from patience import PATIENCE_S

from cascade import Answer, Orchestrator
from cascade.errors import BadResponseError, CascadeError, RefusedError

from .bench import Bench
from .bodies import QUESTION, encode, good
from .server import RAW

WAYS = ["ask", "aask", "stream", "astream"]


def sends(body: bytes | Callable[[Any], bytes], encoding: str = "", kind: str = "application/json") -> Any:
    """Return a mode that sends a body under some headers."""

    def mode(handler: Any, asked: Any) -> None:
        headers = {"Content_Encoding": encoding} if encoding else {}
        handler._send(200, body if isinstance(body, bytes) else body(asked), kind, **headers)

    return mode


def asked(orchestrator: Orchestrator, way: str) -> Any:
    """Ask one of four ways, and return what came, an answer or an error."""

    async def run() -> Any:
        if way == "aask":
            return await orchestrator.aask(QUESTION)
        return [event async for event in orchestrator.astream(QUESTION)][-1]

    try:
        if way == "ask":
            return orchestrator.ask(QUESTION)
        return list(orchestrator.stream(QUESTION))[-1] if way == "stream" else asyncio.run(run())
    except CascadeError as error:
        return error


@cache
def bomb(layers: int) -> bytes:
    """Return 64 MB of blanks, packed so many times; a tenth of a percent of that, or less, on the wire."""
    packed = b" " * 64_000_000
    for _ in range(layers):
        packed = gzip.compress(packed, 6)
    return packed


@pytest.fixture
def odd(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Orchestrator]:
    """Return what makes an orchestrator whose one model answers in a mode of the test's own."""

    def made(mode: Any) -> Orchestrator:
        monkeypatch.setitem(RAW, "odd", mode)
        return bench.alone("odd", timeouts={"per_question_s": PATIENCE_S})

    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("body", "encoding", "says"),
    [
        (lambda: bomb(1), "gzip", "content encoding"),
        (lambda: bomb(2), "gzip, gzip", "content encoding"),
        (lambda: b'{"choices": [' + b"[]," * 5_000_000 + b"1]}", "", "longer than"),
    ],
    ids=["bomb", "nested bomb", "16 MB of lists"],
)
def test_f29_a_bomb_is_refused_and_takes_no_memory(
    odd: Callable[..., Orchestrator], way: str, body: Callable[[], bytes], encoding: str, says: str
) -> None:
    """0.5.0: a nested bomb of 3.5 KB took 4.1 GB and half a minute; a 16 MB reply was parsed on the event loop."""
    with odd(sends(body(), encoding)) as orchestrator:
        tracemalloc.start()
        try:
            came = asked(orchestrator, way)
            most_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert isinstance(came, BadResponseError), came
    assert says in str(came)
    assert most_bytes < 40_000_000


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["Application/JSON", "APPLICATION/JSON; charset=UTF-8", "application/problem+json"])
def test_f12_a_content_type_has_no_case(odd: Callable[..., Orchestrator], way: str, kind: str) -> None:
    """0.5.0 refused `Application/JSON`."""
    with odd(sends(lambda body: encode(good(body)), kind=kind)) as orchestrator:
        came = asked(orchestrator, way)
    assert isinstance(came, Answer)
    assert came.text == "Danube"


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_server_that_ignores_stream_is_read_whole(odd: Callable[..., Orchestrator], way: str) -> None:
    """0.5.0 said "empty answer", or, where the JSON had several lines, that it was no completion."""
    import json

    with odd(sends(lambda body: json.dumps(good(body), indent=2).encode())) as orchestrator:
        came = asked(orchestrator, way)
    assert isinstance(came, Answer)
    assert came.text == "Danube"
    assert came.cost is not None


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_f16_a_refusal_beside_streamed_text_is_a_refusal(odd: Callable[..., Orchestrator], way: str) -> None:
    """0.5.0 served the text and dropped the refusal."""
    pieces = [{"content": "Answer: Danube"}, {"refusal": "I cannot help with that."}]
    choices = [{"index": 0, "delta": piece, "finish_reason": None} for piece in pieces]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    lines = b"".join(b"data: " + encode({"choices": [one]}) + b"\n\n" for one in choices)
    with odd(sends(lines + b"data: [DONE]\n\n", kind="text/event-stream")) as orchestrator:
        came = asked(orchestrator, way)
    assert isinstance(came, RefusedError)


@pytest.mark.parametrize("way", WAYS)
def test_f21_a_usage_beyond_belief_gives_no_cost(odd: Callable[..., Orchestrator], way: str) -> None:
    """0.5.0: 10⁹ tokens at `max_tokens: 64` were an exact cost of $5,000."""
    huge = {"prompt_tokens": 10**9, "completion_tokens": 10**9, "total_tokens": 2 * 10**9}
    with odd(sends(lambda body: encode(good(body, usage=huge)))) as orchestrator:
        came = asked(orchestrator, way)
    assert isinstance(came, Answer)
    assert came.cost is None
    assert came.cost_bound is not None
    assert came.cost_bound < 1
    assert any("not believable" in note for call in came.calls if call.completion for note in call.completion.notes)


@pytest.mark.parametrize("way", WAYS)
def test_f07_a_flood_of_informational_responses_ends_on_time(odd: Callable[..., Orchestrator], way: str) -> None:
    """The flood has no end: only the limit ends it."""

    def flood(handler: Any, _body: Any) -> None:
        while not handler._faults.closing.is_set():
            handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 1_000)

    orchestrator = odd(flood)
    orchestrator.runtime.config = orchestrator.runtime.config.model_copy(
        update={"timeouts": orchestrator.runtime.config.timeouts.model_copy(update={"per_question_s": 0.2})}
    )
    came = asked(orchestrator, way)
    assert isinstance(came, CascadeError)
    orchestrator.close()
