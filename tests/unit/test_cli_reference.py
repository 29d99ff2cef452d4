"""`tools/cli_reference.py`: a command without a section on the page is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "cli_reference.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_reference", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_has_a_section(tool: ModuleType) -> None:
    page = tool.PAGE.read_text("utf-8")
    assert tool.without_section(page) == []
    cut = page.replace("## cascade promote\n", "").replace("## cascade traces purge\n", "")
    assert tool.without_section(cut) == ["cascade traces purge", "cascade promote"]  # in the order of the help
