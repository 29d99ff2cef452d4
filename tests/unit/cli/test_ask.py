"""`cascade ask`: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.config import load
from cascade.conformal.certificate import Certificate
from cascade.serving.made_for import made_for
from unit.certified import certificate, directory

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("fake_config")


def test_the_answer_and_its_cost_are_printed(cli: Cli) -> None:
    ran = cli("ask", "Which river?")
    first, *rest = ran.out.splitlines()
    assert (ran.code, first, ran.err) == (0, "Danube", "")
    assert rest[-1].startswith("cost $0.0000268 (small $0.00000280, large $0.0000240)")
    assert "1 step," in rest[-1]


def test_json_is_one_document_on_stdout(cli: Cli) -> None:
    ran = cli("ask", "Which river?", "--json")
    document = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert (document["text"], document["answers"], document["stopped"]) == ("Danube", ["Danube"], "policy")
    assert document["cost_usd"] == pytest.approx(0.0000268)
    assert document["steps"][0]["decision"]["scores"] == ["inf", "inf"]


def test_a_stream_is_shown_on_stderr_and_the_answer_on_stdout(cli: Cli) -> None:
    ran = cli("ask", "Which river?", "--stream", "--json")
    assert json.loads(ran.out)["text"] == "Danube"
    assert "base, step 1" in ran.err
    assert "Danube" in ran.err
    assert "Answer:" not in ran.err
    assert "Answer: Danube" in cli("ask", "Which river?", "--stream", "--raw").err


def test_a_question_can_come_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Which river?\n"))
    assert json.loads(cli("ask", "-", "--json").out)["question"]["text"] == "Which river?"


def test_a_context_is_read_from_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Vienna lies on the Danube.")
    document = json.loads(cli("ask", "Which river?", "--context", "text.txt", "--json").out)
    assert document["question"]["context"] == "Vienna lies on the Danube."


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_context_that_cannot_be_read_is_bad_usage(cli: Cli, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    ran = cli("ask", "x", "--context", "text.txt")
    assert (ran.code, ran.out) == (2, "")
    assert "--context" in ran.err


def test_asking_nothing_is_2(cli: Cli) -> None:
    ran = cli("ask", "  ")
    assert (ran.code, ran.out) == (2, "")
    assert "There is no question" in ran.err


def test_a_missing_configuration_is_2(cli: Cli) -> None:
    ran = cli("ask", "x", "-c", "nothing.yaml", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert "cascade init" in ran.err


def changed(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "cascade.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_cap_too_small_is_4(cli: Cli, tmp_path: Path) -> None:
    changed(tmp_path, "strategy:", "budget: {per_question: 0.0000001}\nstrategy:")
    ran = cli("ask", "x", "--json")
    assert (ran.code, ran.out) == (4, "")
    assert "budget.per_question" in ran.err


def test_a_provider_that_fails_is_5(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    text = (tmp_path / "cascade.yaml").read_text()
    start, end = text.index("provider:"), text.index("strategy:")
    (tmp_path / "cascade.yaml").write_text(text[:start] + "provider: replay:log.jsonl\n" + text[end:])
    ran = cli("ask", "x")
    assert (ran.code, ran.out) == (5, "")
    assert "has no call" in ran.err


def test_no_answer_is_1_and_no_text(cli: Cli, tmp_path: Path) -> None:
    changed(tmp_path, "'Answer: Danube'", "'Answer: N/A'")
    changed(tmp_path, "['Yes']", "['N/A']")
    ran = cli("ask", "x")
    assert ran.code == 1
    assert "no answer" in ran.err
    document = cli("ask", "x", "--json")
    assert document.code == 1
    assert json.loads(document.out)["text"] is None


def test_an_answer_cannot_write_markup_or_escapes(cli: Cli, tmp_path: Path) -> None:
    changed(tmp_path, "'Answer: Danube'", '"Answer: [bold]Da\\e[31mnube[/nonsense]"')
    for flags in ((), ("--explain",), ("--stream",)):
        ran = cli("ask", "x", *flags)
        assert ran.code == 0
        assert ran.out.splitlines()[0] == "[bold]Da[31mnube[/nonsense]"
        assert "\x1b" not in ran.out + ran.err


# --- certificates ---


def calibrated(config: Path, *certificates: Certificate, **guarantee: Any) -> Path:
    """Let a configuration name a policy directory with these certificates."""
    folder = directory(config.parent / "policy", *certificates, many=4)
    settings = f"policy: {folder}\n" + (f"guarantee: {json.dumps(guarantee)}\n" if guarantee else "")
    config.write_text(config.read_text().replace("policy: {kind: fixed}\n", settings))
    return config


def test_json_holds_the_certificate_and_its_promise_in_words(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate(made_for=made_for(load(fake_config))))
    held = json.loads(cli("ask", "Which river?", "--json").out)["certificate"]
    assert (held["promise"]["kind"], held["n"], held["losses"]) == ("coverage", 99, 9)
    assert held["statement"]


def test_why_there_is_no_certificate_is_reported_beside_the_answer(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate(made_for={"models": {"base": {"name": "other"}, "guide": {"name": "large"}}}))
    ran = cli("ask", "Which river?")
    assert ran.code == 0
    assert ran.err.strip() == "no certificate: base is small; the certificate was made for other"
    assert json.loads(cli("ask", "Which river?", "--json").out)["certificate"] is None


def test_a_required_certificate_that_does_not_hold_is_3(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate(created="2020-01-01", expires="2020-02-01"), required=True)
    ran = cli("ask", "Which river?")
    assert (ran.code, ran.out) == (3, "")
    assert "it expired on 2020-02-01; fit again" in ran.err


def test_an_edited_certificate_is_2(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate())
    file = fake_config.parent / "policy" / "certificate.json"
    file.write_text(file.read_text().replace('"n": 99', '"n": 999'))
    ran = cli("ask", "Which river?")
    assert (ran.code, ran.out) == (2, "")
    assert "changed after" in ran.err


def test_an_abstention_says_so_and_is_1(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate(kind="error", confidence=0.9, bar=float("inf")))
    ran = cli("ask", "Which river?")
    assert ran.code == 1
    assert "no answer: the best one is not sure enough to be served" in ran.err


def test_a_segment_is_given_on_the_command_line(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate(segment="law"))
    held = json.loads(cli("ask", "Which river?", "--segment", "law", "--json").out)
    assert (held["certificate"]["name"], held["question"]["segment"]) == ("law", "law")
    assert "for the segment 'art'" in cli("ask", "Which river?", "--segment", "art").err
