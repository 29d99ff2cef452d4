"""`cascade fit`: what it writes, prints and ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.episodes.files import write_rows
from cascade.evaluation.logs import open_log
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee
from cascade.policies.reading import read
from cascade.training.fitting import fit_policy
from unit.cli.certified import POLICY, hard_rows, ladder_rows
from unit.cli.documents import document, words

Cli = Callable[..., Any]
Write = Callable[..., str]
FILES = {"README.md", "certificate.json", "model.safetensors", "policy.json"}
QUICK = ("--policy", "threshold")
"""For tests of what becomes of the files: a comparison of all candidates takes most of the time of a fit."""
CONFIG = """\
models:
  base: {model: small, price: {input: 1, output: 1}}
  guide: {model: large, price: {input: 1, output: 1}}
provider: fake
strategy: {kind: ladder, models: [base, guide]}
"""


@pytest.fixture
def log(written: Write) -> str:
    """Return a log of 200 questions, 40 of them answered rightly by the second step alone, all of low doubt."""
    return written(hard_rows(200, range(0, 80, 2)))


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


# --- what is written and printed ---


def test_a_directory_is_written_that_serves(cli: Cli, log: str, tmp_path: Path) -> None:
    found = document(cli("fit", log, "-o", "policy", "--json"))
    assert {one.name for one in (tmp_path / "policy").iterdir()} == FILES
    assert found["sizes"] == {"questions": 200, "training": 140, "calibration": 60}
    (chosen,) = [one for one in found["candidates"] if one["chosen"]]
    assert chosen["name"] == found["chosen"]
    assert found["method"] == chosen["method"] == read(tmp_path / "policy").policy["method"]
    assert found["segments"][0]["certificate"]["n"] == 60
    assert found["realised"]["coverage"] >= 0.9
    assert cli("verify", "policy", log).code == 0
    assert json.loads(cli("evaluate", log, "--policy", "policy", "--json").out)["datasets"][0]["n"] == 200


def test_the_readme_of_a_project_is_not_written_over(cli: Cli, log: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    ran = cli("fit", log, "-o", ".", "--policy", "depth")
    assert ran.code == 2
    assert "holds a README.md" in words(ran.err)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert not (tmp_path / "policy.json").exists()


def test_a_card_stays_where_its_policy_is_calibrated_anew_and_does_not_go_elsewhere(
    cli: Cli, log: str, tmp_path: Path
) -> None:
    assert cli("fit", log, "-o", "policy", "--policy", "threshold").code == 0
    before = contents(tmp_path / "policy")
    new = ("calibrate", "fresh.jsonl", "--policy", "policy", "--alpha", "0.2")
    write_rows(tmp_path / "fresh.jsonl", hard_rows(100, range(0, 40, 2), about="fresh"))
    for output in ("policy", "other"):
        ran = cli(*new, "-o", output)
        assert ran.code == 0, ran.err
    after = contents(tmp_path / "policy")
    assert after["certificate.json"] != before["certificate.json"]
    assert after["README.md"] == before["README.md"]
    assert set(contents(tmp_path / "other")) == {"policy.json", "model.safetensors", "certificate.json"}
    assert cli("calibrate", log, "--policy", POLICY, "-o", "policy", "--force").code == 0
    assert set(contents(tmp_path / "policy")) == {"policy.json", "certificate.json"}


def test_what_is_printed_is_what_the_library_found(cli: Cli, log: str) -> None:
    found = document(cli("fit", log, "-o", "policy", "--seed", "4", "--json"))
    fitted = fit_policy(open_log(log).tables, Guarantee("coverage", 0.1), seed=4)
    assert read("policy") == fitted.artifact
    assert [one["name"] for one in found["candidates"]] == [one.name for one in fitted.choice.judged]
    for shown, one in zip(found["candidates"], fitted.choice.judged, strict=True):
        assert shown["matched"] == (None if one.matched is None else pytest.approx(one.matched / 1e9))
        assert shown["why"] == one.why


@pytest.mark.parametrize("width", [80, 130])
def test_no_line_is_wider_than_the_terminal(cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for more in ([], ["--guarantee", "regret", "--alpha", "0.3"]):
        ran = cli("fit", log, "-o", "policy", "--force", *more)
        assert ran.code == 0, ran.err
        assert max(map(len, ran.out.splitlines())) <= width


def test_the_same_log_and_seed_give_the_same_bytes(cli: Cli, log: str, written: Write, tmp_path: Path) -> None:
    options = ("--alpha", "0.1", "--seed", "3")
    backwards = written(hard_rows(200, range(0, 80, 2))[::-1], "backwards.jsonl")
    for name, rows in (("one", log), ("two", backwards)):
        assert cli("fit", rows, "-o", name, *options).code == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert cli("fit", log, "-o", "three", *options[:-1], "4").code == 0
    assert contents(tmp_path / "three")["policy.json"] != contents(tmp_path / "one")["policy.json"]


# --- the card ---


def test_hostile_names_reach_neither_terminal_nor_card(cli: Cli, written: Write, tmp_path: Path) -> None:
    name = "[red]x[/red]\x1b[31m\n<script>|a|[b](http://c)"
    ran = cli("fit", written(hard_rows(120, range(0, 40, 2), dataset=name)), "-o", "policy")
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out
    text = (tmp_path / "policy" / "README.md").read_text()
    assert "<script>" not in text.replace("\\<", "")
    assert "\x1b" not in text


# --- every kind of promise ---


@pytest.mark.parametrize(
    ("options", "kind", "alpha", "delta"),
    [
        ([], "coverage", 0.1, None),
        (["--delta", "0.1"], "coverage", 0.1, 0.1),
        (["--guarantee", "error", "--alpha", "0.3"], "error", 0.3, 0.1),
        (["--guarantee", "error", "--alpha", "0.3", "--delta", "0.2", "--abstain"], "error", 0.3, 0.2),
        (["--guarantee", "regret", "--alpha", "0.3"], "regret", 0.3, 0.1),
    ],
)
def test_every_kind_is_fitted_and_certified(
    cli: Cli, log: str, options: list[str], kind: str, alpha: float | None, delta: float | None
) -> None:
    found = document(cli("fit", log, "-o", "policy", "--json", *options))
    certificate = found["segments"][0]["certificate"]
    assert (certificate["kind"], certificate["alpha"], certificate["delta"]) == (kind, alpha, delta)
    assert cli("verify", "policy", log).code == 0


def test_each_segment_has_a_promise(cli: Cli, written: Write) -> None:
    rows = hard_rows(200, range(0, 80, 2))
    for one in rows:
        one["segment"] = "even" if int(one["episode_id"][1:]) % 2 == 0 else "odd"
    found = document(cli("fit", written(rows), "-o", "policy", "--by-segment", "--json"))
    assert [one["segment"] for one in found["segments"]] == ["even", "odd"]


def test_a_method_alone(cli: Cli, log: str) -> None:
    found = document(cli("fit", log, "-o", "policy", "--policy", "depth", "--json"))
    assert (found["method"], [one["name"] for one in found["candidates"]]) == ("depth", ["fixed depth"])
    ran = cli("fit", log, "-o", "policy", "--policy", "tree")
    assert (ran.code, ran.out) == (2, "")


# --- 3: not certified ---


def test_too_few_questions_end_with_3_and_write_nothing(cli: Cli, written: Write, tmp_path: Path) -> None:
    few = written(hard_rows(8, [0]), "few.jsonl")
    ran = cli("fit", few, "-o", "policy")
    assert (ran.code, ran.out) == (3, "")
    assert "calibration questions are too few" in words(ran.err)
    assert words(ran.err).endswith(" Or keep every answer of every step: --allow-everything.")
    assert not (tmp_path / "policy").exists()
    kept = cli("fit", few, "-o", "policy", "--allow-everything")
    assert kept.code == 0, kept.err
    assert read(tmp_path / "policy").certificates[0].keeps_everything


def test_a_directory_stays_as_it_was_where_nothing_is_certified(
    cli: Cli, log: str, written: Write, tmp_path: Path
) -> None:
    cli("fit", log, "-o", "policy", *QUICK)
    before = contents(tmp_path / "policy")
    hopeless = written([one | {"correct": False} for one in hard_rows(120, [])], "hopeless.jsonl")
    ran = cli("fit", hopeless, "-o", "policy", "--force", "--guarantee", "error", "--alpha", "0.1")
    assert (ran.code, ran.out) == (3, "")
    assert contents(tmp_path / "policy") == before


# --- 2: cannot be asked so ---


def test_of_two_fits_into_one_folder_the_later_is_refused(
    cli: Cli, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place was free when both began; what the quicker one wrote stays."""
    from cascade.api import fitting

    fit_policy, contents_then = fitting.fit_policy, []

    def meanwhile(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(fitting, "fit_policy", fit_policy)
        assert cli("fit", log, "-o", "policy", "--alpha", "0.2", *QUICK).code == 0
        contents_then.append(contents(tmp_path / "policy"))
        return fit_policy(*args, **named)

    monkeypatch.setattr(fitting, "fit_policy", meanwhile)
    ran = cli("fit", log, "-o", "policy", *QUICK)
    assert (ran.code, ran.err.count("holds a policy already")) == (2, 1)
    assert contents(tmp_path / "policy") == contents_then[0]


def test_another_policy_is_not_written_over(cli: Cli, log: str, tmp_path: Path) -> None:
    cli("fit", log, "-o", "policy", *QUICK)
    before = contents(tmp_path / "policy")
    ran = cli("fit", log, "-o", "policy", "--alpha", "0.2")
    assert (ran.code, ran.err.count("holds a policy already")) == (2, 1)
    assert contents(tmp_path / "policy") == before
    assert cli("fit", log, "-o", "policy", "--alpha", "0.2", "--force", *QUICK).code == 0
    assert contents(tmp_path / "policy") != before


def test_a_log_at_other_prices_is_2(cli: Cli, written: Write, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text(CONFIG)
    tokens = {"input_tokens": 500, "output_tokens": 500, "cost_nano_usd": 1_000_000}
    log = written(ladder_rows(99, range(0, 40, 2), **tokens))
    assert cli("fit", log, "-o", "policy", "--config", "cascade.yaml").code == 0
    made_for = read(tmp_path / "policy").certificates[0].made_for
    assert made_for["prices"]
    dear = written(ladder_rows(99, range(0, 40, 2), **(tokens | {"cost_nano_usd": 2_000_000})), "dear.jsonl")
    ran = cli("fit", dear, "-o", "other", "--config", "cascade.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "the log was costed at other prices than the configuration" in words(ran.err)
    newer = [one | {"model": "newer"} for one in ladder_rows(99, range(0, 40, 2), **tokens)]
    other = written(newer, "newer.jsonl")
    assert cli("fit", other, "-o", "other", "--config", "cascade.yaml").code == 2
    assert not (tmp_path / "other").exists()


# --- again ---


def test_a_fitted_directory_is_calibrated_again(cli: Cli, log: str, written: Write, tmp_path: Path) -> None:
    cli("fit", log, "-o", "policy", *QUICK)
    before = contents(tmp_path / "policy")
    newer = written(hard_rows(60, range(0, 30, 2), about="newer"), "newer.jsonl")
    ran = cli("calibrate", newer, "--policy", "policy")
    assert ran.code == 0, ran.err
    after = contents(tmp_path / "policy")
    assert {name for name in FILES if after[name] != before[name]} == {"certificate.json"}
    assert read_policy(tmp_path / "policy").artifact.certificates[0].n == 60
    assert cli("calibrate", log, "--policy", "policy").code == 2  # it was fitted on these
