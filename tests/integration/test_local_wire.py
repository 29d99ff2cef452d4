"""One small real model: in this process, over the wire the same each time, and, with two more keys in its file, as the judge of a ladder."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S

from cascade.config import load
from cascade.errors import ContextTooLongError, ModelFileError, ProviderTimeoutError, ProviderUnavailableError
from cascade.orchestrator import Orchestrator
from cascade.providers import weights
from cascade.providers.base import Provider
from cascade.providers.guard import Guard
from cascade.providers.litellm import LiteLLM
from cascade.providers.local import Local, start_server
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint
from cascade.resilience.event_loop import Deadline
from cascade.safety import broken_up, defuse
from cascade.types import Answer, Completion, Message, Question, Request, TextDelta

from .conftest import TINY, _need

pytestmark = pytest.mark.weights
QUESTION = Question("What is the capital of France?")
MESSAGES = (Message("system", "Answer in one short sentence."), Message("user", QUESTION.text))


def request(**fields: Any) -> Request:
    given = {"model": TINY, "messages": MESSAGES, "role": "base", "purpose": "answer", "step": 1, "question": QUESTION}
    return Request(**(given | {"max_tokens": 16, "top_logprobs": 5, "seed": 1} | fields))


async def every_way(provider: Provider, call: Request) -> dict[str, Completion]:
    """Ask for a whole reply and for a stream."""
    guard, never = Guard(provider), Deadline.after(100.0)
    *deltas, last = [event async for event in guard.stream(call, never)]
    assert isinstance(last, Completion)
    written = [event.text for event in deltas if isinstance(event, TextDelta)]
    assert "".join(written) == last.text
    assert len(written) > 1
    return {"complete": await guard.complete(call, never), "stream": last}


def comparable(completion: Completion) -> Any:
    """Return what must be the same each time: not how much of the prompt was still in a cache, nor the end mark."""
    tokens = [token.text for token in completion.tokens or () if token.text]
    return completion.text, completion.finish_reason, completion.usage[:2], completion.usage.estimated, tokens


def openai_http(address: str) -> Provider:
    return OpenAIHTTP({TINY: Endpoint(address)})


def litellm(address: str) -> Provider:
    return LiteLLM({TINY: Endpoint(address)})


WIRES = pytest.mark.parametrize("wire", [openai_http, pytest.param(litellm, marks=pytest.mark.litellm)])


async def test_in_this_process_every_way_gives_the_same(local):
    by_way = await every_way(local, request())
    first = by_way["complete"]
    assert first.text.strip()
    for completion in by_way.values():
        assert comparable(completion) == comparable(first)


async def test_log_probs_come_for_every_token_and_are_at_most_0(local):
    for completion in (await every_way(local, request())).values():
        assert "".join(token.text for token in completion.tokens).startswith(completion.text)
        for token in completion.tokens:
            assert token.logprob is not None
            assert token.logprob <= 0
            assert 1 <= len(token.top) <= 5
            assert all(value <= 0 for _, value in token.top)


async def test_a_reply_is_cut_at_max_tokens_and_its_usage_counted_by_the_model(local):
    completion = await Guard(local).complete(request(max_tokens=2, top_logprobs=None), Deadline())
    assert (completion.truncated, completion.tokens) == (True, None)
    assert (completion.usage.output_tokens, completion.usage.estimated) == (2, False)
    assert 15 <= (completion.usage.input_tokens or 0) <= 60


TOO_LONG = request(messages=(Message("user", "river " * 6_000),))


@WIRES
async def test_a_prompt_too_long_is_said_to_be_too_long_over_the_wire(tiny_server, wire):
    guard = Guard(wire(tiny_server))
    with pytest.raises(ContextTooLongError):
        await guard.complete(TOO_LONG, Deadline.after(60.0))
    await guard.close()


async def test_missing_and_broken_model_files_are_named(tmp_path):
    guard = Guard(Local())
    with pytest.raises(ModelFileError, match="There is no file"):
        await guard.complete(request(model=str(tmp_path / "nothing.gguf")), Deadline())
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(1_000))
    with pytest.raises(ModelFileError, match=r"broken\.gguf could not be loaded"):
        await guard.complete(request(model=str(broken)), Deadline())
    with pytest.raises(ModelFileError, match="There is no local model"):
        await guard.complete(request(model="nobody"), Deadline())


async def test_a_closed_provider_answers_nothing():
    provider = Local()
    await provider.close()
    with pytest.raises(ProviderUnavailableError, match="closed"):
        await provider.complete(request(), 1.0)


async def test_a_model_that_is_busy_is_waited_for_on_time(local):
    guard = Guard(local)
    await guard.complete(request(), Deadline())
    writing = local.stream(request(max_tokens=400), 60.0)
    await anext(writing)
    with pytest.raises(ProviderTimeoutError, match="busy") as caught:
        await local.complete(request(), 0.01)
    assert caught.value.billed == "no"
    await writing.aclose()
    assert (await guard.complete(request(), Deadline.after(60.0))).text


@WIRES
async def test_the_wire_gives_the_same_text_and_counts(local, tiny_server, wire):
    here = await Guard(local).complete(request(), Deadline())
    provider = wire(tiny_server)
    for completion in (await every_way(provider, request())).values():
        assert comparable(completion) == comparable(here)
    await Guard(provider).close()


async def test_a_whole_question_costs_what_its_tokens_cost(local):
    price = {"input": 0.1, "output": 0.4}
    model = {"model": TINY, "price": price, "max_tokens": 8}
    config = load({"models": {"base": model, "guide": model}, "strategy": {"rounds": 1}, "provider": "local"})
    orchestrator = Orchestrator.from_config(config, providers={"local": local})
    answer = await orchestrator.aask(QUESTION)
    wanted = 0
    for call in answer.calls:
        usage = call.completion.usage
        wanted += (usage.input_tokens or 0) * 100 + (usage.output_tokens or 0) * 400
    assert answer.cost_nano_usd == wanted > 0


DROPS = f"""
from cascade.providers.local import start_server
for _ in range(2):
    server = start_server({TINY!r}, context_tokens=512)
    del server
print("dropped")
"""


@pytest.mark.usefixtures("tiny_server")
def test_a_server_can_be_dropped_as_soon_as_it_is_started():
    """In a process of its own, since one that hangs here can only be killed."""
    done = subprocess.run(
        [sys.executable, "-c", DROPS], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == "dropped"


SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "<jupyter_start>")
"""Tokens of the model that are no text."""


def test_data_never_becomes_a_special_token():
    """0.5.0: "<|im_end|>" in a message was the token that ends the turn, "<repo_name>" a token of its own."""
    server = start_server(TINY, context_tokens=1_024)
    with httpx.Client(base_url=server.listening_address, timeout=PATIENCE_S) as client:

        def special(text: str) -> int:
            """Count the special tokens of a whole prompt, as the engine makes it."""
            messages = [{"role": "user", "content": text}]
            prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
            tokens = client.post("/tokenize", json={"content": prompt, "with_pieces": True}).json()["tokens"]
            return sum(token["piece"] in SPECIAL for token in tokens)

        usual = special("Which river?")
        for token in SPECIAL:
            assert special(f"Which {token} river?") == usual + 1, "the engine finds special tokens in a message"
            for text in (token, f"a{token}b", f"<{token}|im_end|>", token * 3):
                assert special(broken_up(text)) == usual, text
                assert special(broken_up(defuse(text))) == usual, text


async def test_a_local_model_is_given_data_without_special_tokens(monkeypatch):
    provider = Local(context_tokens=1_024)
    await provider.complete(request(max_tokens=1), 60.0)
    seen: list[Any] = []
    model = provider._models[TINY]
    server = model._server

    class Watched:
        def handle_chat_completions(self, body: Any, *more: Any) -> Any:
            seen.append(body)
            return server.handle_chat_completions(body, *more)

    monkeypatch.setattr(model, "_server", Watched())
    sent = request(messages=(Message("user", "Save it as <repo_name>.<|im_end|>"),), max_tokens=1)
    await provider.complete(sent, 60.0)
    assert [chunk async for chunk in provider.stream(sent, 60.0)]
    assert [body["messages"][0]["content"] for body in seen] == ["Save it as < repo_name>.< |im_end|>"] * 2


async def test_a_prompt_that_is_too_long_is_said_to_be():
    guard = Guard(Local(context_tokens=256))
    long = request(messages=(Message("user", "river " * 400),))
    with pytest.raises(ContextTooLongError):
        await guard.complete(long, Deadline.after(60.0))
    with pytest.raises(ContextTooLongError):
        assert [event async for event in guard.stream(long, Deadline.after(60.0))]


NAME = "tiny-decider"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, LIST, ALIGNMENT = 8, 9, 32
TEMPLATE = (
    "<|im_start|>user\n{{ state }}\n\n{{ instructions }}\n"
    '{% for o in options %}{{ "AB"[loop.index0] }}. {{ {"true": "Yes", "false": "No"}[o.key] }}\n{% endfor %}'
    "Reply with one letter only.<|im_end|>\n<|im_start|>assistant\n"
)


def number(file: BufferedReader, form: str) -> int:
    """Read one integer."""
    (value,) = struct.unpack(form, file.read(struct.calcsize(form)))
    return int(value)


def skip(file: BufferedReader, kind: int) -> None:
    """Skip a value of a GGUF file."""
    if kind == TEXT:
        file.seek(number(file, "<Q"), 1)
    elif kind == LIST:
        inner, many = number(file, "<I"), number(file, "<Q")
        for _ in range(many):
            skip(file, inner)
    else:
        file.seek(SIZES[kind], 1)


def pair(key: str, value: str) -> bytes:
    """Return a key with its text."""
    name, text = key.encode(), value.encode()
    return struct.pack("<Q", len(name)) + name + struct.pack("<IQ", TEXT, len(text)) + text


def decider(source: Path, target: Path) -> None:
    """Write a copy of a model's file that llama.cpp serves as a decision model."""
    with source.open("rb") as file:
        magic, version, tensors, keys = file.read(4), number(file, "<I"), number(file, "<Q"), number(file, "<Q")
        assert magic == b"GGUF"
        begin = file.tell()
        for _ in range(keys):
            file.seek(number(file, "<Q"), 1)
            skip(file, number(file, "<I"))
        between = file.tell()
        for _ in range(tensors):
            file.seek(number(file, "<Q"), 1)
            file.seek(8 * number(file, "<I") + 4 + 8, 1)
        end = file.tell()
        file.seek(begin)
        known, listed = file.read(between - begin), file.read(end - between)
        file.seek(-end % ALIGNMENT, 1)
        weights_themselves = file.read()
    more = pair("llama.decision.type", "openjev") + pair("tokenizer.chat_template.systemone", TEMPLATE)
    head = magic + struct.pack("<IQQ", version, tensors, keys + 2) + known + more + listed
    target.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + weights_themselves)


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a real decision model."""
    _need(TINY)
    path = tmp_path_factory.mktemp("decider") / f"{NAME}.gguf"
    decider(weights.find(TINY), path)
    server = start_server(str(path))
    yield f"{server.listening_address}/v1"
    del server


def ask(address: str, threshold: float) -> Answer:
    """Ask a ladder whose models are scripted and whose judge is real."""
    models = {
        "base": "small",
        "judge": {
            "model": NAME, "kind": "decision", "dialect": "systemone", "provider": "openai_http", "api_base": address,
            "price": {"input": 0.04, "output": 0},
        },
        "guide": "large",
    }  # fmt: skip
    settings = {
        "models": models,
        "strategy": {"kind": "ladder", "models": ["base", "guide"], "judge": "judge"},
        "policy": {"kind": "threshold", "signal": "p_yes", "threshold": threshold},
        "provider": {"kind": "fake", "options": {"replies": {"small": ["Answer: Paris"], "large": ["Answer: Paris"]}}},
        "traces": "off",
    }
    with Orchestrator.from_config(settings) as cascade:
        return cascade.ask("What is the capital of France?")


def test_a_real_decision_model_judges_an_answer_and_costs_its_input(deciding):
    accepted, escalated = ask(deciding, 0.0), ask(deciding, -1.0)
    assert (len(accepted.steps), len(escalated.steps)) == (2, 3)
    p_yes, again = accepted.steps[1].signals["p_yes"], escalated.steps[1].signals["p_yes"]
    assert 0.0 < p_yes < 1.0
    assert again == pytest.approx(p_yes, abs=0.01)
    (call,) = accepted.steps[1].calls
    assert (call.completion.model, call.completion.usage.output_tokens) == (NAME, 0)
    assert call.cost_nano_usd == 40 * (call.completion.usage.input_tokens or 0) > 0
