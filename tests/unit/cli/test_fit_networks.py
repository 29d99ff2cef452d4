"""`cascade fit` of policy networks: what is asked, shown, written, and gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from cascade.episodes.files import write_rows
from cascade.factory import read_levels
from cascade.policies.reading import read
from cascade.training.networks import mlp as devices
from cascade.training.networks import trainer as networks
from cascade.training.networks import training
from unit.cli.certified import hard_rows
from unit.cli.documents import words

Cli = Callable[..., Any]
FILES = {"README.md", "certificate.json", "model.safetensors", "policy.json"}
SMALL = "layers: [5]\nbatch: 20\nsteps: 12\n"


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "small.yaml").write_text(SMALL)
    write_rows(tmp_path / "log.jsonl", hard_rows(200, range(0, 80, 2)))
    return str(tmp_path / "log.jsonl")


def fit(cli: Cli, log: str, *more: str, policy: str = "ccpo") -> Any:
    return cli("fit", log, "--policy", policy, "--network-config", "small.yaml", "-o", "policy", *more)


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


# --- what is written and printed


@pytest.mark.parametrize("policy", ["ccpo", "cpo-batch"])
def test_a_network_is_written_that_is_certified_and_serves(cli: Cli, log: str, tmp_path: Path, policy: str) -> None:
    ran = fit(cli, log, policy=policy)
    assert ran.code == 0, ran.err
    assert set(contents(tmp_path / "policy")) == FILES
    assert f"Taken: {policy.replace('-', '_')}, because there is no other." in ran.out
    assert read(tmp_path / "policy").policy["method"] == policy.replace("-", "_")
    assert cli("verify", "policy", log).code == 0
    assert json.loads(cli("evaluate", log, "--policy", "policy", "--json").out)["datasets"][0]["n"] == 200


def test_json_says_how_it_was_trained_and_nothing_else_is_on_stdout(cli: Cli, log: str) -> None:
    ran = fit(cli, log, "--steps", "7", "--json")
    found = json.loads(ran.out)
    assert (found["method"], found["training"]["steps"], found["training"]["diverged"]) == ("ccpo", 7, None)
    assert found["training"]["settings"]["layers"] == [5]
    assert "training" not in json.loads(cli("fit", log, "--policy", "depth", "-o", "other", "--json").out)


def test_one_network_is_trained_for_all_levels(cli: Cli, log: str, tmp_path: Path) -> None:
    ran = fit(cli, log, "--levels", "low=0.3,high=0.1")
    assert ran.code == 0, ran.err
    assert ran.out.count("ccpo") >= 2
    held = read_levels(tmp_path / "policy")
    assert held is not None
    card = (tmp_path / "policy" / "levels" / "low" / "README.md").read_text()
    assert "for 2 levels at once" in card


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
        (("--steps", "5", "--device", "cpu"), "--steps, --device are of policy networks"),
        (("--policy", "ccpo", "--networks"), "--networks adds networks to --policy auto, and --policy ccpo is a network itself"),
        (("--policy", "ccpo", "--network-config", "none.yaml"), "There is no file none.yaml"),
        (("--policy", "ccpo", "--device", "tpu"), "device: it must be cpu, cuda or cuda:N, not 'tpu'"),
        (("--policy", "cpo"), "--policy cpo cannot have a certificate"),
        (("--policy", "cpo-online", "--levels", "0.2,0.1"), "--policy cpo-online cannot have a certificate"),
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
