"""The benchmark of live requests: what is right and equal, and how few labels a certified regret takes."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.chat import ChatRequest
from cascade.collection import collect
from cascade.config import load
from cascade.episodes.questions import AskedQuestion
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Question, Request

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from live_requests import Requests, accuracy, certified, labels_taken, read

N, DIFFER, LOST = 60, 12, 4
"""Requests; those on which the base is least sure, and differs; and of these those on which it alone is wrong."""


def script(request: Request) -> Any:
    number = int(request.question.text.split()[-1])
    says = {"n": number}
    sure = 1 - (number + 1) / 1_000
    if request.model == "small" and number >= N - DIFFER:
        says = {"n": -1}
    if request.model == "large" and N - DIFFER <= number < N - LOST:
        says = {"n": -2}  # both are wrong, each in its own way
    return reply(json.dumps(says), logprobs=[math.log(sure)])


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Requests:
    config = load(
        {
            "models": {
                "base": {"model": "small", "price": {"input": 0.1, "output": 0.4}},
                "guide": {"model": "large", "price": {"input": 1.0, "output": 4.0}},
            },
            "strategy": {"kind": "ladder", "models": ["base", "guide"]},
            "provider": "fake",
            "traces": "off",
        }
    )
    asked = []
    for number in range(N):
        chat = ChatRequest(
            [{"role": "user", "content": f"number {number}"}], {"response_format": {"type": "json_object"}}
        )
        gold = (json.dumps({"n": number}),)
        asked.append(AskedQuestion(f"q{number}", Question.of_chat(chat), gold, f"q{number}", matcher="json"))
    path = tmp_path_factory.mktemp("live") / "requests.jsonl"
    collect(config, asked, path, providers={"fake": FakeProvider(script)}, dataset="numbers")
    return read(str(path))


def test_what_is_right_and_equal_is_counted(requests: Requests) -> None:
    said = "\n".join(accuracy(requests))
    assert f"right: base {(N - DIFFER) / N:.3f}, guide {(N - DIFFER + LOST) / N:.3f}; only the base 0.000" in said
    assert f"outputs equal on {(N - DIFFER) / N:.3f}" in said
    assert f"where equal: base 1.000, guide 1.000; where not equal: base 0.000, guide {LOST / DIFFER:.3f}" in said


def test_labels_are_taken_only_where_the_outputs_differ_and_only_until_the_path_ends(requests: Requests) -> None:
    taken = labels_taken(requests, np.arange(N), 0.1)
    assert (taken.differing, taken.everything) == (2 * DIFFER, N + DIFFER)
    # 2 of 60 losses prove a regret below 0.1, and the third is the third last request: none is labelled after it
    assert 0 < taken.path <= 2 * (DIFFER - LOST + 3)
    few = labels_taken(requests, np.arange(20), 0.01)  # no count of losses proves 0.01 with 20 requests
    assert few.path == 0


def test_a_row_says_what_certified_policies_did_on_test_requests(requests: Requests) -> None:
    kind, alpha, certify, *_ = (cell.strip() for cell in certified(requests, "agreement", 0.2, 2).split("|")[1:-1])
    assert (kind, alpha, certify) == ("agreement", "20%", "48")
    assert certified(requests, "regret", 0.2, 2).split("|")[-4].strip() != "0"
