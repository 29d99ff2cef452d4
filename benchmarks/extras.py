"""Ends a benchmark with one line that says how to install a missing package. A script imports this first."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from cascade.errors import MissingExtraError

ROOT = Path(__file__).parents[1]


def extras() -> Mapping[str, frozenset[str]]:
    """Return the distributions that each extra of pyproject.toml names."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    return {name: frozenset(re.split(r"[\[<>=!~]", one)[0] for one in listed) for name, listed in found.items()}


def advice(package: str) -> str | None:
    """Return how to install a package of an extra; None if no extra has it.

    >>> advice("mapie.risk_control")
    'This benchmark needs mapie. In the clone: pip install -c constraints.txt -e ".[dev]"'
    """
    name = package.partition(".")[0]
    extra = next((extra for extra, listed in extras().items() if name in listed), None)
    install = f'pip install -c constraints.txt -e ".[{extra}]"'
    return None if extra is None else f"This benchmark needs {name}. In the clone: {install}"


def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line for a missing package of an extra; show any other error as Python does."""
    line = advice(error.name) if isinstance(error, ModuleNotFoundError) and error.name else None
    line = str(error) if isinstance(error, MissingExtraError) else line
    if line is None:
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"{line}\n")


sys.excepthook = end
