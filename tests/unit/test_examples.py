"""Every example, and the Python on the pages, runs as it stands, offline."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
ELSEWHERE = {"local_pair.py", "loop.py"}
"""The first needs models' weights; the second takes minutes, and its parts are in `unit/server/test_modes.py`."""
OFFLINE = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in ELSEWHERE)


@pytest.fixture
def leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripted answers are no traces of the project in whose folder an example runs."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("name", OFFLINE)
def test_it_runs_and_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", ["docs/index.md", "docs/python.md", "docs/fit.md", "docs/write-an-agent.md"])
def test_the_python_on_the_page_runs(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {"__name__": "example"}
    for code in blocks:
        exec(compile(code, page, "exec"), names)  # noqa: S102 - our own page


@pytest.mark.usefixtures("leaves_nothing")
async def test_the_notebook_runs_in_an_event_loop(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for cell in json.loads((FOLDER / "notebook.ipynb").read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), "notebook", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)  # noqa: S307 - our own cells
            if inspect.isawaitable(running):
                await running
    assert "True 3" in capsys.readouterr().out
    assert [study.verdict for study in names["result"].studies] == ["saves"]
