"""The reference shows every name that a page or an example imports, and each name on it exists."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference-modules.md").read_text("utf-8"), re.MULTILINE)


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text("utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for code in re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL):
            yield path.name, code


def imported(code: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("cascade."):
            yield from ((node.module, alias.name) for alias in node.names)


def found(name: str) -> Any:
    """Return what a dotted name stands for: a module, or a name in one."""
    module, _, last = name.rpartition(".")
    held = getattr(importlib.import_module(module), last, None)
    return importlib.import_module(name) if held is None else held


def test_every_name_that_is_shown_exists_and_stands_once() -> None:
    assert len(SHOWN) == len(set(SHOWN))
    assert all(found(name) is not None for name in SHOWN)


def test_every_name_that_a_page_or_example_imports_is_shown() -> None:
    shown = [found(name) for name in SHOWN]
    public = importlib.import_module("cascade").__all__
    missing = [
        f"{where}: from {module} import {name}"
        for where, code in sources()
        for module, name in imported(code)
        if name not in public and not any(found(f"{module}.{name}") is one for one in shown)
    ]
    assert not missing, "add them to docs/reference-modules.md"


def style(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load tools/docs_style.py; griffe comes with `make docs` alone."""
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Object=Any, Class=Any))
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.delitem(sys.modules, "docs_style", raising=False)
    return importlib.import_module("docs_style")


def test_an_example_in_a_docstring_becomes_a_block_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = style(monkeypatch).fenced
    text = "Add.\n\n    >>> f(1)\n    2\n\nMore.\n\n>>> 1\n1"
    shown = "Add.\n\n    ```pycon\n    >>> f(1)\n    2\n    ```\n\nMore.\n\n```pycon\n>>> 1\n1\n```"
    assert fenced(text) == shown
    assert fenced(shown) == shown
    assert fenced("No example.\n\nAt all.") == "No example.\n\nAt all."
