"""Build what is published, and check what is in it.

python tools/distributions.py [FOLDER]     writes an sdist and a wheel of each distribution into FOLDER, or dist/

There are two, certified-cascade and certified-cascade-core, with the same files. certified-cascade-core does not need
litellm (`design/packaging.md`). Its project file is made here from pyproject.toml, so nothing has to be kept in step.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FULL, CORE = "certified-cascade", "certified-cascade-core"
LEFT_OUT = "litellm"
_BESIDE = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml", ".gitignore"}
"""What an sdist has beside `cascade/`. hatchling puts .gitignore there, which says what a build may not take along."""


def core_project(text: str) -> str:
    """Return the text of pyproject.toml for certified-cascade-core."""
    text = text.replace(f'"{FULL}', f'"{CORE}')
    start = text.index("\ndependencies = [\n")
    end = text.index("\n]\n", start)
    lines = [line for line in text[start:end].splitlines() if not line.lstrip().startswith(f'"{LEFT_OUT}')]
    return text[:start] + "\n".join(lines) + text[end:]


def build(folder: Path) -> list[Path]:
    """Build all four files and return their paths."""
    with tempfile.TemporaryDirectory() as scratch:
        full = _built(ROOT, folder)
        shutil.unpack_archive(full[0], scratch)  # tarfile's own `filter` came with Python 3.11.4
        (source,) = Path(scratch).iterdir()
        (source / "PKG-INFO").unlink()
        project = source / "pyproject.toml"
        project.write_text(core_project(project.read_text("utf-8")), "utf-8")
        return [*full, *_built(source, folder)]


def _built(source: Path, folder: Path) -> list[Path]:
    """Build an sdist, and from it a wheel."""
    before = set(folder.glob("*"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=source)
    if done.returncode:
        sys.exit(f"{source.name} cannot be built:\n{done.stdout}{done.stderr}")
    built = set(folder.glob("*")) - before
    return [next(file for file in built if file.name.endswith(end)) for end in (".tar.gz", ".whl")]


def problems(built: Path) -> list[str]:
    """Return what is in a file that should not be, and what is not in it."""
    names = _in_wheel(built) if built.suffix == ".whl" else _in_sdist(built)
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cascade").rglob("*") if _published(path)}
    inside = {name for name in names if name.startswith("cascade/")}
    beside = names - inside
    if built.suffix == ".whl":
        info = "-".join(built.name.split("-")[:2]) + ".dist-info/"
        needed = {info + name for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    else:
        needed = _BESIDE
    return [
        *(f"{built.name} lacks {name}" for name in sorted(wanted - inside | needed - beside)),
        *(f"{built.name} should not have {name}" for name in sorted(inside - wanted | beside - needed)),
    ]


def _published(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


def _in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def _in_sdist(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def main() -> None:
    """Build, check, and print the files; end with 1 where one is not as it should be."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("certified_cascade*"):
        old.unlink()
    files = build(folder)
    if wrong := [line for file in files for line in problems(file)]:
        sys.exit("\n".join(wrong))
    for file in files:
        print(f"{file.stat().st_size / 1e6:5.1f} MB  {file}")


if __name__ == "__main__":
    main()
