"""`cascade onboard`: only the new model is asked, and once; the reference's answers stand in the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cascade.logs.files import read_rows, write_rows
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Request

Cli = Callable[..., Any]
RIVERS = [f"river {n}" for n in range(120)]
PRICE = "price: {input: 0.1, output: 0.4}"


def old_rows(dataset: str = "log") -> Iterator[dict[str, Any]]:
    """Yield a ladder's log: the old model has every third right, the reference all but every tenth."""
    for n, river in enumerate(RIVERS):
        asked = {"episode_id": f"{dataset}{n}", "question": f"Which is {river}?", "gold": [river], "horizon": 2}
        asked |= {"candidate": 0, "dataset": dataset}
        for step, model, right in ((1, "old", n % 3 == 0), (2, "large", n % 10 > 0)):
            said = {"step": step, "source": model, "model": model, "answer": river if right else "none known"}
            yield asked | said | {"correct": right, "cost_nano_usd": 10 ** (3 * step)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeProvider:
    """Script the new model: it knows the rivers with an even number, and is sure of them."""

    def says(request: Request) -> Any:
        river = request.question.text.removeprefix("Which is ").removesuffix("?")
        even = int(river.split()[1]) % 2 == 0
        return reply(f"Answer: {river if even else 'no idea'}", logprobs=[-0.01 if even else -2.0])

    fake = FakeProvider(says)
    monkeypatch.setattr("cascade.providers.fake.create", lambda _: fake)
    write_rows(tmp_path / "old.jsonl", old_rows())
    write_rows(tmp_path / "both.jsonl", [*old_rows("a"), *old_rows("b")])
    (tmp_path / "cascade.yaml").write_text(
        f"models:\n  base: {{model: new, {PRICE}}}\n  guide: large\nprovider: fake\n"
    )
    return fake


def test_only_the_new_model_is_asked_and_once(cli, tmp_path, asked):
    command = ("onboard", "new", "old.jsonl", "-o", "probes.jsonl", "--risk", "0.1", "--concurrency", "1", "--json")
    ran = cli(*command, "--probes", "60")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["model"], found["reference"], found["fit"]["requests"]) == ("new", "large", 60)
    assert ({request.model for request in asked.requests}, len(asked.requests)) == ({"new"}, 60)
    low, high = found["fit"]["cost_share_interval"]
    assert 0 < low <= found["fit"]["cost_share"] <= high < 1
    assert found["fit"]["attempt"] == 1
    assert {row["source"] for row in read_rows(tmp_path / "probes.jsonl")} == {"new", "large"}
    more = json.loads(cli(*command, "--probes", "80").out)  # the same requests and 20 more
    assert (len(asked.requests), more["fit"]["requests"], more["fit"]["attempt"]) == (80, 80, 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nwe", "old.jsonl"), "did you mean new?"),
        (("guide", "old.jsonl"), "large is the log's reference already"),
        (("new", "both.jsonl"), "choose one: --where dataset=NAME"),
        (("new", "old.jsonl", "--promise", "regert"), "did you mean regret"),
    ],
)
def test_what_cannot_be_onboarded_is_2_and_nothing_is_asked(cli, asked, arguments, says):
    ran = cli("onboard", *arguments, "-o", "probes.jsonl")
    assert (ran.code, asked.requests) == (2, [])
    assert says in " ".join(ran.err.split())


def test_a_promise_of_agreement_needs_no_labels(cli, tmp_path, asked):
    write_rows(tmp_path / "old.jsonl", [row | {"gold": None, "correct": None} for row in old_rows()])
    command = ("onboard", "new", "old.jsonl", "-o", "probes.jsonl", "--promise", "agreement", "--risk", "0.2")
    ran = cli(*command, "--probes", "80", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["fit"]["promise"]["kind"] == "agreement"
