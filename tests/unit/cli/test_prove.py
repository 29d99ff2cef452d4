"""`cascade prove`: the page, its document, its report, and what it ends with."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cascade.api.proving import fit_for
from cascade.evaluation.logs import open_log
from cascade.evaluation.proof.proving import Plan, prove
from cascade.guarantees.base import Guarantee
from cascade.training.networks import trainer as networks
from unit.cli.certified import Row, hard_rows
from unit.cli.documents import document, words

Cli = Callable[..., Any]
Write = Callable[..., str]
QUICK = ("--policy", "threshold", "--splits", "3")


@pytest.fixture
def log(written: Write) -> str:
    """Return a log in which doubt tells exactly which half the first step, a tenth of the cost, answers rightly."""
    return written(telling(240))


def telling(n: int, **columns: Any) -> list[Row]:
    rows = hard_rows(n, range(n // 2, n), **columns)
    for one in rows:
        one["cost_nano_usd"] = 1_000_000 if one["step"] == 1 else 10_000_000
        one["signals"] = {"p_yes": 0.9 if int(one["episode_id"][1:]) < n // 2 else 0.1}
    return rows


def test_the_document_is_what_the_library_found(cli: Cli, log: str) -> None:
    found = document(cli("prove", log, *QUICK, "--seed", "2", "--json"))
    (cascade,) = found["cascades"]
    (proof,) = cascade["proofs"]
    asked = Guarantee("regret", 0.05, 0.1)
    known = prove(open_log(log).tables[0], asked, partial(fit_for, "threshold"), Plan(splits=3, seed=2))
    assert known.policy.saving is not None
    assert proof["policy"]["saving"] == known.policy.saving._asdict()
    assert proof["guarantee"] == {"kind": "regret", "alpha": 0.05, "delta": 0.1}
    assert proof["verdict"] == known.verdict == "saves"
    assert proof["fitted"] == {"threshold on p_yes": 3}
    assert (found["splits"], found["seed"]) == (3, 2)
    assert cascade["log"] == log


def test_the_default_guarantee_follows_from_what_the_log_records(cli: Cli, log: str) -> None:
    kinds = [
        document(cli("prove", log, *QUICK, "--json", *more))["cascades"][0]["proofs"][0]["guarantee"]["kind"]
        for more in ([], ["--against", "all"], ["--guarantee", "error", "--alpha", "0.2"])
    ]
    assert kinds == ["regret", "coverage", "error"]


def next_command(page: str) -> list[str]:
    """Return the words of the command that a page ends with, as a shell reads them."""
    found = re.search(r"^cascade fit (?:.*\\\n)*.*$", page, re.MULTILINE)
    assert found is not None, page
    return shlex.split(found[0].replace("\\\n", ""))


@pytest.mark.parametrize(
    "options",
    [
        ["--policy", "threshold"],
        ["--policy", "net_benefit", "--guarantee", "coverage", "--alpha", "0.05"],
        ["--policy", "threshold", "--guarantee", "error", "--alpha", "0.2", "--delta", "0.3"],
        ["--policy", "threshold", "--where", "dataset=two words", "--matcher", "exact"],
        ["--guarantee", "coverage", "--alpha", "0.1", "--delta", "0.2"],
    ],
)
def test_the_next_command_says_what_was_proved_and_runs_as_printed(
    cli: Cli, written: Write, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log = written(telling(240, dataset="two words"), f"a log{' of many words' * 7}.jsonl")  # wider than the terminal
    ran = cli("prove", log, "--splits", "4", *options)
    command = next_command(ran.out)
    assert command[:3] == ["cascade", "fit", log]
    for option, value in itertools.pairwise(options):
        if option.startswith("--"):
            assert command[command.index(option) + 1] == value
    fitted = cli(*command[1:], "--json")
    assert fitted.code == 0, fitted.err
    certificate = json.loads(fitted.out)["segments"][0]["certificate"]
    proof = document(cli("prove", log, "--splits", "4", *options, "--json"))["cascades"][0]["proofs"][0]
    assert proof["guarantee"] == {name: certificate[name] for name in ("kind", "alpha", "delta")}


def test_the_method_is_reported_where_it_is_not_what_fit_does(
    cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cascade.api.proving.FAST", "threshold")
    many = ("prove", log, "--splits", "4", "--guarantee", "coverage", "--alpha", "0.1")
    monkeypatch.setattr("cascade.api.proving.MANY", 239)
    assert next_command(cli(*many).out)[-4:] == ["--policy", "threshold", "-o", "policy"]
    monkeypatch.setattr("cascade.api.proving.MANY", 240)
    assert "--policy" not in next_command(cli(*many).out)


@pytest.mark.parametrize("width", [80, 130])
def test_no_line_is_wider_than_the_terminal(cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for more in ([], ["--guarantee", "coverage", "--alpha", "0.05", "--alpha", "0.1"]):
        ran = cli("prove", Path(log).name, *QUICK, *more)
        assert ran.code == 0, ran.err
        assert max(map(len, ran.out.splitlines())) <= width


def test_too_few_questions_are_no_error_but_an_answer(cli: Cli, written: Write) -> None:
    ran = cli("prove", written(telling(40)), *QUICK)
    assert ran.code == 0
    assert "No saving is shown: in 3 of 3 splits this promise cannot be certified." in ran.out
    ((said, fitted),) = re.findall(
        r"\(cascade collect\): about ([\d,]+) in all would be enough with a probability of .*?, "
        r"or ([\d,]+) for cascade fit, which keeps none to test",
        words(ran.out),
    )
    assert 0.75 < int(fitted.replace(",", "")) / int(said.replace(",", "")) < 0.85  # a split tests on a fifth
    assert words(ran.out).count("would be enough") == 1
    enough = cli("prove", written(telling(int(said.replace(",", "")))), *QUICK)
    assert "cannot be certified" not in enough.out


def test_several_logs_each_with_its_cascades(cli: Cli, log: str, written: Write) -> None:
    two = [*telling(120), *telling(120, about="word", dataset="words")]
    other = written(two, "other.jsonl")
    found = document(cli("prove", log, other, *QUICK, "--json"))
    assert [(one["log"], one["dataset"]) for one in found["cascades"]] == [
        (log, "made"),
        (f"{other} --where dataset=made", "made"),
        (f"{other} --where dataset=words", "words"),
    ]
    chosen = document(cli("prove", other, *QUICK, "--json", "--where", "dataset=words"))
    assert [one["log"] for one in chosen["cascades"]] == [f"{other} --where dataset=words"]


def test_a_cascade_without_a_result_does_not_hide_the_others(cli: Cli, log: str, written: Write) -> None:
    alone = written(hard_rows(2, []), "two.jsonl")
    ran = cli("prove", alone, log, *QUICK)
    assert ran.code == 0
    assert "Nothing can be said." in ran.out
    assert "cannot be split into 3 parts" in words(ran.out)
    assert "You can save" in ran.out
    only = cli("prove", alone, *QUICK)
    assert (only.code, only.out) == (2, "")
    assert "cannot be split into 3 parts" in words(only.err)


def test_the_report_is_the_page_as_markdown(cli: Cli, log: str, tmp_path: Path) -> None:
    ran = cli("prove", log, *QUICK, "--report", "report.md", "--json")
    headline = document(ran)["cascades"][0]["proofs"][0]["says"]
    text = (tmp_path / "report.md").read_text()
    assert f"**{headline}**".replace("[", "\\[").replace("]", "\\]") in text
    assert "| certified policy |" in text
    assert "### Why" in text
    assert cli("prove", log, *QUICK, "--report", "no/where.md").code == 2


def test_hostile_names_reach_neither_terminal_nor_report(cli: Cli, written: Write, tmp_path: Path) -> None:
    rows = telling(120, dataset="[red]x\x1b[31m <img src=x> | a")
    ran = cli("prove", written(rows), *QUICK, "--report", "report.md")
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out
    assert "[red]x[31m <img src=x> | a" in ran.out
    text = (tmp_path / "report.md").read_text()
    assert "\\<img src=x\\> \\| a" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--guarantee", "regrt"], "did you mean regret"),
        (["--alpha", "2"], "alpha is 2"),
        (["--against", "base"], "--against is guide or all, not base"),
        (["--splits", "1"], "--splits"),
        (["--policy", "treshold"], "did you mean threshold"),
        (["--policy", "cpo"], "--policy cpo cannot have a certificate"),
        (["--policy", "cpo_online", "--alpha", "2"], "--policy cpo-online cannot have a certificate"),
        (["--policy", "cp0"], "known: auto, ccpo, cpo-batch"),
        (["--where", "step=1"], "cut episodes apart"),
    ],
)
def test_what_cannot_be_asked_is_2(cli: Cli, log: str, options: list[str], said: str) -> None:
    ran = cli("prove", log, "--splits", "3", *options)
    assert ran.code == 2
    assert said in words(ran.err)
    assert ran.out == ""


def test_a_network_without_torch_is_refused_before_anything_is_fitted(
    cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    ran = cli("prove", log, "--policy", "ccpo", "--alpha", "2")
    assert (ran.code, ran.out) == (2, "")
    assert "Training a policy network needs the package torch" in words(ran.err)
    assert "alpha is 2" in words(ran.err)
