"""A real server of System One, made of the small model's file and two more keys, as the judge of a ladder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import pytest

from cascade import Orchestrator
from cascade.providers import weights
from cascade.providers.local import start_server
from cascade.types import Answer

from .conftest import TINY, _need

pytestmark = pytest.mark.weights
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


def asked(address: str, threshold: float) -> Answer:
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
    kept, escalated = asked(deciding, 0.0), asked(deciding, -1.0)
    assert (len(kept.steps), len(escalated.steps)) == (2, 3)
    p_yes, again = kept.steps[1].signals["p_yes"], escalated.steps[1].signals["p_yes"]
    assert p_yes is not None
    assert 0.0 < p_yes < 1.0
    assert again == pytest.approx(p_yes, abs=0.01)
    (call,) = kept.steps[1].calls
    assert call.completion is not None
    assert (call.completion.model, call.completion.usage.output_tokens) == (NAME, 0)
    assert call.cost_nano_usd == 40 * (call.completion.usage.input_tokens or 0) > 0
