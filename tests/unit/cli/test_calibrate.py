"""`cascade calibrate`: what it is asked, what it writes, prints and ends with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.api.promises import GuaranteeOptions, wanted_guarantee
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import write
from cascade.policies.reading import read
from unit.cli.certified import LADDER_POLICY, POLICY, hard_rows, ladder_rows
from unit.cli.documents import document, words

Cli = Callable[..., Any]
Write = Callable[..., str]
NOTHING = GuaranteeOptions()


@pytest.fixture
def log(written: Write) -> str:
    """Return a log of 99 questions, 20 of them answered rightly by the second step alone."""
    return written(hard_rows(99, range(0, 40, 2)))


@pytest.fixture
def ladder(written: Write) -> str:
    """Return the log that the ladder of `CONFIG` would have written."""
    return written(ladder_rows(99, range(0, 40, 2)))


# --- what is written and printed ---


def test_the_threshold_is_the_kth_critical_value(cli: Cli, log: str, tmp_path: Path) -> None:
    ran = cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--json")
    found = document(ran)
    (group,) = found["segments"]
    # k = ⌊0.1 · 100⌋ = 10; the critical values are the doubts 1/100, 3/100, …
    assert group["kappa"] == pytest.approx(0.19)
    assert (group["certificate"]["k"], group["certificate"]["n"], group["misses"]) == (10, 99, 9)
    assert found["realised"]["coverage"] == pytest.approx(90 / 99)
    assert found["everything"]["coverage"] == 1
    # 18 questions stop at a doubt below 0.19, for 0.001 USD each; the others pay 0.003
    assert found["realised"]["cost_usd"] == pytest.approx((18 * 0.001 + 81 * 0.003) / 99)
    assert found["everything"]["cost_usd"] == pytest.approx(0.003)
    held = read(tmp_path / "policy")
    assert held.policy["kind"] == "threshold"
    assert held.certificates[0].kappa == pytest.approx(0.19)
    assert len(held.questions) == 99


@pytest.mark.parametrize("width", [80, 130])
def test_no_line_is_wider_than_the_terminal(
    cli: Cli, written: Write, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    log = written(hard_rows(99, range(0, 40, 2), segment="tenant"))
    for more in (["--guarantee", "error", "--alpha", "0.3", "--abstain"], ["--by-segment"], []):
        ran = cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--force", *more)
        assert ran.code == 0, ran.err
        assert max(map(len, ran.out.splitlines())) <= width


def test_the_same_run_writes_the_same_bytes(cli: Cli, log: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cli("calibrate", log, "--policy", POLICY, "-o", name, "--guarantee", "error", "--alpha", "0.4", "--seed", "3")
    for file in ("policy.json", "certificate.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_hostile_names_do_not_reach_the_terminal(cli: Cli, written: Write) -> None:
    rows = hard_rows(99, range(0, 40, 2), segment="[red]x[/red]\x1b[31m\n[/]")
    ran = cli("calibrate", written(rows), "--policy", POLICY, "-o", "policy", "--by-segment")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert "[red]x[/red][31m [/] " in ran.out  # on one line


# --- every kind of promise ---


@pytest.mark.parametrize(
    ("options", "kind", "alpha", "delta"),
    [
        ([], "coverage", 0.1, None),
        (["--delta", "0.05"], "coverage", 0.1, 0.05),
        (["--guarantee", "error", "--alpha", "0.3"], "error", 0.3, 0.1),
        (["--guarantee", "error", "--alpha", "0.3", "--delta", "0.2", "--abstain"], "error", 0.3, 0.2),
        (["--guarantee", "regret", "--alpha", "0.3"], "regret", 0.3, 0.1),
    ],
)
def test_every_kind_is_certified_and_said(
    cli: Cli, log: str, options: list[str], kind: str, alpha: float | None, delta: float | None
) -> None:
    found = document(cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--json", *options))
    certificate = found["segments"][0]["certificate"]
    assert (certificate["kind"], certificate["alpha"], certificate["delta"]) == (kind, alpha, delta)
    assert found["segments"][0]["statement"]
    assert cli("verify", "policy", log).code == 0


def test_a_certificate_a_segment_that_is_large_enough(cli: Cli, written: Write) -> None:
    rows = hard_rows(120, range(0, 60, 3))
    for one in rows:
        number = int(one["episode_id"][1:])
        one["segment"] = "even" if number % 2 == 0 and number < 100 else "odd" if number < 100 else f"small {number}"
    log = written(rows)
    ran = cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--by-segment")
    assert ran.code == 0, ran.err
    first = [line.split()[0] for line in ran.out.splitlines() if line.startswith(("even", "odd", "all"))]
    assert first == ["even", "odd", "all", "all"]  # all certified, all is kept
    segments = {one.segment: one for one in read("policy").certificates}
    assert {name: one.n for name, one in segments.items()} == {"even": 50, "odd": 50}
    assert "(1), small 101 (1), small 102 (1), small 103 (1), small 104 (1) and 15 more" in " ".join(ran.out.split())
    found = document(cli("calibrate", log, "--policy", POLICY, "-o", "other", "--by-segment", "--json"))
    assert found["too_small"] == [{"segment": f"small {at}", "n": 1, "needed_n": 9} for at in range(100, 120)]
    assert found["realised"]["n"] == 100


# --- 3: not certified ---


def test_too_few_questions_end_with_3_and_the_number(cli: Cli, written: Write, tmp_path: Path) -> None:
    few = written(hard_rows(8, [0]))
    ran = cli("calibrate", few, "--policy", POLICY, "-o", "policy")
    assert ran.code == 3
    assert "8 calibration questions are too few. 9 would be enough" in ran.err
    assert ran.err.endswith(" Or keep every answer of every step: --allow-everything.\n")
    assert ran.out == ""
    assert not (tmp_path / "policy").exists()
    assert (
        cli("calibrate", few, "--policy", POLICY, "-o", "policy", "--delta", "0.1").err.count("22 would be enough") == 1
    )
    kept = cli("calibrate", few, "--policy", POLICY, "-o", "policy", "--allow-everything")
    assert kept.code == 0
    assert "all kept" in kept.out
    assert read(tmp_path / "policy").certificates[0].keeps_everything


# --- 2: cannot be asked so ---


CALIBRATE, FIT = ("calibrate", "--policy", POLICY), ("fit",)
WRONG = [
    (["--alpha", "1.5"], "alpha is 1.5"),
    (["--guarantee", "coverge"], "did you mean coverage"),
    (["--abstain"], "Abstaining goes with regret, error, agreement and preference"),
    (["--guarantee", "error", "--by-segment"], "Segments go with coverage"),
    (["--where", "step=1"], "cut episodes apart"),
]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        *((command, *wrong) for wrong in WRONG for command in (CALIBRATE, FIT)),
        (CALIBRATE, ["--alpha", "nan"], "alpha is nan"),
        (CALIBRATE, ["--delta", "0"], "delta is 0"),
        (CALIBRATE, ["--where", "dataset=none"], "has dataset=none; the column's values: made"),
        (FIT, ["--policy", "treshold"], "did you mean threshold"),
        (FIT, ["--calibration-share", "1.5"], "must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_asked_is_2_in_one_message(
    cli: Cli, log: str, command: tuple[str, ...], options: list[str], said: str
) -> None:
    ran = cli(command[0], log, *command[1:], "-o", "policy", *options)
    assert (ran.code, ran.out, ran.err.count("error:")) == (2, "", 1)
    assert said.lower() in words(ran.err).lower()
    assert not Path("policy").exists()


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("nowhere", "There is no file or folder 'nowhere'"),
        (".", "not a policy directory: it has no policy.json"),
        ("there/policy.json", "name the directory: --policy there"),
        ("{kind: tresholt}", "did you mean threshold"),
        ("{kind: threshold}", "keep: both"),
        ("{kind: threshold, keep: both, when: reply_logprob}", "has no such signal"),
        ("{kind: directory, path: nowhere}", "not a policy directory"),
    ],
)
def test_a_policy_that_cannot_be_calibrated_is_2(cli: Cli, log: str, tmp_path: Path, policy: str, said: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "policy.json").write_text("{}")
    ran = cli("calibrate", log, "--policy", policy, "-o", "policy")
    assert ran.code == 2
    assert said in ran.err


def test_without_a_place_to_write_it_is_2(cli: Cli, log: str) -> None:
    ran = cli("calibrate", log, "--policy", POLICY)
    assert (ran.code, ran.err.count("-o policy")) == (2, 1)


def test_a_file_is_no_place_to_write(cli: Cli, log: str, tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("mine")
    assert cli("calibrate", log, "--policy", POLICY, "-o", "policy").code == 2
    assert (tmp_path / "policy").read_text() == "mine"


def test_another_policy_is_not_written_over(cli: Cli, log: str, tmp_path: Path) -> None:
    cli("calibrate", log, "--policy", POLICY, "-o", "policy")
    before = (tmp_path / "policy" / "policy.json").read_bytes()
    ran = cli("calibrate", log, "--policy", "{kind: threshold, keep: both}", "-o", "policy")
    assert ran.code == 2
    assert "holds a policy already" in ran.err
    assert (tmp_path / "policy" / "policy.json").read_bytes() == before
    assert cli("calibrate", log, "--policy", "{kind: threshold, keep: both}", "-o", "policy", "--force").code == 0
    assert (tmp_path / "policy" / "policy.json").read_bytes() != before


def test_a_policy_of_another_program_is_not_written_over(cli: Cli, log: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "policy.json").write_text('{"Version": "2012-10-17"}', "utf-8")
    ran = cli("calibrate", log, "--policy", POLICY, "-o", "other")
    assert (ran.code, "that cascade did not write" in ran.err) == (2, True)


# --- again ---


def test_a_directory_is_calibrated_again_in_place(cli: Cli, log: str, written: Write, tmp_path: Path) -> None:
    cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--alpha", "0.2", "--delta", "0.1")
    before = (tmp_path / "policy" / "policy.json").read_bytes()
    newer = written(hard_rows(60, range(0, 30, 2), about="newer"), "newer.jsonl")
    ran = cli("calibrate", newer, "--policy", "policy")
    assert ran.code == 0, ran.err
    assert "promised as before: coverage, alpha 0.2, delta 0.1" in ran.err
    assert (tmp_path / "policy" / "policy.json").read_bytes() == before
    (certificate,) = read(tmp_path / "policy").certificates
    assert (certificate.n, certificate.alpha, certificate.delta) == (60, 0.2, 0.1)
    ran = cli("calibrate", newer, "--policy", "policy", "--alpha", "0.25")
    assert "promised before: coverage, alpha 0.2, delta 0.1; changed: alpha 0.2 -> 0.25" in ran.err
    assert read(tmp_path / "policy").certificates[0].delta == 0.1
    ran = cli("calibrate", newer, "--policy", "policy", "--guarantee", "coverage", "--alpha", "0.25")
    assert "changed: delta 0.1 -> none" in ran.err
    assert read(tmp_path / "policy").certificates[0].delta is None


def test_every_part_that_is_not_given_stays(cli: Cli, log: str, tmp_path: Path) -> None:
    options = ["--guarantee", "error", "--alpha", "0.4", "--delta", "0.2", "--abstain", "--expires-days", "30"]
    cli("calibrate", log, "--policy", POLICY, "-o", "policy", *options)
    ran = cli("calibrate", log, "--policy", "policy", "--alpha", "0.45")
    assert ran.code == 0, ran.err
    assert ran.err.strip().endswith("abstaining, days 30; changed: alpha 0.4 -> 0.45")
    held = read(tmp_path / "policy")
    assert held.asked == Guarantee("error", 0.45, 0.2, abstain=True)
    assert "It is valid until" in ran.out
    ran = cli("calibrate", log, "--policy", "policy", "--by-segment")
    assert (ran.code, ran.err.count("--guarantee KIND replaces the whole promise")) == (2, 1)


def test_what_it_was_made_for_stays_while_the_models_agree(
    cli: Cli, ladder: str, written: Write, tmp_path: Path
) -> None:
    (tmp_path / "cascade.yaml").write_text(CONFIG)
    cli("calibrate", ladder, "--policy", "cascade.yaml", "-o", "policy")
    before = read(tmp_path / "policy").certificates[0].made_for
    assert cli("calibrate", ladder, "--policy", "policy", "--alpha", "0.2").code == 0
    assert read(tmp_path / "policy").certificates[0].made_for == before
    other = [one | {"model": "newer"} for one in ladder_rows(99, range(0, 40, 2))]
    ran = cli("calibrate", written(other, "other.jsonl"), "--policy", "policy")
    assert "no longer recorded, because the log is of another cascade: the strategy, the prices" in ran.err
    assert read(tmp_path / "policy").certificates[0].made_for["models"].keys() == {"newer"}


def test_a_log_at_other_prices_is_2(cli: Cli, written: Write, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text(CONFIG)
    tokens = {"input_tokens": 500, "output_tokens": 500, "cost_nano_usd": 1_000_000}  # 1 USD per million tokens
    log = written(ladder_rows(99, range(0, 40, 2), **tokens))
    assert cli("calibrate", log, "--policy", "cascade.yaml", "-o", "policy").code == 0
    dear = written(ladder_rows(99, range(0, 40, 2), **(tokens | {"cost_nano_usd": 2_000_000})), "dear.jsonl")
    for policy in (("cascade.yaml", "-o", "other"), ("policy", "-o", "other")):  # as configured, and as on record
        ran = cli("calibrate", dear, "--policy", *policy)
        assert (ran.code, ran.out) == (2, "")
        assert "the log was costed at other prices than the" in ran.err
        assert "small: 99 calls; one is logged with 0.002 USD and costs 0.001 USD" in ran.err
    assert not (tmp_path / "other").exists()


def test_what_was_promised_is_not_read_from_an_edited_file(cli: Cli, log: str, tmp_path: Path) -> None:
    cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--alpha", "0.2")
    path = tmp_path / "policy" / "certificate.json"
    path.write_text(path.read_text().replace('"alpha": 0.2', '"alpha": 0.9'))
    ran = cli("calibrate", log, "--policy", "policy")
    assert ran.code == 2
    assert "name the promise with --guarantee" in ran.err
    assert cli("calibrate", log, "--policy", "policy", "--guarantee", "coverage").code == 0
    assert read(tmp_path / "policy").certificates[0].alpha == 0.1


def test_questions_that_ordered_a_path_do_not_calibrate(cli: Cli, log: str) -> None:
    cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--guarantee", "error", "--alpha", "0.4")
    before = read("policy")
    assert cli("calibrate", log, "--policy", "policy").code == 0
    assert read("policy") == before
    assert before.certificates[0].n == 99 - len(before.seen.selection) == 69
    ran = cli("calibrate", log, "--policy", "policy", "--guarantee", "coverage")
    assert ran.code == 2
    assert "were used to make this policy" in ran.err


def test_what_orders_the_thresholds_is_reported(cli: Cli, log: str, written: Write) -> None:
    options = ["--guarantee", "error", "--alpha"]
    cli("calibrate", log, "--policy", POLICY, "-o", "policy", *options, "0.4")
    first = read("policy")
    found = document(cli("calibrate", log, "--policy", "policy", *options, "0.3", "--json"))
    assert (found["n"], found["selection"]) == (69, 30)
    assert "order them again" in found["notes"][0]
    assert (read("policy").ordered_for or {})["alpha"] == 0.3
    assert read("policy").seen == first.seen
    newer = written(hard_rows(99, range(0, 40, 2), about="newer"), "newer.jsonl")
    ran = cli("calibrate", newer, "--policy", "policy", *options, "0.4")
    assert "The thresholds were ordered for another promise" in " ".join(ran.out.split())
    assert (read("policy").ordered_for or {})["alpha"] == 0.3


def test_segments_are_promised_again_as_before(cli: Cli, written: Write, tmp_path: Path) -> None:
    rows = hard_rows(60, range(0, 30, 3))
    for one in rows:
        one["segment"] = f"g{int(one['episode_id'][1:]) // 24}"
    log = written(rows)
    assert cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--by-segment").code == 0
    before = (tmp_path / "policy" / "certificate.json").read_bytes()
    ran = cli("calibrate", log, "--policy", "policy")
    assert "promised as before: coverage, alpha 0.1, by segment" in ran.err
    assert (tmp_path / "policy" / "certificate.json").read_bytes() == before
    assert cli("verify", "policy", log).code == 0


def test_an_earlier_promise_must_be_recorded(cli: Cli, log: str, tmp_path: Path) -> None:
    cli("calibrate", log, "--policy", POLICY, "-o", "policy")
    write(tmp_path / "policy", replace(read(tmp_path / "policy"), asked=None))
    ran = cli("calibrate", log, "--policy", "policy")
    assert (ran.code, ran.err.count("name the promise with --guarantee")) == (2, 1)


def test_a_path_is_kept_for_promises_of_its_kind_alone(cli: Cli, log: str, written: Write, tmp_path: Path) -> None:
    abstaining = ["--guarantee", "error", "--alpha", "0.4", "--abstain"]
    cli("calibrate", log, "--policy", POLICY, "-o", "policy", *abstaining)
    path = read(tmp_path / "policy").path
    newer = written(hard_rows(99, range(0, 40, 2), about="newer"), "newer.jsonl")
    assert cli("calibrate", newer, "--policy", "policy").code == 0
    assert read(tmp_path / "policy").path == path
    assert cli("calibrate", newer, "--policy", "policy", "--guarantee", "error", "--alpha", "0.4").code == 0
    held = read(tmp_path / "policy")
    assert held.certificates[0].abstain_below is None
    assert held.path is not None
    assert {point.abstain_below for point in held.path} == {float("-inf")}


# --- the configuration ---

CONFIG = """
models:
  base: {model: small, price: {input: 1, output: 1}}
  guide: {model: large, price: {input: 1, output: 1}}
strategy: {kind: ladder, models: [base, guide]}
provider: fake
policy: {kind: threshold, keep: both, when: reply_logprob}
budget: {per_question: 0.02}
"""


def test_a_configuration_names_the_policy_and_the_cascade(cli: Cli, ladder: str, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text(CONFIG)
    ran = cli("calibrate", ladder, "--policy", "cascade.yaml", "-o", "policy", "--expires-days", "30")
    assert ran.code == 0, ran.err
    (certificate,) = read(tmp_path / "policy").certificates
    assert certificate.made_for["step_models"] == ["small", "large"]
    assert certificate.made_for["prompts_sha256"] is not None
    assert certificate.expires is not None
    assert "It is valid until" in ran.out
    assert "--config" not in ran.out
    assert "--config" in cli("calibrate", ladder, "--policy", LADDER_POLICY, "-o", "other").out


def test_a_configuration_may_name_the_directory(cli: Cli, ladder: str, tmp_path: Path) -> None:
    cli("calibrate", ladder, "--policy", LADDER_POLICY, "-o", "policy")
    (tmp_path / "cascade.yaml").write_text(CONFIG.replace(LADDER_POLICY, "./policy"))
    ran = cli("calibrate", ladder, "--policy", "cascade.yaml")
    assert ran.code == 0, ran.err
    assert read(tmp_path / "policy").certificates[0].made_for["prices"] is not None
    assert cli("evaluate", ladder, "--policy", "cascade.yaml").code == 0


def test_another_cascade_than_configured_is_2(cli: Cli, ladder: str, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text(CONFIG.replace("large", "larger"))
    ran = cli("calibrate", ladder, "--policy", LADDER_POLICY, "-o", "policy", "--config", "cascade.yaml")
    assert ran.code == 2
    assert "the models are small, then larger; the log was made for small, then large" in ran.err


# --- the guarantee asked for ---


def test_options_become_a_guarantee() -> None:
    assert wanted_guarantee(NOTHING, print) == Guarantee("coverage", 0.1)
    asked = NOTHING._replace(kind="regret", delta=0.05)
    assert wanted_guarantee(asked, print) == Guarantee("regret", 0.1, 0.05)


def test_an_alpha_of_0_is_not_taken_for_none() -> None:
    with pytest.raises(UsageError, match=r"alpha is 0\.0"):
        wanted_guarantee(NOTHING._replace(alpha=0.0), print)


# --- evaluate ---


def test_evaluate_plays_a_directory_at_its_threshold(cli: Cli, log: str) -> None:
    cli("calibrate", log, "--policy", POLICY, "-o", "policy")
    found = document(cli("evaluate", log, "--policy", "policy", "--json"))["datasets"][0]
    assert found["rows"][0]["coverage"] == pytest.approx(90 / 99)
    cli("calibrate", log, "--policy", POLICY, "-o", "all", "--alpha", "0.001", "--allow-everything")
    found = document(cli("evaluate", log, "--policy", "all", "--json"))["datasets"][0]
    assert found["rows"][0]["coverage"] == 1
    assert found["rows"][0]["avg_length"] == 2
