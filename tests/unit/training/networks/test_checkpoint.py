"""A run on the disk: it goes on to the same bytes, belongs to one run alone, and is whole at every moment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cascade.errors import ConfigError, UsageError  # noqa: E402  (torch is an optional package)
from cascade.policies.artifact import CURVES_FILE  # noqa: E402
from cascade.training.networks import checkpoint, training  # noqa: E402
from cascade.training.networks.checkpoint import train_kept  # noqa: E402
from cascade.training.networks.config import CCPOConfig  # noqa: E402
from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.problem import TrainingProblem  # noqa: E402
from cascade.training.networks.progress import (  # noqa: E402
    CHECKPOINT_FILE,
    Checkpoints,
    csv_of,
)
from cascade.training.networks.recursions import Goal  # noqa: E402
from cascade.training.networks.training import Trained, train  # noqa: E402

from .made import SMALL, random_walks, setting  # noqa: E402

STEPS = 24
LEVELS = Goal(torch.tensor([0.3, 0.1], dtype=DTYPE))


class Interrupted(BaseException):
    """What ends a run from outside."""


def made(config: CCPOConfig | None = None, **more: Any) -> TrainingProblem:
    return setting(random_walks(40, 3, 2), config or SMALL.model_copy(update={"steps": STEPS}), **more)


RUNS: dict[str, Callable[[], TrainingProblem]] = {
    "exact": made,
    "levels": lambda: made(goal=LEVELS),
    "single answer": lambda: setting(random_walks(40, 3, 2, keeps=True), SMALL.model_copy(update={"steps": STEPS})),
}


def kept(folder: Path, *, resume: bool = True, every: int = 5, **more: Any) -> Checkpoints:
    return Checkpoints(folder, every, resume, **more)


def quiet(*_: object) -> None:
    """Say nothing."""


def until(step: int) -> Callable[[Any, Any], None]:
    def tell(_: Any, row: Any) -> None:
        if row.step == step:
            raise Interrupted

    return tell


def bits(found: Trained) -> tuple[bytes, ...]:
    return (*(one.numpy().tobytes() for one in found.state), csv_of(found.rows), str(found.diverged).encode())


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def step_in(folder: Path) -> int:
    return int(json.loads((folder / CHECKPOINT_FILE).read_bytes())["step"])


# --- going on


@pytest.mark.parametrize("run", RUNS)
def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(run: str, tmp_path: Path) -> None:
    whole = train_kept(RUNS[run](), kept(tmp_path / "whole"), quiet)
    for step in (1, 7, 20, STEPS):
        with pytest.raises(Interrupted):
            train_kept(RUNS[run](), kept(tmp_path / "cut"), until(step))
        assert step_in(tmp_path / "cut") == step  # not only every five steps: where it was interrupted
    assert bits(train_kept(RUNS[run](), kept(tmp_path / "cut"), quiet)) == bits(whole) == bits(train(RUNS[run]()))
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_process_that_dies_leaves_a_checkpoint_every_so_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[int, Path] = {}
    write = checkpoint.write

    def noted(folder: Path, *more: Any) -> None:
        write(folder, *more)
        written[step_in(folder)] = Path(shutil.copytree(folder, tmp_path / f"at{step_in(folder)}"))

    monkeypatch.setattr(checkpoint, "write", noted)
    whole = train_kept(made(), kept(tmp_path / "whole"), quiet)
    assert list(written) == [5, 10, 15, 20, STEPS]
    monkeypatch.undo()
    for folder in written.values():
        assert len(list(folder.glob("state-*"))) == 1
        assert bits(train_kept(made(), kept(folder), quiet)) == bits(whole)


def test_a_run_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    whole = train_kept(made(), kept(tmp_path), quiet)
    again = train_kept(made(), kept(tmp_path, say=said.append), until(STEPS))
    assert bits(again) == bits(whole)
    assert said == [f"continuing from step {STEPS} of {STEPS}"]


def test_a_run_that_diverged_goes_no_further_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_WINDOW", 10)
    monkeypatch.setattr(training, "_LOST", -2.0)
    whole = train_kept(made(), kept(tmp_path), quiet)
    assert whole.diverged is not None
    assert step_in(tmp_path) == 10
    assert bits(train_kept(made(), kept(tmp_path), until(11))) == bits(whole)


def test_resume_without_a_checkpoint_starts_at_the_beginning(tmp_path: Path) -> None:
    assert bits(train_kept(made(), kept(tmp_path / "none"), quiet)) == bits(train(made()))


# --- what it belongs to


def test_a_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    train_kept(made(), kept(tmp_path), quiet)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="--resume continues from it"):
        train_kept(made(), kept(tmp_path, resume=False), quiet)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: made(seed=1), ["seed: the checkpoint has 0, this run has 1"]),
        (
            lambda: made(SMALL.model_copy(update={"steps": 30, "eta": 0.2})),
            ["config.steps: the checkpoint has 24", "config.eta"],
        ),
        (
            lambda: made(goal=Goal(torch.tensor([0.3], dtype=DTYPE))),
            ["asked.limits: the checkpoint has [0.2], this run has [0.3]"],
        ),
        (lambda: made(threshold="none"), ["threshold: the checkpoint has joint"]),
        (
            lambda: setting(random_walks(40, 3, 2, seed=1), SMALL.model_copy(update={"steps": STEPS})),
            ["questions.sha256"],
        ),
        (
            lambda: setting(random_walks(41, 3, 2), SMALL.model_copy(update={"steps": STEPS})),
            ["questions.n: the checkpoint has 40"],
        ),
    ],
)
def test_another_run_is_refused_with_all_that_differs(
    other: Callable[[], TrainingProblem], said: list[str], tmp_path: Path
) -> None:
    train_kept(made(), kept(tmp_path), quiet)
    before = contents(tmp_path)
    with pytest.raises(UsageError) as caught:
        train_kept(other(), kept(tmp_path), quiet)
    assert "is of another run" in str(caught.value)
    assert all(one in str(caught.value) for one in said), str(caught.value)
    assert contents(tmp_path) == before


def test_every_number_of_the_training_questions_counts(tmp_path: Path) -> None:
    one = made()
    first = checkpoint.identity_of(one)["questions"]["sha256"]
    for name, values in one.walks._asdict().items():
        if values is None:  # every step is on record, and no answer is lacking
            mask = torch.ones(one.walks.onward.shape, dtype=torch.bool)
            values = mask if name == "there" else mask[..., None]
        changed = values.clone()
        changed.reshape(-1)[3] = ~changed.reshape(-1)[3] if changed.dtype == torch.bool else 0.123
        other = setting(one.walks._replace(**{name: changed}), one.config)
        assert checkpoint.identity_of(other)["questions"]["sha256"] != first, name


# --- whole at every moment


def test_what_a_killed_process_left_half_written_is_not_believed_and_goes(tmp_path: Path) -> None:
    """The newer files are there, and `checkpoint.json` is still the old one."""
    with pytest.raises(Interrupted):
        train_kept(made(), kept(tmp_path / "old"), until(5))
    with pytest.raises(Interrupted):
        train_kept(made(), kept(tmp_path / "new"), until(9))
    torn = Path(shutil.copytree(tmp_path / "old", tmp_path / "torn"))
    for name in ("state-9.safetensors", CURVES_FILE):
        shutil.copy(tmp_path / "new" / name, torn / name)
    (torn / ".writing.abc").mkdir()
    (torn / ".writing.abc" / "new.checkpoint.json").write_text("{")
    found, _ = checkpoint.read(torn, made())
    assert (int(found.state.step), len(found.rows)) == (5, 5)
    assert bits(train_kept(made(), kept(torn), quiet)) == bits(train(made()))
    assert sorted(contents(torn)) == [CHECKPOINT_FILE, CURVES_FILE, f"state-{STEPS}.safetensors"]


def changed(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    file = folder / name
    file.write_bytes(change(file.read_bytes()))


def document(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def edited(data: bytes) -> bytes:
        held = json.loads(data)
        change(held)
        return json.dumps(held).encode()

    return edited


STATE = f"state-{STEPS}.safetensors"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (STATE, lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its SHA-256 differs from the one"),
        (STATE, lambda data: data[:-9], "its SHA-256 differs from the one"),
        (CURVES_FILE, lambda data: data[:-30], "its SHA-256 differs from the one"),
        (CURVES_FILE, lambda data: data.replace(b"1,", b"2,", 1), "its SHA-256 differs from the one"),
        (CHECKPOINT_FILE, lambda data: data[:-20], "not JSON as cascade writes it"),
        (CHECKPOINT_FILE, lambda data: b"[]", "not a checkpoint of format 1"),
        (CHECKPOINT_FILE, document(lambda held: held.update(schema_version=2)), "not a checkpoint of format 1"),
        (CHECKPOINT_FILE, document(lambda held: held["state"].update(file="../x")), "its name must have its step"),
        (CHECKPOINT_FILE, document(lambda held: held.pop("curves")), "curves: it has bytes and sha256"),
        (CHECKPOINT_FILE, document(lambda held: held.pop("run")), "run: it must list what the run depends on"),
    ],
)
def test_damage_is_said_and_nothing_is_trained_on_it(
    name: str, change: Callable[[bytes], bytes], said: str, tmp_path: Path
) -> None:
    train_kept(made(), kept(tmp_path), quiet)
    changed(tmp_path, name, change)
    with pytest.raises(ConfigError, match=said.replace("[", "\\[")):
        train_kept(made(), kept(tmp_path), until(1))


def test_a_state_of_other_tensors_is_refused(tmp_path: Path) -> None:
    train_kept(made(), kept(tmp_path), quiet)
    found, _ = checkpoint.read(tmp_path, made())
    held = {name: one for name, one in found.state._asdict().items() if name != "kappa"}
    data = checkpoint.bytes_of(held)
    with pytest.raises(ConfigError, match="other tensors"):
        checkpoint._state_of(data, made(), tmp_path)
    with pytest.raises(ConfigError, match="not a safetensors"):
        checkpoint._state_of(b"nothing", made(), tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        train_kept(made(), kept(tmp_path / "file"), quiet)
    assert (tmp_path / "file").read_text() == "mine"
