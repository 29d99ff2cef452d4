"""`prove`, `compare` and `evaluate` with reviews: people's judgements are the truth, and a drawn share stands for all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cascade
from cascade.review.pairs import compare
from cascade.review.reviews import Judgement, ReviewStore, Terms
from cascade.studies.study import default_promise
from unit.cli.conftest import Ran
from unit.review.booking import call, episode, write

Cli = Callable[..., Ran]
N, DIFFERS, HARMS = 400, 0.4, 0.25


def logged(folder: Path, rate: float = 1.0, ask: str = "regret", *, judged: bool = True) -> tuple[str, str]:
    """Write a log in which the cheap output differs on 40 % and harms on 10 %, and reviews of all that differs."""
    draw, rows, harms = random.Random(5), [], {}
    for number in range(N):
        differs = draw.random() < DIFFERS
        made = episode(number, call(number + 5_000 if differs else number), call(number))
        for row in made:
            row["signals"] = {**row["signals"], "doubt": draw.random()}
        harms[number] = draw.random() < HARMS
        rows += made
    path = write(folder / "log.jsonl", rows)
    found = compare(lambda: rows)
    terms = Terms(ask, found.comparator, rate, "key")  # type: ignore[arg-type]
    with ReviewStore(folder / "reviews.db", terms) as file:
        for pair in found.pairs if judged else ():
            bad = harms[int(pair.text.split()[2])]
            rights = (not bad, True) if ask == "regret" else (None, None)
            verdict = "reference" if bad else "equal"
            file.add(Judgement(*pair.id, "output", verdict, *rights, "ann", "2026-11-23T00:00:00Z"))  # type: ignore[arg-type]
    return str(path), str(folder / "reviews.db")


def proved(log: str, reviews: str, **asked: Any) -> dict[str, Any]:
    opened = cascade.open_log(log, reviews=reviews, **asked)
    found = cascade.prove(opened, default_promise(opened.reads[0], risk=0.3), splits=2).to_dict()
    (one,) = found["studies"]
    return dict(one)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_proof_counts_what_people_found_lost(tmp_path: Path, rate: float) -> None:
    log, reviews = logged(tmp_path, rate)
    found = proved(log, reviews)
    assert found["promise"]["kind"] == "regret"
    base = next(way for way in found["ways"] if way["name"].endswith(" alone") and way["calls"] == 1 and way["risk"])
    assert base["risk"] == pytest.approx(DIFFERS * HARMS, abs=0.05)  # agreement alone would say 0.4
    assert found["why"]["first_right"] == pytest.approx(1 - DIFFERS * HARMS, abs=0.05)


def test_without_a_judgement_a_differing_output_is_lost(tmp_path: Path) -> None:
    log, reviews = logged(tmp_path, judged=False)
    told: list[str] = []
    found = proved(log, reviews, tell=told.append)
    base = next(way for way in found["ways"] if way["name"].endswith(" alone") and way["calls"] == 1 and way["risk"])
    assert base["risk"] == pytest.approx(DIFFERS, abs=0.06)
    assert any("lack a judgement, which counts as a loss" in one for one in told)


def test_what_was_not_asked_cannot_be_proved(cli: Cli, tmp_path: Path) -> None:
    log, reviews = logged(tmp_path, ask="preference")
    ran = cli("prove", log, "--reviews", reviews, "--promise", "regret")
    assert (ran.code, "needs right or wrong for both outputs" in ran.err) == (2, True)
    assert cli("prove", log, "--label-rate", "0.5").code == 2
    assert proved(log, reviews)["promise"]["kind"] == "preference"


def test_compare_and_evaluate_read_what_was_drawn(cli: Cli, tmp_path: Path) -> None:
    log, reviews = logged(tmp_path, 0.5)
    ran = cli("compare", log, "--reviews", reviews, "--splits", "2", "--json")
    assert ran.code == 0, ran.err
    (one,) = json.loads(ran.out)["studies"]
    assert one["requests"] == pytest.approx(N / 2, abs=50)
    assert one["why"]["first_right"] == pytest.approx(1 - DIFFERS * HARMS, abs=0.06)
    ran = cli("evaluate", log, "--reviews", reviews, "--policy", "{kind: fixed, depth: 1}", "--json")
    assert ran.code == 0, ran.err
    (found,) = json.loads(ran.out)["reports"]
    assert found["figures"]["policy"]["right"][0] == pytest.approx(1 - DIFFERS * HARMS, abs=0.06)


def test_a_policy_is_held_to_its_promise_by_what_people_found(cli: Cli, tmp_path: Path) -> None:
    log, reviews = logged(tmp_path, 0.5)
    promised = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")
    fit = ("fit", log, *promised, "--policy", "{kind: threshold, signal: doubt, sign: 1}", "-o", "policy")
    assert cli(*fit, "--reviews", reviews).code == 0
    ran = cli("evaluate", log, "--reviews", reviews, "--policy", "policy", "--json")
    (found,) = json.loads(ran.out)["reports"]
    assert found["promise"]["kind"] == "regret"
    assert 0 < found["figures"]["policy"]["loss"][0] <= 0.2
    assert 0 < found["figures"]["policy"]["cost_share"][0] < 1
