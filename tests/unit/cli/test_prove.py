"""`cascade prove` and `cascade compare`: what they read, print and end with."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from stores import postgres_url

import cascade
from cascade.api.logs import LogOptions
from cascade.api.reviews import review_location
from cascade.config import load
from cascade.conformal.promise import Promise
from cascade.review.pairs import compare
from cascade.review.reviews import Judgement, ReviewStore, Terms, read_reviews
from cascade.studies.study import default_promise
from unit.cli.certified import Row, hard_rows
from unit.plain import row
from unit.review.booking import call, episode, write
from unit.server.served import CONFIG

Cli = Callable[..., Any]
QUICK = ("--splits", "2")


@pytest.fixture
def log(written: Callable[..., str]) -> str:
    """Return a log of 90 questions."""
    return written(hard_rows(90, range(0, 30, 2)))


def ladder_rows(n: int, name: str = "made", *, labels: bool = True) -> list[Row]:
    """Return questions that a cheap model answers rightly on two of three, and a dear one always."""
    rows = []
    for k in range(n):
        for step, (model, cost) in enumerate((("small", 1_000), ("large", 9_000)), 1):
            right = step == 2 or k % 3 > 0
            called = {"source": "answer", "model": model, "horizon": 2, "step": step, "cost_nano_usd": cost}
            answered = {"correct": right if labels else None, "answer": "it" if right else "no", "dataset": name}
            signals = {"reply_mean_logprob": -0.05 if k % 3 > 0 else -0.9, "replay": {"purpose": "answer"}}
            rows.append(row(f"{name}{k}", question=f"{name} {k}?", signals=signals, **called, **answered))
    return rows


def test_a_configured_judge_has_the_price_of_adding_it(cli, written, tmp_path):
    rows = [{**row, "input_tokens": 100, "output_tokens": 20} for row in ladder_rows(60)]
    models = "{base: small, guide: large, judge: {model: j, kind: decision, price: {input: 1000, output: 0}}}"
    (tmp_path / "cascade.yaml").write_text(f"models: {models}\nprovider: fake\n")
    (study,) = cli("prove", written(rows), *QUICK, "--json").document["studies"]
    scored, judge = study["signals"]
    assert [(signal["name"], signal["is_held"]) for signal in (scored, judge)] == [("log-prob", True), ("judge", False)]
    assert (scored["usd_per_1000"], scored["break_even"]) == (0, pytest.approx(1 / 9))
    assert judge["adds_usd"] == pytest.approx(0.06 * judge["usd_per_1000"])
    assert 120 < judge["usd_per_1000"] < 400
    (tmp_path / "cascade.yaml").write_text("models: {base: 1")
    (study,) = cli("prove", written(rows), *QUICK, "--json").document["studies"]
    assert [signal["name"] for signal in study["signals"]] == ["log-prob"]


@pytest.mark.parametrize(
    ("command", "options", "kind", "risk", "confidence"),
    [
        ("prove", (), "regret", 0.05, 0.9),
        ("prove", ("--risk", "0.2"), "regret", 0.2, 0.9),
        ("prove", ("--promise", "coverage"), "coverage", 0.1, None),
        ("compare", ("--promise", "coverage", "--confidence", "0.8"), "coverage", 0.1, 0.8),
        ("prove", ("--promise", "agreement", "--risk", "0.3", "--confidence", "0.95"), "agreement", 0.3, 0.95),
        ("compare", ("--reference", "large"), "agreement", 0.05, 0.9),
    ],
)
def test_what_is_promised(cli, written, command, options, kind, risk, confidence):
    (study,) = cli(command, written(ladder_rows(60)), *QUICK, *options, "--json").document["studies"]
    assert study["promise"] == {"kind": kind, "risk": risk, "confidence": confidence}
    assert (study["requests"], study["splits"], study["methods"][-1]["name"]) == (60, 2, "cascade fit")


def test_the_saving_is_that_of_a_log_in_which_the_score_says_all(cli, written):
    (study,) = cli("prove", written(ladder_rows(300)), "--splits", "5", "--json").document["studies"]
    (fit,) = [method for method in study["methods"] if method["name"] == "cascade fit"]
    assert study["verdict"] == "saves"
    assert fit["saving"]["mean"] == pytest.approx(1 - (1 + 9 / 3) / 9, abs=0.1)  # it may give up 5 % of them too
    assert (study["why"]["auroc"], study["why"]["asked_again"]) == (1.0, pytest.approx(1 / 9))
    assert study["bound"] <= fit["cost_share"]["mean"]


@pytest.mark.parametrize("right", [True, False])
def test_a_model_that_is_never_right_is_noticed(cli, written, right):
    rows = [{**row, "correct": row["correct"] and right} for row in ladder_rows(30)]
    assert cli("prove", written(rows), *QUICK).err.count("o answer of ") == (0 if right else 2)


def test_five_lines_and_the_rest_on_request(cli, written):
    log = written(ladder_rows(300))
    short, long = (cli("prove", log, *QUICK, *more).out.splitlines() for more in ((), ("--details",)))
    assert len(short) == 10  # and the table of signals
    assert long[:10] == short
    assert len(long) > 20
    command = f"cascade fit {shlex.quote(str(log))} --promise regret --risk 0.05 --confidence 0.9 -o policy"
    assert short[4].partition("Next: ")[2] == command
    filtered = cli("prove", log, *QUICK, "--where", "dataset=made", "--models", "small,large").out.splitlines()[4]
    assert "--where dataset=made --models small,large --promise" in filtered
    assert cli("compare", log, *QUICK).out.splitlines()[:10] == short


def test_the_same_seed_prints_the_same_bytes_and_another_does_not(cli, log):
    first, again, other = (cli("prove", log, *QUICK, "--seed", seed, "--json").out for seed in ("1", "1", "2"))
    assert first == again
    assert first != other


def test_several_data_sets_are_studied_one_by_one(cli, written):
    path = written([*ladder_rows(40, "one"), *ladder_rows(60, "two")])
    studies = cli("prove", path, *QUICK, "--json").document["studies"]
    assert [(each["log"], each["requests"]) for each in studies] == [("one", 40), ("two", 60)]
    (only,) = cli("prove", path, *QUICK, "--where", "dataset=two", "--json").document["studies"]
    assert only == studies[1]


@pytest.mark.parametrize(
    "words",
    [
        ("prove", "LOG", "--promise", "regrets"),
        ("prove", "LOG", "--risk", "2"),
        ("prove", "LOG", "--risk", "nan"),
        ("prove", "LOG", "--confidence", "1.5"),
        ("prove", "LOG", "--splits", "0"),
        ("prove", "LOG", "--where", "split"),
        ("prove", "LOG", "--matcher", "exacd"),
        ("prove", "LOG", "--models", "small,huge"),
        ("prove", "LOG", "--label-rate", "0.5"),
        ("prove", "nowhere.jsonl"),
        ("compare", "LOG", "--networks", "0"),
        ("compare", "LOG", "--details"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_2_and_prints_nothing(cli, log, tmp_path, words):
    ran = cli(*(log if word == "LOG" else word for word in words), *(() if "--splits" in words else QUICK))
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_in_python_a_log_is_opened_once_and_a_promise_is_a_value(written):
    log = written(ladder_rows(200))
    opened = cascade.open_log(log, where={"dataset": "made"}, tell=lambda _: None)
    promise, messages = Promise("error", 0.3, 0.9), list[str]()
    proof = cascade.prove(opened, promise, splits=2, tell=messages.append)
    assert (proof.studies[0].promise, len(str(proof).splitlines())) == (promise, 10)
    assert f"{shlex.quote(str(log))} --where dataset=made --promise error --risk 0.3 --confidence 0.9" in str(proof)
    assert str(cascade.compare(opened, promise, splits=2, tell=messages.append)).startswith(str(proof))
    assert "<pre" in proof._repr_html_()
    with pytest.raises(cascade.UsageError, match="labels"):
        cascade.prove(opened.compared(), promise, tell=messages.append)


N, DIFFERS, HARMS = 400, 0.4, 0.25


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what makes a log and its reviews once, in a folder that it returns."""
    return cache(lambda *arguments: write_logged(tmp_path_factory.mktemp("logged"), *arguments))


@pytest.fixture
def logged(folder_of: Any, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Return what copies a log and its reviews into the test's folder."""

    def copied(rate: float = 1.0, ask: str = "regret", *, judged: bool = True) -> tuple[str, str]:
        shutil.copytree(folder_of(rate, ask, judged), tmp_path, dirs_exist_ok=True)
        return str(tmp_path / "log.jsonl"), str(tmp_path / "reviews.db")

    return copied


def write_logged(folder: Path, rate: float, ask: str, judged: bool) -> Path:
    """Write a log in which the cheap output differs on 40 % and harms on 10 %, and reviews of all that differs."""
    draw, rows, harms = random.Random(5), [], {}
    for number in range(N):
        differs = draw.random() < DIFFERS
        steps = episode(number, call(number + 5_000 if differs else number), call(number))
        for each in steps:
            each["signals"] = {**each["signals"], "doubt": draw.random()}
        harms[number] = draw.random() < HARMS
        rows += steps
    write(folder / "log.jsonl", rows)
    compared = compare(lambda: rows)
    terms = Terms(ask, compared.comparator, rate, "key")  # type: ignore[arg-type]
    with ReviewStore(folder / "reviews.db", terms) as file:
        for pair in compared.pairs if judged else ():
            bad = harms[int(pair.text.split()[2])]
            rights = (not bad, True) if ask == "regret" else (None, None)
            verdict = "reference" if bad else "equal"
            file.add(Judgement(*pair.id, "output", verdict, *rights, "ann", "2026-11-23T00:00:00Z"))  # type: ignore[arg-type]
    return folder


def proved(log: str, reviews: str, **options: Any) -> dict[str, Any]:
    opened = cascade.open_log(log, reviews=reviews, **options)
    proof = cascade.prove(opened, default_promise(opened.datasets[0], risk=0.3), splits=2).to_dict()
    (study,) = proof["studies"]
    return dict(study)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_proof_counts_what_people_found_lost(logged, rate):
    log, reviews = logged(rate)
    study = proved(log, reviews)
    assert study["promise"]["kind"] == "regret"
    base = next(row for row in study["methods"] if row["name"].endswith(" alone") and row["calls"] == 1 and row["risk"])
    assert base["risk"] == pytest.approx(DIFFERS * HARMS, abs=0.05)  # agreement alone would say 0.4
    assert study["why"]["first_right"] == pytest.approx(1 - DIFFERS * HARMS, abs=0.05)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_judgements_in_a_store_count_as_those_in_a_file(cli, logged, kind):
    log, file = logged()
    reviews = read_reviews(Path(file))
    with nullcontext(f"sqlite:///{file}") if kind == "sqlite" else postgres_url() as url:
        if kind == "postgresql":
            with ReviewStore(url, reviews.terms) as store:
                for each in reviews.judgements:
                    store.add(each)
        assert proved(log, url) == proved(log, file)
        ran = cli("prove", log, "--reviews", url, "--risk", "0.3", *QUICK)
        assert ran.code == 0, ran.err
        assert cli("review", log, "-o", url, "--ask", "regret", "--reviewer", "ann").code == 0  # all are judged
        assert LogOptions(log, reviews=[url]).files == (url,)
        assert review_location(load({**CONFIG, "server": {"review": {"log": log, "file": url}}})) == url
    assert not [each for each in Path(log).parent.iterdir() if ":" in each.name]


def test_a_command_shows_no_password_of_a_store_of_reviews():
    assert "secret" not in LogOptions("demo", reviews="postgresql://me:secret@host/db").command


def test_without_a_judgement_a_differing_output_is_lost(logged):
    log, reviews = logged(judged=False)
    messages: list[str] = []
    study = proved(log, reviews, tell=messages.append)
    base = next(row for row in study["methods"] if row["name"].endswith(" alone") and row["calls"] == 1 and row["risk"])
    assert base["risk"] == pytest.approx(DIFFERS, abs=0.06)
    assert any("lack a judgement, which counts as a loss" in message for message in messages)


def test_what_was_not_asked_cannot_be_proved(cli, logged):
    log, reviews = logged(ask="preference")
    ran = cli("prove", log, "--reviews", reviews, "--promise", "regret")
    assert (ran.code, "needs right or wrong for both outputs" in ran.err) == (2, True)
    assert cli("prove", log, "--label-rate", "0.5").code == 2
    assert proved(log, reviews)["promise"]["kind"] == "preference"


def test_compare_and_evaluate_read_what_was_drawn(cli, logged):
    log, reviews = logged(0.5)
    ran = cli("compare", log, "--reviews", reviews, "--splits", "2", "--json")
    assert ran.code == 0, ran.err
    (study,) = json.loads(ran.out)["studies"]
    assert study["requests"] == pytest.approx(N / 2, abs=50)
    assert study["why"]["first_right"] == pytest.approx(1 - DIFFERS * HARMS, abs=0.06)
    ran = cli("evaluate", log, "--reviews", reviews, "--policy", "{kind: fixed, depth: 1}", "--json")
    assert ran.code == 0, ran.err
    (report,) = json.loads(ran.out)["reports"]
    assert report["figures"]["policy"]["right"][0] == pytest.approx(1 - DIFFERS * HARMS, abs=0.06)


def test_a_policy_is_held_to_its_promise_by_what_people_found(cli, logged):
    log, reviews = logged(0.5)
    promised = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")
    fit = ("fit", log, *promised, "--policy", "{kind: threshold, signal: doubt, sign: 1}", "-o", "policy")
    assert cli(*fit, "--reviews", reviews).code == 0
    ran = cli("evaluate", log, "--reviews", reviews, "--policy", "policy", "--json")
    (report,) = json.loads(ran.out)["reports"]
    assert report["promise"]["kind"] == "regret"
    assert 0 < report["figures"]["policy"]["loss"][0] <= 0.2
    assert 0 < report["figures"]["policy"]["cost_share"][0] < 1
