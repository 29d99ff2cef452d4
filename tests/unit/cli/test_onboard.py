"""`cascade onboard`: only the new model is asked, the reference stands in the log, and the table says what probes buy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.api.onboarding import weighted
from cascade.episodes.files import read_rows, write_rows
from cascade.providers.fake import FakeProvider
from cascade.types import Request

Cli = Callable[..., Any]
RIVERS = [f"river {n}" for n in range(120)]


def old_rows() -> Iterator[dict[str, Any]]:
    """Yield a ladder's log: the old model has every third right, the reference all but every tenth."""
    for n, river in enumerate(RIVERS):
        question = {
            "episode_id": f"q{n}",
            "question": f"Which is {river}?",
            "gold": [river],
            "horizon": 2,
            "candidate": 0,
        }
        for step, model, right in ((1, "old", n % 3 == 0), (2, "large", n % 10 > 0)):
            said = {"step": step, "source": model, "model": model, "answer": river if right else "none known"}
            yield (
                question | said | {"correct": right, "cost_nano_usd": 10**step, "signals": {"reply_mean_logprob": -0.1}}
            )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """Script the new model: it knows the rivers with an even number, and says so of none."""

    def says(request: Request) -> str:
        river = request.question.text.removeprefix("Which is ").removesuffix("?")
        return f"Answer: {river if int(river.split()[1]) % 2 == 0 else 'no idea'}"

    fake = FakeProvider(says)
    monkeypatch.setattr("cascade.providers.fake.create", lambda _: fake)
    return fake


def test_only_the_new_model_is_asked_and_once(cli: Cli, tmp_path: Path, asked: FakeProvider) -> None:
    write_rows(tmp_path / "old.jsonl", old_rows())
    price = "price: {input: 0.1, output: 0.4}"
    (tmp_path / "cascade.yaml").write_text(
        f"models:\n  base: {{model: new, {price}}}\n  guide: large\nprovider: fake\n"
    )
    command = ("onboard", "new", "old.jsonl", "-o", "probes.jsonl", "--alpha", "0.2", "--concurrency", "1")
    ran = cli(*command, "--probes", "60", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["model"], found["reference"]) == ("new", "large")
    assert [one["probes"] for one in found["bought"]] == [50, 60]
    last = found["bought"][-1]
    probed = [row for row in read_rows(tmp_path / "probes.jsonl") if row["source"] == "new"]
    assert last["right"] == pytest.approx(sum(row["correct"] for row in probed) / 60)
    assert last["low"] < 0.5 < last["high"]
    assert {request.model for request in asked.requests} == {"new"}
    assert len(asked.requests) == 60
    more = cli(*command, "--probes", "80")  # the same questions and 20 more
    assert more.code == 0, more.err
    assert len(asked.requests) == 80
    assert "new before large" in more.out
    assert "cascade fit probes.jsonl --promise regret --risk 0.2 --confidence 0.9 -o policy" in more.out


def test_a_model_that_is_not_configured_is_2(cli: Cli, tmp_path: Path) -> None:
    write_rows(tmp_path / "old.jsonl", old_rows())
    (tmp_path / "cascade.yaml").write_text("models: {base: small, guide: large}\nprovider: fake\n")
    ran = cli("onboard", "smal", "old.jsonl", "-o", "probes.jsonl")
    assert ran.code == 2
    assert "did you mean small? Known: base, guide, large, small;" in " ".join(ran.err.split())


def test_the_reference_is_not_asked_again(cli: Cli, tmp_path: Path, asked: FakeProvider) -> None:
    write_rows(tmp_path / "old.jsonl", old_rows())
    (tmp_path / "cascade.yaml").write_text("models: {base: new, guide: large}\nprovider: fake\n")
    ran = cli("onboard", "guide", "old.jsonl", "-o", "probes.jsonl")
    assert ran.code == 2
    assert "large is the log's reference already" in " ".join(ran.err.split())
    assert not asked.requests


def test_one_of_several_data_sets_is_chosen(cli: Cli, tmp_path: Path, asked: FakeProvider) -> None:
    both = [
        {**row, "dataset": name, "episode_id": f"{name}-{row['episode_id']}"} for name in "ab" for row in old_rows()
    ]
    write_rows(tmp_path / "old.jsonl", both)
    price = "price: {input: 0.1, output: 0.4}"
    (tmp_path / "cascade.yaml").write_text(
        f"models:\n  base: {{model: new, {price}}}\n  guide: large\nprovider: fake\n"
    )
    command = ("onboard", "new", "old.jsonl", "-o", "probes.jsonl", "--alpha", "0.2", "--probes", "4")
    ran = cli(*command)
    assert (ran.code, "holds 2 data sets; choose one: --where dataset=NAME." in " ".join(ran.err.split())) == (2, True)
    assert cli(*command, "--where", "dataset=b").code == 0
    assert len(asked.requests) == 4


def test_the_old_models_tell_how_hard_the_probes_were() -> None:
    right, easy = np.array([1.0, 1.0, 1.0, 0.0, 0.0]), np.array([1, 1, 1, 0, 0])
    assert weighted(right, easy, np.array([1] * 30 + [0] * 70)) == (pytest.approx(0.3), 0.0)
    mean, error = weighted(right, easy, np.zeros(10, dtype=np.int64) + 2)  # no probe is like the log
    assert mean == pytest.approx(0.6)
    assert error == pytest.approx((0.3 / 5) ** 0.5)
