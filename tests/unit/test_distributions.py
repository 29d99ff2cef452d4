"""What is published: two distributions of the same files, one of which does not need litellm, and nothing besides."""

from __future__ import annotations

import importlib.util
import tarfile
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "pyproject.toml").read_text("utf-8")
FULL = tomllib.loads(TEXT)["project"]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("distributions", ROOT / "tools" / "distributions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


distributions = load()
FILES = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "cascade").rglob("*")
    if path.is_file() and path.suffix != ".pyc"
}
INFO = "certified_cascade-1.0.dist-info"
WHEEL = FILES | {f"{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
SDIST = FILES | {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml", ".gitignore"}


def wheel(folder: Path, names: set[str]) -> Path:
    path = folder / "certified_cascade-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def sdist(folder: Path, names: set[str]) -> Path:
    path = folder / "certified_cascade-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"certified_cascade-1.0/{name}"), BytesIO())
    return path


def test_the_core_is_the_same_project_without_litellm() -> None:
    core = tomllib.loads(distributions.core_project(TEXT))["project"]
    (litellm,) = set(FULL["dependencies"]) - set(core["dependencies"])
    assert [litellm] == core["optional-dependencies"]["litellm"]
    assert core.pop("name") == "certified-cascade-core"
    assert core["optional-dependencies"].pop("all") == [
        "certified-cascade-core[litellm,local,logs,train,sql,math,server,otel]"
    ]
    same = {name: value for name, value in FULL.items() if name not in {"name", "dependencies"}}
    same["optional-dependencies"] = {k: v for k, v in FULL["optional-dependencies"].items() if k != "all"}
    assert {name: value for name, value in core.items() if name != "dependencies"} == same


def test_all_has_every_extra_that_a_user_may_want() -> None:
    extras = FULL["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert {one for extra in named for one in extras[extra]} == {
        one for extra, found in extras.items() if extra not in {"all", "dev", "dev-pages", "docs"} for one in found
    }


@pytest.mark.parametrize(("write", "whole"), [(wheel, WHEEL), (sdist, SDIST)])
def test_a_file_that_is_lost_or_slipped_in_is_named(write: Any, whole: set[str], tmp_path: Path) -> None:
    assert distributions.problems(write(tmp_path, whole)) == []
    lost = {"cascade/py.typed", "cascade/data/prices.json", max(name for name in whole if "LICENSE" in name)}
    extra = {"tests/unit/test_types.py", "shared/data/log.parquet", "cascade/notes.txt"}
    found = distributions.problems(write(tmp_path, whole - lost | extra))
    assert len(found) == len(lost | extra)
    assert all(any(line.endswith(f"lacks {name}") for line in found) for name in lost)
    assert all(any(line.endswith(f"should not have {name}") for line in found) for name in extra)
