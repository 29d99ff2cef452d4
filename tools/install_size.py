"""Measure what an installation takes on the disk, package by package, and refuse one that has grown too large.

python tools/install_size.py [FOLDER]     measures the wheels in FOLDER (dist/), which tools/distributions.py builds

Each wheel is installed by `pip install --no-compile -c constraints.txt WHEEL` in an empty environment. What counts is
the room on the disk in MB (1 MB is 1,048,576 bytes, as `du -m` has it), without what the empty environment had.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
# The newest litellm brings boto3 (32 MB) and hf-xet (11 MB), which the oldest that is supported does not.
LIMITS_MB = {"certified_cascade-*.whl": 400.0, "certified_cascade_core-*.whl": 120.0}
_LISTED_MB = 5.0


def empty_environment(folder: Path) -> Path:
    """Make an environment that has pip alone; return its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    """Install packages into an environment, as a user would; pip prints nothing unless it fails."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile", "-c", str(CONSTRAINTS)]
    done = subprocess.run([*pip, *what], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"pip install {' '.join(what)} failed:\n{done.stdout}{done.stderr}")


def room_mb(paths: Iterable[Path]) -> float:
    """Return the room that files and folders take on the disk."""
    return sum(path.lstat().st_blocks for path in paths) * 512 / 2**20


def by_distribution(folder: Path) -> dict[str, float]:
    """Return what each installed distribution takes, the largest first."""

    def room(distribution: Distribution) -> float:
        return room_mb(path for file in distribution.files or () if (path := Path(str(file.locate()))).exists())

    (site,) = folder.glob("lib/python*/site-packages")
    sizes = {distribution.name: room(distribution) for distribution in distributions(path=[str(site)])}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def measure(wheel: Path, limit_mb: float) -> bool:
    """Install a wheel, print what it takes; return whether that is within the limit."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "environment"
        python = empty_environment(folder)
        before = room_mb(folder.rglob("*"))
        install(python, str(wheel))
        used_mb = room_mb(folder.rglob("*")) - before
        sizes = by_distribution(folder)
    print(f"{wheel.name}: {used_mb:.0f} MB, limit {limit_mb:.0f} MB")
    for name, size in sizes.items():
        if size >= _LISTED_MB and name not in {"pip", "setuptools"}:
            print(f"  {size:6.1f}  {name}")
    return used_mb <= limit_mb


def main() -> None:
    """Measure both wheels; end with 1 where one is too large."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    wheels = {next(folder.absolute().glob(name)): limit for name, limit in LIMITS_MB.items()}
    small = [measure(wheel, limit) for wheel, limit in wheels.items()]
    if not all(small):
        sys.exit("an installation is larger than its limit: move what few need to an extra (design/packaging.md)")


if __name__ == "__main__":
    main()
