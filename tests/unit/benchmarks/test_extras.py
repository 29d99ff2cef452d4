"""Each benchmark says how to install the packages that it needs, and ends with one line where one is missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from extras import DISTRIBUTIONS, extras

FOLDER = Path(__file__).parents[3] / "benchmarks"
SCRIPTS = [path for path in sorted(FOLDER.glob("*.py")) if path.name != "extras.py"]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def packages(path: Path, seen: set[Path]) -> set[str]:
    """Return the distributions of extras that a script and the files beside it import."""
    seen.add(path)
    found = set()
    for name in imported(path):
        beside = FOLDER / f"{name.replace('.', '/')}.py"
        if beside.exists():
            found |= set() if beside in seen else packages(beside, seen)
        else:
            top = name.partition(".")[0]
            found.add(DISTRIBUTIONS.get(top, top))
    return found & frozenset().union(*extras().values())


def test_every_benchmark_names_the_extras_of_its_packages() -> None:
    wrong = []
    for path in SCRIPTS:
        needed = packages(path, set())
        said = re.search(r'pip install -c constraints.txt -e "\.\[([\w,-]+)\]"', path.read_text("utf-8"))
        named = said[1].split(",") if said else []
        there = frozenset().union(*(extras()[name] for name in named))
        if not needed <= there or (needed and "extras" not in imported(path)):
            wrong.append(f"{path.name}: {sorted(needed - there)}")
    assert not wrong
    assert "mapie" in packages(FOLDER / "simple_ways.py", set())


@pytest.mark.parametrize(
    ("script", "package", "extra"),
    [("simple_ways", "mapie", "dev"), ("chat_overhead", "httpx", "dev")],
)
def test_a_missing_package_is_one_line(tmp_path: Path, script: str, package: str, extra: str) -> None:
    lacking = f"import runpy, sys; sys.modules[{package!r}] = None; sys.path.insert(0, {str(FOLDER)!r}); "
    run = f"runpy.run_path({str(FOLDER / f'{script}.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", lacking + run], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    line = f'This benchmark needs {package}. In the clone: pip install -c constraints.txt -e ".[{extra}]"'
    assert done.stderr == f"{line}\n"
