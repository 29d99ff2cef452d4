"""`cascade compare` and `cascade evaluate`: what they read, print and end with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cascade.api import comparing as module
from cascade.api.evaluating import evaluation_document
from cascade.episodes.files import write_rows
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.compare import Comparison, compare
from cascade.evaluation.evaluate import evaluate
from cascade.matching import get_matcher
from cascade.policies.fixed import FixedPolicy
from unit.evaluation.plain import draw, row, rows_of

Cli = Callable[..., Any]
Row = dict[str, Any]
NASTY = "[red]x[/red]\x1b[31m\n[/]\u202e\\"


def log_rows(n: int = 40, horizon: int = 3, width: int = 2, **columns: Any) -> list[Row]:
    rng = np.random.default_rng(0)
    rows = rows_of([draw(rng, horizon, width) for _ in range(n)], horizon, width)
    return [one | {"question": f"Which river is {one['episode_id']}?"} | columns for one in rows]


def guided(rows: Sequence[Row], name: str = "guide only", every: int = 1) -> list[Row]:
    """Return the rows with a walk of the guide alone for every so many questions."""
    names = sorted({one["episode_id"] for one in rows}, key=lambda episode: int(episode[1:]))
    walks = [
        row(
            episode,
            question="Which?",
            walk=name,
            kept=True,
            correct=k % 3 > 0,
            source="guide",
            cost_nano_usd=5_000_000 + k,
        )
        for k, episode in enumerate(names)
        if k % every == 0
    ]
    return [*rows, *({**one, "dataset": rows[0]["dataset"]} for one in walks)]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Sequence[Row]], str]:
    """Write rows into a log."""

    def write(rows: Sequence[Row]) -> str:
        path = tmp_path / "log.jsonl"
        write_rows(path, rows)
        return str(path)

    return write


@pytest.fixture
def log(written: Callable[[Sequence[Row]], str]) -> str:
    """Return a log of forty questions with three rounds each and the guide alone."""
    return written(guided(log_rows(dataset="made")))


def documents(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    found |= found["datasets"][0] if len(found["datasets"]) == 1 else {}
    return found


# --- the document ---


def test_the_document_has_what_is_promised(cli: Cli, log: str) -> None:
    found = documents(cli("compare", log, "--alpha", "0.2", "--splits", "3", "--json"))
    assert {name: found[name] for name in ("alpha", "n", "splits", "dataset", "horizon", "seed", "reference")} == {
        "alpha": 0.2,
        "n": 40,
        "splits": 3,
        "dataset": "made",
        "horizon": 3,
        "seed": 0,
        "reference": "guide only",
    }
    assert found["sizes"] == {"train": 24, "calibration": 8, "test": 8}
    promised = {"policy", "cost_usd", "cost_sd", "coverage", "coverage_sd", "avg_length", "set_size", "fit_seconds"}
    for one in found["rows"]:
        assert promised <= set(one)
        assert all(isinstance(one[name], float) for name in promised - {"policy"})
    (guide,) = [one for one in found["rows"] if one["policy"] == "guide only"]
    assert guide["cost_usd"] == pytest.approx(0.005, rel=1e-4)  # USD a question
    assert guide["against_reference"] == {"cost_usd": None, "coverage": None, "matched_cost_usd": None}
    (random,) = [one for one in found["rows"] if one["policy"] == "random"]
    assert set(random["against_reference"]["coverage"]) == {"mean", "low", "high", "more_than_chance"}


def test_the_same_seed_prints_the_same_bytes(cli: Cli, log: str) -> None:
    def said(*more: str) -> str:
        ran = cli("compare", log, "--splits", "3", "--json", *more)
        assert (ran.code, ran.err) == (0, "")
        return re.sub(r'"fit_seconds": [^,]+', "", ran.out)

    assert said("--seed", "5") == said("--seed", "5") != said("--seed", "6")
    one, other = (cli("compare", log, "--splits", "3").out for _ in range(2))
    assert re.sub(r"0\.\d\d\d *\n", "", one) == re.sub(r"0\.\d\d\d *\n", "", other)  # but for the seconds


def test_a_policy_given_by_its_settings_is_a_row(cli: Cli) -> None:
    settings = "{kind: threshold, keep: both, when: reply_logprob}"
    ran = cli("compare", "demo-ladder", "--splits", "2", "--policy", settings, "--policy", "{kind: fixed}", "--json")
    rows = {one["policy"]: one for one in json.loads(ran.out)["datasets"][0]["rows"]}
    given, built_in = rows["threshold, given"], rows["threshold on log-prob, conformal"]
    assert [given[name] for name in ("coverage", "cost_usd", "set_size")] == [
        built_in[name] for name in ("coverage", "cost_usd", "set_size")
    ]
    assert rows["fixed, given"]["cost_usd"] == pytest.approx(rows["base only"]["cost_usd"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["{kind: fixed}", "{kind: fixed, keep: both}"], "gives two policies of kind fixed"),
        (["policy"], "compare takes a policy by its settings"),
    ],
)
def test_a_policy_that_cannot_be_a_row_is_refused(cli: Cli, given: Sequence[str], said: str) -> None:
    assert cli("calibrate", "demo-ladder", "--policy", "{kind: fixed}", "--alpha", "0.5", "-o", "policy").code == 0
    ran = cli("compare", "demo-ladder", *[word for one in given for word in ("--policy", one)])
    assert ran.code == 2
    assert said in ran.err


def test_several_data_sets_are_a_list_of_documents(cli: Cli, written: Callable[[Sequence[Row]], str]) -> None:
    path = written([*log_rows(20, dataset="one"), *log_rows(25, dataset="two")])
    found = documents(cli("compare", path, "--splits", "2", "--json"))
    assert (found["alpha"], found["splits"]) == (0.1, 2)
    assert [(one["dataset"], one["n"]) for one in found["datasets"]] == [("one", 20), ("two", 25)]
    out = cli("compare", path, "--splits", "2").out
    assert out.index("one  20 questions") < out.index("two  25 questions")
    assert documents(cli("compare", path, "--splits", "2", "--json", "--where", "dataset=two"))["n"] == 25


def test_unknown_costs_are_null_and_a_dash(cli: Cli, written: Callable[[Sequence[Row]], str]) -> None:
    rows = guided(log_rows())
    for each in rows:
        each["cost_nano_usd"] = None
    path = written(rows)
    found = documents(cli("compare", path, "--splits", "2", "--json"))
    assert {(one["cost_usd"], one["cost_sd"], one["matched_cost_usd"]) for one in found["rows"]} == {(None,) * 3}
    ran = cli("compare", path, "--splits", "2")
    assert "$" not in ran.out
    assert "At least half of the questions lack a cost in the log: no cost is shown" in " ".join(ran.out.split())


def test_one_split_has_no_spread(cli: Cli, log: str) -> None:
    found = documents(cli("compare", log, "--splits", "1", "--json"))
    assert {(one["cost_sd"], one["coverage_sd"]) for one in found["rows"]} == {(None, None)}
    assert cli("compare", log, "--splits", "1").code == 0


@pytest.mark.parametrize(("horizon", "width"), [(1, 1), (1, 2), (4, 1)])
def test_any_shape_of_log_is_compared(
    cli: Cli, written: Callable[[Sequence[Row]], str], horizon: int, width: int
) -> None:
    path = written(log_rows(20, horizon, width))
    ran = cli("compare", path, "--splits", "2", "--rounds")
    assert ran.code == 0
    assert f"T = {horizon}" in ran.out
    assert documents(cli("compare", path, "--splits", "2", "--json"))["horizon"] == horizon


# --- the table ---


def lines(*shown: Any, width: int) -> list[str]:
    console = Console(width=width, highlight=False, color_system=None, file=(out := _Out()))
    for one in shown:
        console.print(one)
    return "".join(out.parts).splitlines()


class _Out:
    """What a console writes to."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def comparison(rows: Sequence[Row], **more: Any) -> Comparison:
    (table,) = tables_from_rows(rows)
    return compare(table, count=2, **more)


def test_foreign_names_are_shown_and_neither_obeyed_nor_left_to_the_terminal(
    cli: Cli, written: Callable[[Sequence[Row]], str]
) -> None:
    rows = guided(log_rows(dataset=NASTY), NASTY)
    for one in rows:
        one["source"] = f"{one['source']}{NASTY}"
    path = written(rows)
    ran = cli("compare", path, "--splits", "2", "--rounds", "--reference", NASTY)
    assert ran.code == 0, ran.err
    for hidden in ("\x1b", "\u202e"):
        assert hidden not in ran.out
    flat = " ".join(ran.out.split())
    assert "[red]x[/red][31m [/]" in flat
    assert "× ref: cost relative to [red]x[/red][31m [/]" in flat
    assert cli("compare", path, "--splits", "2", "--reference", f"no {NASTY}").code == 2
    assert "\x1b" not in cli("compare", path, "--splits", "2", "--reference", f"no {NASTY}").err
    assert cli("evaluate", path, "--policy", "{kind: fixed}").code == 0


def test_each_step_is_shown_with_rounds(cli: Cli, log: str) -> None:
    (table,) = tables_from_rows(guided(log_rows(dataset="made")))
    out = cli("compare", log, "--splits", "2", "--rounds").out
    first = re.search(r"^ *1 +([\d.]+)% +([\d.]+)% +([\d.]+)% +\$", out, re.MULTILINE)
    assert first is not None
    correct = table.arrays.correct[:, 0]
    wanted = [correct[:, 0].mean(), correct[:, 1].mean(), correct.any(axis=1).mean()]
    assert [float(share) for share in first.groups()] == pytest.approx([100 * share for share in wanted], abs=0.06)
    assert "base right" in out
    assert "some right so far" in out


# --- which questions ---


def test_where_chooses_rows(cli: Cli, written: Callable[[Sequence[Row]], str]) -> None:
    rows = log_rows()
    for one in rows:
        one["split"] = "test" if int(one["episode_id"][1:]) < 15 else "train"
    path = written(rows)
    assert documents(cli("compare", path, "--splits", "1", "--where", "split=test", "--json"))["n"] == 15


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (["split"], "--where takes COLUMN=VALUE"),
        (["=x"], "--where takes COLUMN=VALUE"),
        (["dataste=made"], "no column dataste; did you mean dataset?"),
        (["dataset=nothing"], "has dataset=nothing; the column's values: made."),
        (["dataset=nothing", "split=none"], "the column's values: made. No row"),
        (["foo=1"], "There is no column foo; known: dataset, episode_id, group, question, split."),
        (["foo=1", "step=1"], "There is no column foo; known: dataset, episode_id, group, question, split. Choosing"),
        (["step=1"], "Choosing by step would cut episodes apart"),
        (["dataset=made", "dataset=other"], "takes one value a column; dataset has several"),
    ],
)
def test_a_where_that_cannot_be_is_2(cli: Cli, log: str, where: list[str], says: str) -> None:
    ran = cli("compare", log, *[part for one in where for part in ("--where", one)])
    assert (ran.code, ran.out) == (2, "")
    assert says in " ".join(ran.err.split())


def test_matcher_judges_every_answer_anew(
    cli: Cli, written: Callable[[Sequence[Row]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        row(f"q{k}", gold=["42"], answer="42." if k % 2 else "41", correct=None if k % 4 else True) for k in range(20)
    ]
    path = written(rows)
    as_logged = documents(cli("evaluate", path, "--policy", "{kind: fixed}", "--json"))
    assert (as_logged["n"], as_logged["rows"][0]["accuracy"]) == (5, 1.0)
    anew = documents(cli("evaluate", path, "--policy", "{kind: fixed}", "--matcher", "exact", "--json"))
    assert (anew["n"], anew["rows"][0]["accuracy"]) == (20, 0.5)
    assert cli("compare", path, "--matcher", "exacd").code == 2

    class Counting:
        def __init__(self) -> None:
            self.asked = 0

        def matches(self, answer: str, gold: Sequence[str]) -> Any:
            self.asked += 1
            return get_matcher("exact").matches(answer, gold)

    counting = Counting()
    monkeypatch.setattr("cascade.matching.get_matcher", lambda _name: counting)
    assert cli("compare", path, "--splits", "1", "--matcher", "exact").code == 0
    assert counting.asked == 20  # and not again for the break-even: a judge is paid


# --- what cannot be ---


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--alpha", "0"], "alpha is a share of questions between 0 and 1"),
        (["--alpha", "1"], "alpha is a share"),
        (["--alpha", "-0.2"], "alpha is a share"),
        (["--alpha", "nan"], "alpha is a share"),
        (["--reference", "guide"], "no row 'guide' to compare with; there are: random; base only; guide only"),
        (["--splits", "0"], "--splits"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_bad_options_are_2(cli: Cli, log: str, flags: list[str], says: str) -> None:
    ran = cli("compare", log, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert says in " ".join(ran.err.split())


def test_a_log_of_two_groups_is_2(cli: Cli, written: Callable[[Sequence[Row]], str]) -> None:
    path = written([one | {"group": (one["episode_id"][-1:] > "4" and "a") or "b"} for one in log_rows()])
    ran = cli("compare", path)
    assert ran.code == 2
    assert "2 groups of questions cannot be split into 3 parts; log more" in ran.err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("nowhere.jsonl", "There is no file nowhere.jsonl"),
        ("demo-lader", "There is no file demo-lader; did you mean demo-ladder?"),
    ],
)
def test_a_log_that_is_not_there_is_2(cli: Cli, given: str, says: str) -> None:
    for command in (("compare", given), ("evaluate", given, "--policy", "{kind: fixed}")):
        ran = cli(*command)
        assert (ran.code, ran.out) == (2, "")
        assert says in " ".join(ran.err.split())


# --- the plot ---


def test_a_plot_is_drawn_and_named(cli: Cli, log: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = cli("compare", log, "--splits", "2", "--plot", "[bold]cost.svg", "--json")
    assert documents(ran)["n"] == 40
    assert ran.err == "drawn: [bold]cost.svg\n"
    assert (
        "clairvoyant" in (tmp_path / "[bold]cost.svg").read_text("utf-8")
        or (tmp_path / "[bold]cost.svg").stat().st_size
    )


@pytest.mark.parametrize(
    ("rows", "name", "says"),
    [
        (log_rows(), "cost.jpg", "must be a file .svg, .png, .pdf, not cost.jpg"),
        (
            [*log_rows(dataset="one"), *log_rows(dataset="two")],
            "cost.svg",
            "--plot draws one data set, and the log has 2; choose one with --where dataset=NAME: one, two",
        ),
        ([one | {"cost_nano_usd": None} for one in log_rows()], "cost.svg", "The costs of log are not known"),
    ],
    ids=["ending", "data sets", "no costs"],
)
def test_what_cannot_be_drawn_is_2_before_anything_is_computed(
    cli: Cli,
    written: Callable[[Sequence[Row]], str],
    monkeypatch: pytest.MonkeyPatch,
    rows: list[Row],
    name: str,
    says: str,
) -> None:
    monkeypatch.setattr(module.comparing, "compare", lambda *_, **__: pytest.fail("it compared first"))
    ran = cli("compare", written(rows), "--plot", name)
    assert (ran.code, ran.out) == (2, "")
    assert says in " ".join(ran.err.split())


def test_a_plot_without_matplotlib_is_2_with_the_pip_command(
    cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cascade.evaluation.plots.find_spec", lambda _name: None)
    ran = cli("compare", log, "--plot", "cost.svg")
    assert (ran.code, ran.out) == (2, "")
    assert 'pip install "certified-cascade[report]"' in " ".join(ran.err.split())


# --- one policy ---


def test_evaluate_prints_one_policys_figures_with_intervals(cli: Cli, log: str) -> None:
    (table,) = tables_from_rows(guided(log_rows(dataset="made")))
    found = documents(cli("evaluate", log, "--policy", "{kind: fixed, depth: 2}", "--json"))
    promised = {"policy", "cost_usd", "cost_sd", "coverage", "coverage_sd", "avg_length", "set_size", "fit_seconds"}
    (one,) = found["rows"]
    assert promised <= set(one)
    assert {name: found[name] for name in ("dataset", "n", "horizon", "alpha", "splits")} == {
        "dataset": "made",
        "n": 40,
        "horizon": 3,
        "alpha": None,
        "splits": None,
    }
    wanted = evaluate(table, FixedPolicy("both", 2))
    assert (one["policy"], one["kappa"]) == ("{kind: fixed, depth: 2}", 0.0)
    assert (one["coverage"], one["cost_usd"]) == (wanted.mean.coverage, wanted.mean.cost_usd)
    assert one["intervals"]["coverage"] == list(wanted.intervals["coverage"])
    out = cli("evaluate", log, "--policy", "{kind: fixed, depth: 2}").out
    assert "made  40 questions, T = 3, kappa = 0" in out
    low, high = wanted.intervals["coverage"]
    assert f"{wanted.mean.coverage:.3f}" in out
    assert f"{low:.3f} to {high:.3f}" in out


def test_evaluate_takes_a_configurations_policy(cli: Cli, log: str, fake_config: Path) -> None:
    by_file = documents(cli("evaluate", log, "--policy", str(fake_config), "--json"))
    by_text = documents(cli("evaluate", log, "--policy", "{kind: fixed, keep: both}", "--json"))
    assert by_file["rows"][0] | {"policy": ""} == by_text["rows"][0] | {"policy": ""}


def test_several_data_sets_are_evaluated_one_by_one(cli: Cli, written: Callable[[Sequence[Row]], str]) -> None:
    path = written([*log_rows(20, dataset="one"), *log_rows(25, dataset="two")])
    found = documents(cli("evaluate", path, "--policy", "{kind: fixed}", "--json"))
    assert [(one["dataset"], one["n"]) for one in found["datasets"]] == [("one", 20), ("two", 25)]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("nowhere.yaml", "There is no file or folder 'nowhere.yaml', nor is it a policy such as"),
        ("{kind: thresold}", "thresold"),
        ("{kind: threshold, threshold: -1}", "threshold"),
        ("{kind: threshold", "--policy"),
        ("{kind: fixed, note: " + "x" * 5_000 + "}", "note"),
    ],
)
def test_a_policy_that_is_none_is_2(cli: Cli, log: str, policy: str, says: str) -> None:
    ran = cli("evaluate", log, "--policy", policy)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_a_policy_with_an_infinite_threshold_has_a_document() -> None:
    (table,) = tables_from_rows(log_rows())
    found = evaluation_document(evaluate(table, replace(FixedPolicy(), kappa=float("inf")), resamples=5), "p")
    assert json.loads(json.dumps(found, allow_nan=False))["rows"][0]["kappa"] == "inf"


def test_what_fit_would_choose_is_a_row_where_it_is_asked_for(cli: Cli, log: str) -> None:
    rows = {}
    for more in ([], ["--fit"]):
        ran = cli("compare", log, "--splits", "2", "--json", *more)
        assert ran.code == 0, ran.err
        rows[bool(more)] = [row["policy"] for row in json.loads(ran.out)["datasets"][0]["rows"]]
    assert [one for one in rows[True] if one not in rows[False]] == ["cascade fit, conformal"]
    assert rows[True][-2:] == ["cascade fit, conformal", "clairvoyant bound"]


# --- policy networks ---


def test_networks_are_rows_of_their_own(cli: Cli, log: str) -> None:
    pytest.importorskip("torch")
    quick = ("--splits", "1", "--json")
    found = documents(cli("compare", log, "--networks", "--steps", "5", *quick))
    plain = documents(cli("compare", log, *quick))
    before = [one["policy"] for one in plain["rows"]]
    more = [one["policy"] for one in found["rows"] if one["policy"] not in before]
    assert more == ["CPO", "CPO batch, conformal", "CPO online", "CCPO, conformal"]


def test_steps_without_networks_is_an_error(cli: Cli, log: str) -> None:
    ran = cli("compare", log, "--steps", "5")
    assert (ran.code, ran.out) == (2, "")
    assert "--networks" in ran.err


def test_networks_without_torch_name_the_extra(cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cascade.training.networks import trainer as networks

    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    ran = cli("compare", log, "--networks")
    assert (ran.code, ran.out) == (2, "")
    assert "[train]" in ran.err
