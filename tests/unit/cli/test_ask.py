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
from cascade.serving.conditions import made_for
from unit.certified import certificate, directory

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("fake_config")


def test_the_answer_and_its_cost_are_printed(cli):
    ran = cli("ask", "Which river?")
    first, *rest = ran.out.splitlines()
    assert (ran.code, first, ran.err) == (0, "Danube", "")
    assert rest[-1].startswith("cost $0.0000268 (small $0.00000280, large $0.0000240)")
    assert "1 step," in rest[-1]


def test_json_is_one_document_on_stdout(cli):
    ran = cli("ask", "Which river?", "--json")
    document = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert (document["text"], document["answers"], document["stopped"]) == ("Danube", ["Danube"], "policy")
    assert document["cost_usd"] == pytest.approx(0.0000268)
    assert document["steps"][0]["decision"]["scores"] == ["inf", "inf"]


def test_a_question_can_come_from_standard_input_and_a_context_from_a_file(cli, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("Which river?\n"))
    (tmp_path / "text.txt").write_text("Vienna lies on the Danube.")
    question = json.loads(cli("ask", "-", "--context", "text.txt", "--json").out)["question"]
    assert (question["text"], question["context"]) == ("Which river?", "Vienna lies on the Danube.")


def changed(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "cascade.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("words", "change", "code", "says"),
    [
        (("x", "--context", "nothing.txt"), None, 2, "--context"),
        (("x", "--context", "binary.txt"), None, 2, "--context"),
        (("  ",), None, 2, "question"),
        (("x", "-c", "nothing.yaml"), None, 2, "cascade init"),
        (("x",), ("strategy:", "budget: {per_question: 0.0000001}\nstrategy:"), 4, "the cap"),
        (("x",), ("", "replay"), 5, "has no call"),
    ],
)
def test_how_a_question_ends_that_cannot_be_asked(cli, tmp_path, words, change, code, says):
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "log.jsonl").write_text("")
    if change == ("", "replay"):
        text = (tmp_path / "cascade.yaml").read_text()
        provider = text[text.index("provider:") : text.index("strategy:")]
        change = provider, "provider: replay:log.jsonl\n"
    if change is not None:
        changed(tmp_path, *change)
    ran = cli("ask", *words, "--json")
    assert (ran.code, ran.out, says in ran.err) == (code, "", True), ran.err


def test_no_answer_is_1_and_no_text(cli, tmp_path):
    changed(tmp_path, "'Answer: Danube'", "'Answer: N/A'")
    changed(tmp_path, "['Yes']", "['N/A']")
    ran = cli("ask", "x")
    assert ran.code == 1
    assert "no answer" in ran.err
    document = cli("ask", "x", "--json")
    assert document.code == 1
    assert json.loads(document.out)["text"] is None


def test_an_answer_cannot_write_markup_or_escapes(cli, tmp_path):
    changed(tmp_path, "'Answer: Danube'", '"Answer: [bold]Da\\e[31mnube[/nonsense]"')
    for flags in ((), ("--explain",)):
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


@pytest.mark.parametrize(
    ("given", "guarantee", "code", "says"),
    [
        (
            {"made_for": {"models": {"base": {"name": "other"}, "guide": {"name": "large"}}}},
            {},
            0,
            "no certificate: base is small; the certificate was made for other",
        ),
        (
            {"created": "2020-01-01", "expires": "2020-02-01"},
            {"required": True},
            3,
            "it expired on 2020-02-01; fit again",
        ),
        ({"segment": "law"}, {}, 0, "for the segment 'art'"),
    ],
)
def test_why_an_answer_is_not_certified_is_said_beside_it(cli, fake_config, given, guarantee, code, says):
    calibrated(fake_config, certificate(**given), **guarantee)
    ran = cli("ask", "Which river?", "--segment", "art")
    assert (ran.code, says in ran.err) == (code, True), ran.err


def test_json_holds_the_certificate_and_its_promise_in_words(cli, fake_config):
    calibrated(fake_config, certificate(segment="law", made_for=made_for(load(fake_config))))
    document = cli("ask", "Which river?", "--segment", "law", "--json").document
    proof = document["certificate"]
    assert (proof["promise"]["kind"], proof["n"], proof["losses"], proof["name"]) == ("coverage", 99, 9, "law")
    assert (bool(proof["statement"]), document["question"]["segment"]) == (True, "law")


def test_an_edited_certificate_is_2(cli, fake_config):
    calibrated(fake_config, certificate())
    file = fake_config.parent / "policy" / "certificate.json"
    file.write_text(file.read_text().replace('"n": 99', '"n": 999'))
    ran = cli("ask", "Which river?")
    assert (ran.code, ran.out) == (2, "")
    assert "certificate.json: sha256" in ran.err
