"""Checkpoints of a training run: a run can stop at any moment, and a resumed run ends with the same bytes.

A folder has the state after some step (`state-500.safetensors`), the figures of the steps up to it (`curves.csv`), and
`checkpoint.json`, which is written last. `checkpoint.json` names both files with their SHA-256, and everything that the
run depends on: the settings, the seed, the target, the training questions, the releases of cascade and torch. If the
process is killed, the last complete checkpoint stays: a new state gets a new name, and a newer `curves.csv` begins with
the older one.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from cascade._names import __version__
from cascade.errors import ConfigError, UsageError
from cascade.policies.artifact import CURVES_FILE, content, json_bytes, json_of, there, unwritten, write_whole
from cascade.training.networks.problem import Row, State, TrainingProblem, start
from cascade.training.networks.progress import CALLED, CHECKPOINT_FILE, OPTION, Checkpoints, csv_of, rows_of
from cascade.training.networks.training import Trained, lost, train

SCHEMA_VERSION = 1


def train_kept(setting: TrainingProblem, kept: Checkpoints, tell: Callable[[State, Row], None]) -> Trained:
    """Train, and write a checkpoint every `kept.every` steps and at the end, even if an error ends the run.

    Raises:
        UsageError: a checkpoint exists, and `kept.resume` is false; or it is of another run: the message lists every
            difference.
        ConfigError: the checkpoint is damaged.
    """
    folder, identity = Path(kept.folder), identity_of(setting)
    before = _before(folder, identity, setting, resume=kept.resume)
    rows = [] if before is None else before.rows
    if before is not None:
        kept.say(f"continuing from step {len(rows):,} of {setting.config.steps:,}")
        reason = lost(setting, rows)
        if reason is not None:
            return before._replace(diverged=reason)
    run = _Run(folder, identity, rows)

    def told(state: State, row: Row) -> None:
        run.add(state, row)
        if row.step % kept.every == 0:
            run.write()
        tell(state, row)

    try:
        return train(setting, None if before is None else before.state, list(rows), told)
    finally:  # also after an interrupt: the last complete step is kept
        run.write()


class _Run:
    """A run, and the part of it that is not in a checkpoint yet."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], rows: list[Row]) -> None:
        self._folder, self._identity, self._rows = folder, identity, list(rows)
        self._state: State | None = None

    def add(self, state: State, row: Row) -> None:
        self._rows.append(row)
        self._state = state

    def write(self) -> None:
        """Write the steps since the last checkpoint."""
        if self._state is not None:
            write(self._folder, self._identity, Trained(self._state, self._rows))
            self._state = None


def write(folder: Path, identity: Mapping[str, Any], found: Trained) -> None:
    """Write a complete checkpoint; on an error the previous one stays.

    Raises:
        UsageError: it cannot be written there.
    """
    number = int(found.state.step)
    # Copies, since unused tensors, such as Adam's moments in a trust region, may be one tensor under several names.
    held = {name: value.cpu().clone().contiguous() for name, value in found.state._asdict().items()}
    state, curves = bytes_of(held), csv_of(found.rows)
    document = {
        "schema_version": SCHEMA_VERSION,
        "step": number,
        "state": {"file": _state_file(number), "sha256": _sha256(state)},
        "curves": {"bytes": len(curves), "sha256": _sha256(curves)},
        "run": dict(identity),
    }
    contents: dict[str, bytes | None] = {_state_file(number): state, CURVES_FILE: curves}
    contents[CHECKPOINT_FILE] = json_bytes(document)
    gone = [one.name for one in folder.glob("state-*.safetensors") if one.name != _state_file(number)]
    try:
        write_whole(folder, {**contents, **dict.fromkeys(gone)})
    except OSError as error:
        raise unwritten(folder, error, CALLED, OPTION) from None


def read(folder: Path, setting: TrainingProblem) -> tuple[Trained, Mapping[str, Any]]:
    """Return the run in a checkpoint, and everything that it depends on."""
    document = json_of(folder / CHECKPOINT_FILE)
    problems = _form_problems(document)
    if problems:
        raise ConfigError(problems, str(folder / CHECKPOINT_FILE))
    data = content(folder / document["state"]["file"])
    curves = content(folder / CURVES_FILE)[: document["curves"]["bytes"]]
    for name, found, wanted in (
        (document["state"]["file"], data, document["state"]["sha256"]),
        (CURVES_FILE, curves, document["curves"]["sha256"]),
    ):
        if _sha256(found) != wanted:
            problems.append(f"{name}: its SHA-256 differs from the one in {CHECKPOINT_FILE}: the file was changed")
    if problems:
        raise ConfigError(problems, str(folder))
    return Trained(_state_of(data, setting, folder), rows_of(curves)), document["run"]


def _state_of(data: bytes, setting: TrainingProblem, folder: Path) -> State:
    """Return the tensors of a state, each on the device that a new run uses."""
    try:
        held = tensors_of(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ConfigError([f"the state is not a safetensors file: {error}"], str(folder)) from None
    wanted = start(setting)._asdict()
    if held.keys() != wanted.keys():
        raise ConfigError([f"the state has other tensors: {', '.join(sorted(held))}"], str(folder))
    return State(**{name: held[name].to(like.device) for name, like in wanted.items()})


def _before(folder: Path, identity: Mapping[str, Any], setting: TrainingProblem, *, resume: bool) -> Trained | None:
    """Return the run to resume; None if there is no checkpoint."""
    if not there(folder / CHECKPOINT_FILE):
        return None
    if not resume:
        raise UsageError(f"{folder} has a checkpoint: --resume continues from it; or choose another --checkpoint.")
    for rest in folder.glob(".writing.*"):  # left by a process that was killed while it wrote
        with contextlib.suppress(OSError):
            shutil.rmtree(rest)
    document = json_of(folder / CHECKPOINT_FILE)
    if isinstance(document, dict) and isinstance(document.get("run"), dict):
        differ = list(differences(document["run"], identity))
        if differ:
            said = "".join(f"\n  - {one}" for one in differ)
            raise UsageError(f"The checkpoint in {folder} is of another run and cannot be resumed:{said}")
    return read(folder, setting)[0]


def identity_of(setting: TrainingProblem) -> dict[str, Any]:
    """Return all that the bytes of a run depend on, as plain JSON values."""
    goal = setting.goal
    return {
        "cascade": __version__,
        "torch": torch.__version__,
        "threshold": setting.threshold,
        "seed": setting.seed,
        "config": setting.config.model_dump(mode="json"),
        "asked": {"limits": goal.limits.tolist(), "lambda_set": goal.lambda_set},
        "questions": {"n": len(setting.walks.counts), "sha256": _walks_sha256(setting)},
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the differences between a checkpoint's run and the requested one.

    >>> list(differences({"seed": 0, "config": {"steps": 10}}, {"seed": 1, "config": {"steps": 10}}))
    ['seed: the checkpoint has 0, this run has 1']
    """
    for name in dict.fromkeys([*one, *other]):
        held, asked = one.get(name), other.get(name)
        if isinstance(held, dict) and isinstance(asked, dict):
            yield from differences(held, asked, f"{path}{name}.")
        elif held != asked:
            yield f"{path}{name}: the checkpoint has {_shown(held)}, this run has {_shown(asked)}"


def _shown(value: object) -> str:
    text = str(value)
    return f"{text[:16]}…" if len(text) > 60 else text


def _walks_sha256(setting: TrainingProblem) -> str:
    """Return the SHA-256 of all training questions as the network sees them."""
    total = hashlib.sha256()
    for name, values in setting.walks._asdict().items():
        total.update(name.encode())
        if isinstance(values, Tensor):
            total.update(str(tuple(values.shape)).encode() + values.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


_PARTS: Mapping[str, Mapping[str, type]] = {
    "state": {"file": str, "sha256": str},
    "curves": {"bytes": int, "sha256": str},
}


def _form_problems(document: Any) -> list[str]:
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        return [f"it is not a checkpoint of format {SCHEMA_VERSION}"]
    found = []
    for name, fields in _PARTS.items():
        held = document.get(name)
        if not isinstance(held, dict) or any(not isinstance(held.get(one), kind) for one, kind in fields.items()):
            found.append(f"{name}: it has {' and '.join(fields)}")
    if not isinstance(document.get("run"), dict):
        found.append("run: it must list what the run depends on")
    if not found and document["state"]["file"] != _state_file(document.get("step")):
        found.append("state.file: its name must have its step")
    return found


def _state_file(number: object) -> str:
    return f"state-{number}.safetensors"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
