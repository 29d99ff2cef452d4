"""Plug-ins as a user has them: the three example packages, installed, and modules written for a test."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = {
    "write_a_strategy": "sampling_strategy",
    "write_a_policy": "agreeing_policy",
    "write_a_promise": "avoidable_promise",
}
"""The module of each example package, by its folder."""


def installed_once(temporary: pytest.TempPathFactory) -> Path:
    """Return the folder with the example packages, which the first process of a test run that asks installs."""
    base = temporary.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "installed").exists():
            installed(base / "installing", base / "sources").rename(shared / "installed")
    return shared / "installed"


def installed(target: Path, work: Path) -> Path:
    """Install the example packages into a folder, offline, and return it.

    With pip and setuptools where they are at hand; else as pip would leave it: the module, and its entry points.
    """
    sources = [shutil.copytree(EXAMPLES / name, work / name) for name in PACKAGES]
    if all(importlib.util.find_spec(name) for name in ("pip", "setuptools")):
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--no-index", "--no-cache-dir", "--target", str(target)]
        subprocess.run([*command, *map(str, sources)], check=True, capture_output=True)
        return target
    for source in sources:
        project = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]
        info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
        groups = project["entry-points"].items()
        lines = [
            f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items()) for group, points in groups
        ]
        (info / "entry_points.txt").write_text("".join(lines))
        shutil.copy(source / f"{PACKAGES[source.name]}.py", target)
    return target
