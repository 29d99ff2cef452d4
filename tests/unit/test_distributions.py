"""What is published: two distributions of one project, one of which does not need litellm."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

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


def test_the_core_is_the_same_project_without_litellm() -> None:
    core = tomllib.loads(distributions.core_project(TEXT))["project"]
    (litellm,) = set(FULL["dependencies"]) - set(core["dependencies"])
    assert [litellm] == core["optional-dependencies"]["litellm"]
    assert core.pop("name") == "certified-cascade-core"
    assert core["optional-dependencies"].pop("all") == [
        "certified-cascade-core[litellm,local,logs,train,sql,math,server,otel,ray]"
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
