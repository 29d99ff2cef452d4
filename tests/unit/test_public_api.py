"""The public names: sorted, loaded on first use, and all there."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from cases import each

import cascade

HOMES = {name: module for module, names in cascade._HOMES.items() for name in names.split()}


def test_all_is_the_sorted_public_names():
    assert cascade.__all__ == sorted(cascade.__all__)
    assert set(cascade.__all__) == {*HOMES, "__version__"}
    assert dir(cascade) == cascade.__all__


@each("name", sorted(HOMES))
def test_every_lazily_named_attribute_resolves_to_that_of_its_module(name):
    home = importlib.import_module(f"cascade.{HOMES[name]}")
    assert getattr(cascade, name) is getattr(home, name)
    assert getattr(home, name).__module__ == home.__name__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = cascade.Nonsense


def test_importing_the_package_runs_nothing_else():
    heavy = "pydantic aiohttp litellm xllamacpp tiktoken tenacity numpy yaml rich typer asyncio"
    code = f"import sys, cascade; print(sorted(set({heavy.split()!r}) & set(sys.modules)), [m for m in sys.modules if m.startswith('cascade.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "['cascade._names']"]
