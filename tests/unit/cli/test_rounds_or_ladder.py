"""`cascade prove` on a log of rounds that has the guide's own answers: rounds with a judge, or a ladder without one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.episodes.opening import open_log
from cascade.logs.files import write_rows
from unit.plain import row

Cli = Callable[..., Any]
Row = dict[str, Any]
QUICK = ("--splits", "3", "--risk", "0.1")
SURE, UNSURE = -0.05, -0.9


def rounds(n: int, *, judge_tells: bool, reply_tells: bool, judging: int) -> list[Row]:
    """Return n questions of two rounds, the guide's own answer beside them, half of them hard for the base.

    Args:
        n: how many.
        judge_tells: whether P(yes) says which half; then the second round of the base is right.
        reply_tells: whether the log-prob of the base's reply says which half.
        judging: what a verdict costs, in nano-USD; the base costs a million, the guide ten.
    """
    chance, made = random.Random(5), []
    for k in range(n):
        hard, luck = k % 2 == 1, chance.random() < 0.5
        told = {
            "p_yes": (0.1 if hard else 0.9) if judge_tells else (0.1 if luck else 0.9),
            "reply_mean_logprob": (UNSURE if hard else SURE) if reply_tells else (UNSURE if luck else SURE),
        }
        shared = {"question": f"What is number {k}?", "horizon": 2, "dataset": "made", "gold": ["it"]}
        for step in (1, 2):
            right = not hard or (step == 2 and judge_tells)
            base = {"source": "base", "model": "small", "answer": "it" if right else "no", "correct": right}
            signals = told if step == 1 else {**told, "p_yes": 0.95}
            answered = {"cost_nano_usd": 1_000_000, "signals": {**signals, "replay": {"purpose": "answer"}}}
            made.append(row(f"q{k:04d}", step, confidence=signals["p_yes"], **base, **answered, **shared))
            judged = {"source": "guide", "model": "large", "candidate": None, "answer": None, "correct": None}
            verdict = {"cost_nano_usd": judging, "signals": {**signals, "replay": {"purpose": "judge"}}}
            made.append(row(f"q{k:04d}", step, **judged, **verdict, **shared))
        alone = {"walk": "guide only", "source": "large", "model": "large", "answer": "it", "correct": True}
        paid = {"cost_nano_usd": 10_000_000, "kept": True, "signals": {"reply_mean_logprob": SURE}}
        made.append(row(f"q{k:04d}", 1, **alone, **paid, **shared))
    return made


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    def write(**how: Any) -> str:
        write_rows(tmp_path / "log.jsonl", rounds(240, **how))
        return str(tmp_path / "log.jsonl")

    return write


JUDGING_PAYS = {"judge_tells": True, "reply_tells": False, "judging": 500_000}
LADDER_PAYS = {"judge_tells": False, "reply_tells": True, "judging": 9_000_000}


@pytest.mark.parametrize(
    ("how", "better"), [(JUDGING_PAYS, "rounds"), (LADDER_PAYS, "ladder")], ids=["judge", "ladder"]
)
def test_a_log_of_rounds_is_proved_as_a_ladder_beside_them(
    cli: Cli, written: Callable[..., str], how: dict[str, Any], better: str
) -> None:
    """0.5.0: the page spoke of the rounds alone, and never said that a ladder of the same log would pay."""
    log = written(**how)
    asked, ladder = (cli("prove", name, *QUICK, "--json") for name in (log, f"ladder:{log}"))
    assert ("without judging" in asked.err, "without judging" in ladder.err) == (True, False)
    saved = {}
    for name, ran in (("rounds", asked), ("ladder", ladder)):
        (found,) = json.loads(ran.out)["studies"]
        assert found["promise"] == {"kind": "regret", "risk": 0.1, "confidence": 0.9}
        saved[name] = found["ways"][-1]["saving"]["mean"] if found["verdict"] == "saves" else 0.0
    if better == "ladder":
        assert saved["ladder"] == pytest.approx(0.4, abs=0.1)  # 1 + 10 on half, 1 on the other
    if better == "rounds":
        assert saved["rounds"] == pytest.approx(0.775, abs=0.1)  # 1.5 on half, 3 on the other


def test_the_command_that_is_recommended_reads_the_log_as_that_ladder(cli: Cli, written: Callable[..., str]) -> None:
    log = written(**LADDER_PAYS)
    ran = cli("fit", f"ladder:{log}", "--promise", "regret", "--risk", "0.1", "--confidence", "0.9", "-o", "policy")
    assert ran.code == 0, ran.err
    (read,) = open_log(f"ladder:{log}").reads
    assert (read.log.n, read.log.width, read.facts.step_models) == (240, 2, ("small", "large"))


def test_no_ladder_is_named_where_there_is_none(cli: Cli, tmp_path: Path) -> None:
    kept = [one for one in rounds(120, **JUDGING_PAYS) if one["walk"] is None]
    write_rows(tmp_path / "log.jsonl", kept)
    for log in (str(tmp_path / "log.jsonl"), "demo-ladder"):
        assert "without judging" not in cli("prove", log, *QUICK).err
