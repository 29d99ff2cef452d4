"""Logs without labels on the command line: what is offered, what is refused, and what becomes of it on fresh ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade import PolicyDirectory
from cascade.logs.files import read_rows, write_rows
from unit.episodes.test_reading import row

Cli = Callable[..., Any]
AGREED = ("--promise", "agreement", "--risk", "0.1", "--confidence", "0.9")
REGRET = ("--promise", "regret", "--risk", "0.1", "--confidence", "0.9")


def log(path: Path, n: int, *, differs: float = 0.3, first: int = 0, labels: bool = False) -> str:
    """Write a ladder of two models; where the first one is sure it hardly ever differs from the second."""
    rng, rows = random.Random(first), []
    for number in range(first, first + n):
        doubt, name = rng.random(), f"q{number}"
        small = "Danube" if rng.random() > 2 * differs * doubt**2 else "Rhine"
        truth = {"correct": rng.random() < 0.5} if labels else {}
        rows.append(row(name, 1, "small", small, signals={"reply_mean_logprob": -doubt}, **truth))
        rows.append(row(name, 2, "large", "Danube", signals={"reply_mean_logprob": -0.1}, **truth))
    write_rows(path, rows)
    return str(path)


def plain(ran: Any) -> str:
    return " ".join((ran.out + ran.err).split())


def test_fit_offers_agreement_where_there_are_no_labels_and_verify_holds_it_to_account(
    cli: Cli, tmp_path: Path
) -> None:
    path = log(tmp_path / "log.jsonl", 300)
    ran = cli("fit", path, *AGREED, "-o", "policy")
    assert ran.code == 0, ran.err
    assert "agreement with large" in plain(ran)
    (one,) = PolicyDirectory.read(tmp_path / "policy").certificates.values()
    assert (one.promise.kind, one.reference, one.comparator) == ("agreement", "large", "text")
    assert cli("verify", "policy", path).code == 0
    kept = cli("verify", "policy", log(tmp_path / "kept.jsonl", 200, first=1_000))
    assert kept.code == 0, kept.out
    assert cli("verify", "policy", log(tmp_path / "worse.jsonl", 300, differs=3.0, first=2_000)).code == 3


def test_what_needs_labels_is_refused_and_says_what_does_not(cli: Cli, tmp_path: Path) -> None:
    ran = cli("fit", log(tmp_path / "log.jsonl", 100), "-o", "policy", *REGRET)
    assert ran.code == 2
    assert "regret needs labels" in plain(ran)
    assert "--promise agreement" in plain(ran)


def test_a_promise_that_needs_labels_is_not_held_to_account_by_agreement(cli: Cli, tmp_path: Path) -> None:
    path = log(tmp_path / "log.jsonl", 300)
    write_rows(Path(path), [{**one, "gold": ["Danube"]} for one in read_rows(Path(path))])
    assert cli("fit", path, *REGRET, "--matcher", "exact", "-o", "policy").code == 0
    evaluated = "evaluate", path, "--policy", "policy"
    for call in (("verify", "policy", path), (*evaluated, "--audits"), evaluated):
        ran = cli(*call)
        assert (ran.code, "regret needs labels" in plain(ran), "--matcher exact" in plain(ran)) == (2, True, True)
        assert cli(*call, "--matcher", "exact").code == 0


def test_labels_are_left_aside_where_a_reference_or_agreement_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    path = log(tmp_path / "log.jsonl", 200, labels=True)
    for options in (("--reference", "guide"), ("--reference", "large"), ()):
        assert cli("fit", path, "-o", "policy", "--force", *AGREED, *options).code == 0
        (one,) = PolicyDirectory.read(tmp_path / "policy").certificates.values()
        assert one.reference == "large"


def test_models_pick_a_cascade_out_of_a_log_of_many(cli: Cli, tmp_path: Path) -> None:
    rows = []
    for number in range(120):
        for step, model in enumerate(("small", "middle", "large"), 1):
            answer = "Danube" if number % 9 or model != "small" else "Rhine"
            rows.append(
                row(f"q{number}", step, model, answer, horizon=3, signals={"reply_mean_logprob": -number / 120})
            )
    write_rows(tmp_path / "many.jsonl", rows)
    ran = cli("fit", "many.jsonl", "-o", "policy", "--models", "small,middle", *AGREED)
    assert ran.code == 0, ran.err
    (one,) = PolicyDirectory.read(tmp_path / "policy").certificates.values()
    assert one.reference == "middle"
    assert cli("verify", "policy", "many.jsonl", "--models", "small,middle").code == 0
    wrong = cli("fit", "many.jsonl", "-o", "other", "--models", "smal,large", *AGREED)
    assert wrong.code == 2
    assert "did you mean small" in plain(wrong)


@pytest.mark.parametrize("command", ["fit", "prove"])
def test_a_log_without_labels_and_without_a_reference_says_what_is_missing(
    cli: Cli, tmp_path: Path, command: str
) -> None:
    write_rows(tmp_path / "one.jsonl", [row(f"q{number}", 1, "small", "x", horizon=1) for number in range(9)])
    ran = cli(command, "one.jsonl", *(AGREED if command == "fit" else ()))
    assert ran.code == 2
    assert "column gold" in plain(ran)
