"""`cascade verify`: what it checks, prints and ends with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.api.fitting import fit
from cascade.conformal.monitor import Monitor
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError
from cascade.fitting.fit import FitSettings
from cascade.logs.files import write_rows
from cascade.policies.directory import PolicyDirectory
from cascade.policies.policy import Threshold
from cascade.reports.evaluation import audits_of
from unit.cli.certified import POLICY, Row, hard_rows

Cli = Callable[..., Any]
PROMISED = ("--promise", "coverage", "--risk", "0.1")


def write(path: Path, rows: Sequence[Row]) -> str:
    write_rows(path, rows)
    return str(path)


@pytest.fixture(scope="module")
def fitted_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log of 99 questions, and one with a log of 200 requests of which the small model loses
    four; each has a policy directory made of it."""
    folder, settings = tmp_path_factory.mktemp("made"), FitSettings(policy=Threshold("p_yes", -1.0, None))
    for name, rows, promise, given in (
        ("hard", hard_rows(99, range(0, 40, 2)), Promise("coverage", 0.1), settings),
        ("plain", rows_of(200, lost=range(0, 200, 50)), Promise("regret", 0.1, 0.9), FitSettings()),
    ):
        (folder / name).mkdir()
        path = write(folder / name / "log.jsonl", list(rows))
        fit(path, promise, given, output=folder / name / "policy", tell=lambda _: None)
    return folder


@pytest.fixture
def log(fitted_logs: Path, tmp_path: Path) -> str:
    """Return the log of 99 questions, with its policy directory beside it."""
    shutil.copytree(fitted_logs / "hard", tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "log.jsonl")


def fresh(path: Path, n: int, hard: Sequence[int]) -> str:
    """Write questions that the policy was not calibrated on."""
    return write(path, hard_rows(n, hard, about="fresh"))


def checks(ran: Any) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(ran.out)["checks"]}


def test_the_same_data_bear_it_out(cli, log):
    ran = cli("verify", "policy", log)
    assert (ran.code, ran.err) == (0, "")
    assert all(line.split()[0] == "ok" for line in ran.out.splitlines())
    by_name = checks(cli("verify", "policy", log, "--json"))
    assert {"file", "expiry", "cascade", "seen", "threshold"} <= set(by_name)
    assert all(check["ok"] for check in by_name.values())


def test_an_edited_certificate_is_3_with_the_reason(cli, log, tmp_path):
    path = tmp_path / "policy" / "certificate.json"
    path.write_text(path.read_text().replace('"n": 99', '"n": 999'))
    ran = cli("verify", "policy", log)
    assert ran.code == 3
    assert "the rest of the file was changed" in " ".join(ran.out.split())
    assert ran.err.count("error:") == 1
    assert json.loads(cli("verify", "policy", log, "--json").out)["ok"] is False


@pytest.mark.parametrize(
    ("forged", "check"),
    [
        ({"n": 9_999}, "threshold"),
        ({"unit": "conversation"}, "threshold"),
        ({"reference": "another"}, "reference"),
        ({"attempts": 7}, "attempts"),
        ({}, "threshold"),  # the requests that put points in order
    ],
)
def test_what_was_forged_with_its_hashes_is_not_borne_out(cli, log, tmp_path, forged, check):
    """The hashes are no signature: what the log does not prove is not called proven."""
    read = PolicyDirectory.read(tmp_path / "policy")
    read = read.certified(*[replace(each, **forged) for each in read.certificates.values()])
    if not forged:
        read = replace(read, requests=replace(read.requests, chose=("0123456789abcdef",)))
    read.write(tmp_path / "forged")
    ran = cli("verify", "forged", log, "--json")
    assert ran.code == 3
    assert [name for name, result in checks(ran).items() if not result["ok"]] == [check]


def test_a_certificate_may_spend_no_more_than_its_fit(cli, tmp_path):
    path = write(tmp_path / "log.jsonl", hard_rows(99, range(0, 40, 2)))
    promised = ("--promise", "coverage", "--risk", "0.4", "--confidence", "0.9", "--policy", POLICY)
    for seed, folder in (("0", "first"), ("1", "second")):
        assert cli("fit", path, *promised, "--seed", seed, "-o", folder).code == 0
    read = PolicyDirectory.read("second")
    assert [each.attempts for each in read.certificates.values()] == [2]
    for folder, changes, failed in (
        ("whole", {"level": 0.1}, {"threshold", "attempts"}),
        ("one", {"attempts": 1}, set()),  # the first might have spent as much, and more
        ("none", {"attempts": None}, {"attempts"}),
    ):
        read.certified(*[replace(each, **changes) for each in read.certificates.values()]).write(folder)
        ran = cli("verify", folder, path, "--json")
        assert {name for name, result in checks(ran).items() if not result["ok"]} - {"threshold"} == failed - {
            "threshold"
        }


@pytest.mark.parametrize("grouped", [False, True])
def test_other_data_under_the_same_questions_are_3(cli, tmp_path, grouped):
    for name, hard in (("log", range(0, 40, 2)), ("changed", range(0, 42, 2))):
        rows = hard_rows(99, hard)
        names = [*dict.fromkeys(row["episode_id"] for row in rows)]
        groups = {episode: f"group {number // 2}" if grouped else None for number, episode in enumerate(names)}
        write(tmp_path / f"{name}.jsonl", [{**row, "group": groups[row["episode_id"]]} for row in rows])
    assert cli("fit", "log.jsonl", *PROMISED, "--policy", POLICY, "-o", "policy").code == 0
    assert cli("verify", "policy", "log.jsonl").code == 0
    ran = cli("verify", "policy", "changed.jsonl", "--json")
    assert (ran.code, checks(ran)["threshold"]["ok"]) == (3, False)


def test_fresh_questions_refute_or_do_not(cli, log, tmp_path):
    borne_out = cli("verify", "policy", fresh(tmp_path / "kept.jsonl", 200, range(0, 80, 4)), "--json")
    assert borne_out.code == 0
    assert checks(borne_out)["fresh"]["text"].startswith("10 of 200 fresh requests lost")
    broken = cli("verify", "policy", fresh(tmp_path / "broken.jsonl", 400, range(400)), "--json")
    assert broken.code == 3
    assert checks(broken)["fresh"]["text"].startswith("74 of 400 fresh requests lost")
    assert "refuted" in checks(broken)["fresh"]["text"]


def test_fewer_losses_than_a_promise_on_average_allows_promise_no_more(cli, tmp_path):
    log, later = write(tmp_path / "log.jsonl", hard_rows(99, range(5))), fresh(tmp_path / "later.jsonl", 200, range(24))
    assert cli("fit", log, *PROMISED, "--policy", POLICY, "-o", "policy").code == 0
    assert checks(cli("verify", "policy", later, "--json"))["fresh"]["ok"]
    (audits,) = json.loads(cli("evaluate", later, "--policy", "policy", "--audits", "--json").out)["reports"]
    assert audits["certificates"][0]["bound"] == Monitor.start(risk=0.1, n=99, k=10).risk


def test_an_expired_one_and_another_model_are_3(cli, tmp_path, monkeypatch):
    rows = hard_rows(99, range(0, 40, 2))
    log = write(tmp_path / "log.jsonl", rows)
    assert cli("fit", log, *PROMISED, "--policy", POLICY, "-o", "policy", "--expires-days", "0").code == 0
    assert cli("verify", "policy", log).code == 0  # until the end of the day
    other = write(tmp_path / "other.jsonl", [row | {"model": "new" + row["model"]} for row in rows])
    ran = cli("verify", "policy", other, "--json")
    assert ran.code == 3
    assert "newsmall" in checks(ran)["cascade"]["text"]


def test_a_configuration_is_compared(cli, log, tmp_path):
    (tmp_path / "cascade.yaml").write_text(
        "models: {base: small, guide: huge}\nstrategy: {kind: ladder, models: [base, guide]}\nprovider: fake\npolicy: ./policy\n"
    )
    ran = cli("verify", "policy", log, "--config", "cascade.yaml", "--json")
    assert ran.code == 3
    assert (
        "the list of models is small, then huge; the certificate was made for small, then large"
        in checks(ran)["cascade"]["text"]
    )


@pytest.mark.parametrize(
    ("guide", "options", "names_it"),
    [("large", (), True), ("large", ("--config", "cascade.yaml"), False), ("huge", (), False)],
)
def test_a_fit_without_the_configuration_that_would_serve_says_so(cli, log, tmp_path, guide, options, names_it):
    ladder = "strategy: {kind: ladder, models: [base, guide]}"
    (tmp_path / "cascade.yaml").write_text(f"models: {{base: small, guide: {guide}}}\n{ladder}\nprovider: fake\n")
    ran = cli("fit", log, *PROMISED, "--policy", POLICY, "-o", "served", *options)
    assert (ran.code, "cascade.yaml" in ran.err) == (0, names_it)


def test_a_log_at_other_prices_than_configured_is_3(cli, tmp_path):
    tokens = {"input_tokens": 500, "output_tokens": 500, "cost_nano_usd": 1_000_000}
    log = write(tmp_path / "log.jsonl", hard_rows(99, range(0, 40, 2), **tokens))
    assert cli("fit", log, *PROMISED, "--policy", POLICY, "-o", "policy").code == 0
    priced = "models:\n  base: {{model: small, price: {{input: {0}, output: {0}}}}}\n  guide: {{model: large}}\n"
    rest = "strategy: {kind: ladder, models: [base, guide]}\nprovider: fake\npolicy: ./policy\n"
    for price, ok in ((1, True), (3, False)):
        (tmp_path / "cascade.yaml").write_text(priced.format(price) + rest)
        ran = cli("verify", "policy", log, "--config", "cascade.yaml", "--json")
        assert checks(ran)["prices"]["ok"] is ok
        assert ran.code == (0 if ok else 3)
        assert ok is ("of 99 calls" in checks(ran)["prices"]["text"])
    assert "costs 0.003 USD at the configured price" in checks(ran)["prices"]["text"]
    assert "prices" not in checks(cli("verify", "policy", log, "--json"))


def test_what_is_no_policy_directory_is_2(cli, log, tmp_path):
    assert cli("verify", "nowhere", log).code == 2
    assert cli("verify", "policy", "nowhere.jsonl").code == 2
    assert cli("verify", str(tmp_path / "log.jsonl"), log).code == 2
    assert cli("verify", str(tmp_path), log).code == 3


BY_REPLY = "{kind: threshold, signal: reply_mean_logprob, threshold: 0.5}"


def rows_of(
    n: int, *, about: str = "", lost: Collection[int] = (), segments: tuple[str | None, ...] = (None,), **columns: Any
) -> Iterator[dict[str, Any]]:
    """Yield a ladder of two, asked by the minute: the small one is sure of every second request, and right there.

    Of the `lost` requests it is sure, and wrong. The large one is always right, at ten times the price.
    """
    for k in range(n):
        sure, right = k in lost or k % 2 == 0, k not in lost and k % 2 == 0
        request = {"episode_id": f"{about}{k}", "question": f"Which is {about}{k}?", "horizon": 2, "candidate": 0}
        request |= {"dataset": "log_of_evaluate", "created_at": f"2026-11-21T{k // 60:02}:{k % 60:02}:00Z"}
        request |= {"segment": segments[k % len(segments)]} | columns
        small = {"step": 1, "source": "small", "model": "small", "answer": "yes" if right else "no", "correct": right}
        small |= {"cost_nano_usd": 1_000, "signals": {"reply_mean_logprob": -0.1 if sure else -2.0}}
        large = {"step": 2, "source": "large", "model": "large", "answer": "yes", "correct": True}
        yield request | small
        yield request | large | {"cost_nano_usd": 10_000, "signals": {"reply_mean_logprob": -0.1}}


@pytest.fixture
def log_of_evaluate(fitted_logs: Path, tmp_path: Path) -> str:
    """Return the log of 200 requests, with its policy directory beside it."""
    shutil.copytree(fitted_logs / "plain", tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "log.jsonl")


@pytest.fixture
def policy(log_of_evaluate: str) -> str:
    return str(Path(log_of_evaluate).parent / "policy")


def report(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    (document,) = json.loads(ran.out)["reports"]
    return dict(document)


@pytest.mark.parametrize(
    ("given", "cost", "lost", "calls"),
    [
        ("{kind: fixed}", 1.0, 104 / 200, 1.0),
        ("{kind: fixed, depth: 2}", 11.0, 0.0, 2.0),
        (BY_REPLY, 1 + 10 * 100 / 200, 4 / 200, 1 + 100 / 200),
    ],
)
def test_the_figures_are_those_of_the_log(cli, log_of_evaluate, given, cost, lost, calls):
    result = report(cli("evaluate", log_of_evaluate, "--policy", given, "--json"))
    assert (result["requests"], result["lacking"], result["seen"]) == (200, 0, 0)
    figures, alone = result["figures"]["policy"], result["figures"]["reference alone"]
    for name, wanted in (("cost_share", cost / 10), ("loss", lost), ("right", 1 - lost), ("length", calls)):
        mean, low, high = figures[name]
        assert mean == pytest.approx(wanted)
        assert (
            low is high is None if name == "loss" and not lost else low is None or low - 1e-9 <= wanted <= high + 1e-9
        )
    assert (alone["loss"][0], alone["cost_usd"][0]) == (0.0, pytest.approx(1e-5))
    assert result["figures"]["small alone"]["length"][0] == 1.0


@pytest.mark.parametrize(("label", "row"), [({}, "right"), ({"correct": None}, "same")])
def test_equal_to_the_reference_is_not_called_right(cli, tmp_path, label, row):
    write_rows(tmp_path / "log.jsonl", [each | label for each in rows_of(40)])
    lines = cli("evaluate", "log.jsonl", "--policy", "{kind: fixed}").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("right ", "same "))] == [row]


def test_what_the_log_does_not_say_is_left_out_and_never_zero(cli, tmp_path):
    rows = [row | {"cost_nano_usd": None} for row in rows_of(40)]
    write_rows(tmp_path / "log.jsonl", [row for row in rows if row["step"] == 1 or int(row["episode_id"]) > 9])
    result = report(cli("evaluate", "log.jsonl", "--policy", "{kind: fixed, depth: 2}", "--json"))
    assert result["figures"]["policy"]["cost_usd"] == result["figures"]["policy"]["cost_share"] == [None, None, None]
    assert result["requests"] + result["lacking"] in {30, 40}
    assert result["figures"]["policy"]["length"][0] == 2.0


def test_few_groups_have_no_interval(cli, tmp_path):
    write_rows(tmp_path / "log.jsonl", rows_of(5))
    result = report(cli("evaluate", "log.jsonl", "--policy", "{kind: fixed}", "--json"))
    assert result["figures"]["policy"]["loss"] == [pytest.approx(0.4), None, None]


def test_a_directory_is_played_as_it_serves_and_flattered_by_its_own_requests(cli, log_of_evaluate, policy, tmp_path):
    own = report(cli("evaluate", log_of_evaluate, "--policy", policy, "--json"))
    assert (own["seen"], own["fresh_loss"], own["promise"]["kind"]) == (200, None, "regret")
    assert own["figures"]["policy"]["cost_share"][0] == pytest.approx(0.6)
    write_rows(
        tmp_path / "more.jsonl", [*rows_of(200, lost=range(0, 200, 50)), *rows_of(40, about="new ", lost=range(10))]
    )
    both = report(cli("evaluate", "more.jsonl", "--policy", policy, "--json"))
    assert (both["requests"], both["seen"], both["fresh_loss"]) == (240, 200, pytest.approx(10 / 40))


def test_levels_are_played_one_by_one(cli, log_of_evaluate, tmp_path):
    levels = FitSettings(levels={"low": 0.5, "high": 0.1})
    fit(log_of_evaluate, Promise("regret", 0.1, 0.9), levels, output=tmp_path / "levels", tell=lambda _: None)
    result = report(cli("evaluate", log_of_evaluate, "--policy", "levels", "--json"))
    assert {"level low", "level high"} <= set(result["figures"])
    audits = report(cli("evaluate", log_of_evaluate, "--policy", "levels", "--audits", "--json"))
    assert {(each["certificate"], each["alarm_at"]) for each in audits["certificates"]} == {("low", 40), ("high", 40)}


def test_a_segment_without_a_certificate_and_a_level_at_which_nothing_is_proven_ask_the_reference_at_once(
    cli, tmp_path
):
    log = write(tmp_path / "log.jsonl", [*rows_of(200, segments=("law",)), *rows_of(100, about="no ")])
    promise = Promise("regret", 0.1, 0.9)
    done = fit(log, promise, FitSettings(by_segment=True), output=tmp_path / "parts", tell=lambda _: None)
    (certificate,) = PolicyDirectory.read(tmp_path / "parts").certificates.values()
    result = report(cli("evaluate", log, "--policy", "parts", "--json"))
    assert result["figures"]["policy"]["cost_share"][0] == done.to_dict()["cost_share"] == pytest.approx(2.2 / 3)
    assert result["seen"] == certificate.n == 200
    levels = FitSettings(levels={"low": 0.1, "high": 0.0001})
    fit(log, promise, levels, output=tmp_path / "levels", tell=lambda _: None)
    figures = report(cli("evaluate", log, "--policy", "levels", "--json"))["figures"]
    assert figures["level high"]["cost_share"][0] == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "nowhere.yaml"), "nowhere.yaml"),
        (("--policy", "{kind: thresold}"), "thresold"),
        (("--policy", "{kind: uala, threshold: -1}"), "threshold"),
        (("--policy", "{kind: threshold"), "--policy"),
        (("--policy", "{kind: uala}"), "p_yes"),
        (("--policy", "{kind: fixed}", "--audits"), "policy directory"),
        (("--policy", "{kind: fixed}", "--level", "3"), "level"),
        (("--policy", "{kind: fixed}", "--where", "split"), "COLUMN=VALUE"),
        (("--policy", "{kind: fixed}", "--where", "dataste=log"), "did you mean dataset?"),
        (("--policy", "{kind: fixed}", "--where", "step=1"), "cut episodes apart"),
    ],
)
def test_what_cannot_be_evaluated_is_2(cli, log_of_evaluate, arguments, says):
    ran = cli("evaluate", log_of_evaluate, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in " ".join(ran.err.split())


def test_a_policy_of_another_plan_is_2(cli, policy):
    assert cli("evaluate", "demo-ladder", "--policy", policy).code == 2
    assert cli("evaluate", "demo-ladder", "--policy", policy, "--audits").code == 2


@pytest.mark.parametrize(("lost", "alarmed"), [(2, False), (60, True)])
def test_audits_alarm_where_more_is_lost_than_promised(cli, policy, tmp_path, lost, alarmed):
    late = rows_of(100, about="late ", created_at="2027-01-01T00:00:00Z", split="audit")
    write_rows(
        tmp_path / "traces.jsonl",
        [*late, *rows_of(100, about="early ", lost=range(lost), split="audit"), *rows_of(50, about="plain ")],
    )
    ran = cli("evaluate", "traces.jsonl", "--policy", policy, "--audits", "--json")
    assert ran.code == (NotCertifiedError.exit_code if alarmed else 0)
    (result,) = json.loads(ran.out)["reports"]
    (monitor,) = result["certificates"]
    assert (result["alarmed"], result["not_audited"], result["undated"], result["seen"]) == (alarmed, 50, 0, 0)
    assert (monitor["audits"], monitor["lost"], monitor["unknown"], monitor["bound"]) == (200, lost, 0, 0.1)
    assert (monitor["alarm_after"] or 0) < 60  # the early ones come first, in whatever order they stand


@pytest.mark.parametrize(("split", "later", "code"), [(None, 0, NotCertifiedError.exit_code), ("audit", 3, 0)])
def test_an_audit_counts_for_its_segment_and_once_a_group_of_marked_ones_the_first(cli, tmp_path, split, later, code):
    write_rows(tmp_path / "log.jsonl", rows_of(400, segments=("a", "a", "b", "b")))
    fit("log.jsonl", Promise("regret", 0.1, 0.9), FitSettings(by_segment=True), output="policy", tell=lambda _: None)
    lost = [number for number in range(120) if number % 6 >= later]
    audits = [
        row | {"group": f"user {int(row['episode_id'].split()[1]) // 6}"}
        for row in rows_of(120, about="new ", lost=lost, segments=("a", "b", "new"), split=split)
    ]
    audits[0]["answer"] = None
    write_rows(tmp_path / "audits.jsonl", audits)
    ran = cli("evaluate", "audits.jsonl", "--policy", "policy", "--audits", "--json")
    each = {monitor["certificate"]: monitor for monitor in json.loads(ran.out)["reports"][0]["certificates"]}
    assert set(each) == {"a", "b"}
    assert {monitor["audits"] + monitor["unknown"] for monitor in each.values()} == {20}
    assert {monitor["alarm_at"] for monitor in each.values()} == {40}
    assert ran.code == code


def test_audits_stand_in_the_order_of_asking_whatever_their_data_set():
    def row(name: str, created_at: str | None, dataset: str | None = "d", split: str | None = None) -> dict[str, Any]:
        return {"dataset": dataset, "episode_id": name, "created_at": created_at, "split": split}

    late, early = row("late", "2026-11-21T10:00:00Z"), row("early", "2026-11-21T10:00:00+02:00", None)
    audits = audits_of([late, row("odd", "yesterday"), early, row("late", None)])
    assert [each["episode_id"].split()[-1] for each in audits.rows] == ["odd", "early", "late", "late"]
    assert (audits.undated, audits.others, {each["dataset"] for each in audits.rows}) == (1, None, {"audits"})
    marked = audits_of([late, early | {"split": "audit"}])
    assert (len(marked.rows), marked.others) == (1, 1)
