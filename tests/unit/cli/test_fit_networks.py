"""`cascade fit` of policy networks: what is asked, shown, written, and gone on with."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("torch")

from cascade.cli import fit as fitting
from cascade.cli import main as output
from cascade.cli.fit import ended_gently, show_training
from cascade.cli.main import Shown
from cascade.episodes.files import write_rows
from cascade.evaluation import plots
from cascade.factory import read_levels, read_policy
from cascade.policies.reading import read
from cascade.training.networks import mlp as devices
from cascade.training.networks import trainer as networks
from cascade.training.networks import training
from cascade.training.networks.progress import Progress, rows_of
from unit.cli.certified import hard_rows

Cli = Callable[..., Any]
FILES = {"README.md", "certificate.json", "curves.csv", "curves.svg", "model.safetensors", "policy.json"}
SMALL = "layers: [5]\nbatch: 20\nsteps: 12\n"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(plots, "available", lambda: False)  # a plot takes longer than all else
    (tmp_path / "small.yaml").write_text(SMALL)
    write_rows(tmp_path / "log.jsonl", hard_rows(200, range(0, 80, 2)))
    return str(tmp_path / "log.jsonl")


def fit(cli: Cli, log: str, *more: str, policy: str = "ccpo") -> Any:
    return cli("fit", log, "--policy", policy, "--network-config", "small.yaml", "-o", "policy", *more)


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def words(text: str) -> str:
    return " ".join(text.split())


# --- what is written and printed


@pytest.mark.parametrize("policy", ["ccpo", "cpo-batch"])
def test_a_network_is_written_that_is_certified_and_serves(
    cli: Cli, log: str, tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "available", lambda: True)
    ran = fit(cli, log, policy=policy)
    assert ran.code == 0, ran.err
    assert set(contents(tmp_path / "policy")) == FILES
    assert f"Taken: {policy.replace('-', '_')}, because there is no other." in ran.out
    assert "No plot" not in ran.out
    assert len(rows_of((tmp_path / "policy" / "curves.csv").read_bytes())) == 12
    assert read(tmp_path / "policy").policy["method"] == policy.replace("-", "_")
    assert cli("verify", "policy", log).code == 0
    assert json.loads(cli("evaluate", log, "--policy", "policy", "--json").out)["datasets"][0]["n"] == 200


def test_json_says_how_it_was_trained_and_nothing_else_is_on_stdout(cli: Cli, log: str) -> None:
    ran = fit(cli, log, "--steps", "7", "--json")
    found = json.loads(ran.out)
    assert (found["method"], found["training"]["steps"], found["training"]["diverged"]) == ("ccpo", 7, None)
    assert found["training"]["settings"]["layers"] == [5]
    assert "training" not in json.loads(cli("fit", log, "--policy", "depth", "-o", "other", "--json").out)


@pytest.mark.parametrize("policy", ["cpo", "cpo-online"])
def test_a_network_without_a_certificate_is_written_and_reported_as_uncertified(
    cli: Cli, log: str, tmp_path: Path, policy: str
) -> None:
    ran = fit(cli, log, policy=policy)
    assert ran.code == 0, ran.err
    assert "certificate.json" not in contents(tmp_path / "policy")
    said = words(ran.out)
    assert "200 questions: 140 to train on, 60 to evaluate it on" in said
    assert "with 95 % confidence), where 90 % were asked for" in said
    assert "not certified: on new questions it may do worse. --policy cpo-batch calibrates the same" in said
    assert "next: cascade calibrate NEW_EPISODES --policy policy certifies a threshold for it" in said
    held = read_policy(str(tmp_path / "policy"))
    assert held.deciding is held.policy
    found = json.loads(cli("evaluate", log, "--policy", "policy", "--json").out)["datasets"][0]
    assert found["n"] == 200
    document = json.loads(fit(cli, log, "--json", "--force", policy=policy).out)
    assert (document["certified"], document["method"]) == (False, policy.replace("-", "_"))
    assert document["kept"]["n"] == 60
    assert document["kept"]["low"] <= document["kept"]["share"] <= document["kept"]["high"]


def test_what_cpo_lacks_can_be_certified_afterwards(cli: Cli, log: str, tmp_path: Path) -> None:
    """The questions that it was trained on are refused; new ones set a threshold as for any policy."""
    assert fit(cli, log, policy="cpo").code == 0
    write_rows(tmp_path / "fresh.jsonl", hard_rows(100, range(0, 40, 2), about="fresh"))
    ran = cli("calibrate", "fresh.jsonl", "--policy", "policy")
    assert ran.code == 0, ran.err
    assert read(tmp_path / "policy").certificates[0].n == 100


def test_one_network_is_trained_for_all_levels(cli: Cli, log: str, tmp_path: Path) -> None:
    ran = fit(cli, log, "--levels", "low=0.3,high=0.1")
    assert ran.code == 0, ran.err
    assert ran.out.count("ccpo") >= 2
    held = read_levels(tmp_path / "policy")
    assert held is not None
    card = (tmp_path / "policy" / "levels" / "low" / "README.md").read_text()
    curves = (tmp_path / "policy" / "levels" / "low" / "curves.csv").read_bytes()
    assert "for 2 levels at once" in card
    assert (tmp_path / "policy" / "curves.csv").read_bytes() == curves


def test_auto_tries_networks_where_they_are_offered(cli: Cli, log: str) -> None:
    found = json.loads(fit(cli, log, "--networks", "--json", policy="auto").out)
    assert {"ccpo", "cpo_batch"} <= {one["name"] for one in found["candidates"]}


def test_training_that_ended_early_is_reported_in_bold_and_the_policy_is_certified(
    cli: Cli, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_WINDOW", 4)
    monkeypatch.setattr(training, "_LOST", -2.0)
    ran = fit(cli, log)
    assert ran.code == 0, ran.err
    assert "The training of the network was ended early, at step 4: over the last 4 steps" in words(ran.out)
    assert "**Training was ended early: step 4" in (tmp_path / "policy" / "README.md").read_text()
    diverged = json.loads(fit(cli, log, "--force", "--json").out)["training"]["diverged"]
    assert diverged.startswith("step 4: over the last 4 steps")


# --- checkpoints


def test_a_run_goes_on_from_its_checkpoint_to_the_same_bytes(
    cli: Cli, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fit(cli, log).code == 0
    whole = contents(tmp_path / "policy")

    def interrupted(shown: Shown, now: Progress) -> None:
        show_training(shown, now)
        if now.step == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "show_training", interrupted)
    ran = fit(cli, log, "--checkpoint", "ck", "--force")
    assert ran.code == 130
    assert "--checkpoint ck --resume continues from here" in words(ran.err)
    monkeypatch.setattr(fitting, "show_training", show_training)
    again = fit(cli, log, "--checkpoint", "ck", "--force")
    assert again.code == 2
    assert "ck has a checkpoint: --resume continues from it" in words(again.err)
    other = fit(cli, log, "--checkpoint", "ck", "--resume", "--seed", "3", "--force")
    assert other.code == 2
    assert "- seed: the checkpoint has 0, this run has 3" in words(other.err)
    assert "- questions.sha256" in words(other.err)
    resumed = fit(cli, log, "--checkpoint", "ck", "--resume", "--force")
    assert resumed.code == 0, resumed.err
    assert "continuing from step 7 of 12" in resumed.err
    assert contents(tmp_path / "policy") == whole
    assert set(contents(tmp_path / "ck")) == {"checkpoint.json", "curves.csv", "state-12.safetensors"}
    assert contents(tmp_path / "ck")["curves.csv"] == whole["curves.csv"]


def test_sigterm_leaves_a_checkpoint_of_the_last_step(
    cli: Cli, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def ended(shown: Shown, now: Progress) -> None:
        show_training(shown, now)
        if now.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(fitting, "show_training", ended)
    ran = fit(cli, log, "--checkpoint", "ck")
    assert ran.code == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "ck" / "checkpoint.json").read_bytes())["step"] == 5
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "policy").exists()


def test_without_a_checkpoint_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ended_gently(None):
        assert signal.getsignal(signal.SIGTERM) is before
    with ended_gently(Path("ck")):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


# --- what is refused


def test_everything_that_is_wrong_with_the_settings_is_reported_at_once(cli: Cli, log: str, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("lairs: [5]\nbatch: 0\nactivation: tanh\nkappa_range: [0.5, 0.2]\n")
    ran = fit(cli, log, "--steps", "0", "--alpha", "2")
    said = words(ran.err)
    assert ran.code == 2
    assert "lairs: there is no such setting; did you mean layers?" in said
    assert "batch: input should be greater than or equal to 1, not 0" in said
    assert "activation: input should be 'softsign' or 'relu', not 'tanh'" in said
    assert "steps: input should be greater than or equal to 1, not 0" in said
    assert "kappa_range: the lower end must be below the upper one" in said
    assert "alpha is 2.0; it must lie between 0 and 1" in said
    assert said.count("kappa_range") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "depth", "--steps", "5"), "--steps is of policy networks: --policy cpo, cpo-batch, cpo-online, ccpo"),
        (("--steps", "5", "--resume"), "--steps, --resume are of policy networks"),
        (("--policy", "ccpo", "--networks"), "--networks adds networks to --policy auto, and --policy ccpo is a network itself"),
        (("--networks", "--checkpoint", "ck"), "--checkpoint saves the training of one network"),
        (("--policy", "ccpo", "--resume"), "--resume and --checkpoint-every go with --checkpoint DIR"),
        (("--policy", "ccpo", "--checkpoint-every", "5"), "--resume and --checkpoint-every go with --checkpoint DIR"),
        (("--policy", "ccpo", "--network-config", "none.yaml"), "There is no file none.yaml"),
        (("--policy", "ccpo", "--device", "tpu"), "device: it must be cpu, cuda or cuda:N, not 'tpu'"),
        (("--policy", "cpo", "--levels", "0.2,0.1"), "--policy cpo has no certificate, so leave out --levels"),
        (("--policy", "cpo-online", "--by-segment", "--abstain"), "so leave out --by-segment, --abstain; or"),
        (("--policy", "cpo", "--expires-days", "3", "--delta", "0.1"), "leave out --delta, --expires-days"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(cli: Cli, log: str, options: tuple[str, ...], said: str) -> None:
    ran = cli("fit", log, "-o", "policy", *options)
    assert ran.code == 2, ran.out
    assert said in words(ran.err)


def test_a_missing_gpu_or_torch_is_reported_before_anything_is_read(
    cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 0)
    ran = fit(cli, log, "--device", "cuda")
    assert (ran.code, "Device cuda: torch finds no GPU here" in words(ran.err)) == (2, True)
    monkeypatch.setattr(networks, "find_spec", lambda _: None)
    ran = fit(cli, "none.jsonl")
    assert ran.code == 2
    assert "Training a policy network needs the package torch" in words(ran.err)
    assert '"certified-cascade[train]"' in words(ran.err)
    assert "none.jsonl" in words(ran.err)


def test_a_checkpoint_folder_that_cannot_be_written_is_reported_before_training(
    cli: Cli, log: str, tmp_path: Path
) -> None:
    (tmp_path / "ck").write_text("mine")
    ran = fit(cli, log, "--checkpoint", "ck")
    assert ran.code == 2
    assert "ck is a file, so no folder of checkpoints can be written there; choose another --checkpoint." in words(
        ran.err
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it holds no settings; docs/networks.md has an example"),
        ("- layers", "it holds no settings; docs/networks.md has an example"),
        ("layers: []", "layers: a network has 1 to 16 hidden layers, not 0"),
        ("kappa_start: 0.9\nkappa_range: [0.1, 0.5]", "kappa_start: 0.9 is outside kappa_range, 0.1 to 0.5"),
        ("kappa_start: 0.9", "kappa_start: 0.9 is outside the range of kappa here, 0.15 to 0.5"),
    ],
)
def test_settings_that_are_none_or_would_not_be_kept_to_are_refused(
    cli: Cli, log: str, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "small.yaml").write_text(text)
    ran = fit(cli, log)
    assert (ran.code, ran.out) == (2, "")
    assert said in words(ran.err)
    assert not (tmp_path / "policy").exists()


# --- progress


def now(step: int, method: str = "ccpo", steps: int = 2_000) -> Progress:
    return Progress(method, step, steps, 0.9123, 1.25, 0.2345)


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> tuple[Console, Any, list[float]]:
    """Return a console, what shows on it, and its clock."""
    out, clock = Console(record=True, force_terminal=terminal, width=120, file=io.StringIO()), [0.0]
    monkeypatch.setattr(output, "notes", lambda: out)
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    return out, Shown("choosing, fitting and certifying"), clock


def test_a_line_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out, showing, clock = shown(monkeypatch, terminal=False)
    with showing:
        for step in range(1, 51):
            clock[0] += 0.5
            show_training(showing, now(step))
    lines = out.export_text().splitlines()
    assert lines == [
        f"training ccpo: {step} of 2,000, covered 91.2 %, kappa 0.234, cost 1.25 steps" for step in (20, 40)
    ]


def test_a_bar_on_a_terminal_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _, showing, clock = shown(monkeypatch, terminal=True)

    def task() -> Any:
        (one,) = showing._bar.tasks
        return one

    assert (task().description, task().total) == ("choosing, fitting and certifying", None)
    for step in (1, 2, 3):
        clock[0] += 0.2
        show_training(showing, now(step, steps=4))
    assert (task().description, task().total, task().completed) == ("training ccpo", 4, 3)
    assert task().fields["said"] == "covered 91.2 %, kappa 0.234, cost 1.25 steps"
    show_training(showing, now(4, steps=4))
    assert (task().description, task().total, task().fields["said"]) == ("choosing, fitting and certifying", None, "")
    show_training(showing, now(3, "cpo_batch", 9))  # one that goes on from a checkpoint
    assert (task().description, task().total, task().completed) == ("training cpo_batch", 9, 3)
