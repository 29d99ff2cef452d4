"""Print files and functions of cascade/ by length, beside the limits that the project holds itself to.

A function's length is without its docstring. The limits are the first group of the code bases the project learns from:
p99 of functions at most 60 lines; a file holds one idea, in 600 lines at most.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 600
MAX_P99_FUNCTION_LINES = 60


def function_lengths(tree: ast.AST) -> Iterator[int]:
    """Yield the lengths of all functions in a module, docstrings not counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                length -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield length


def line(name: str, values: list[int]) -> str:
    """Return one line of the table."""
    ordered = sorted(values)

    def at(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    return f"{name:10} {len(ordered):6d} {at(0.5):7d} {at(0.9):5d} {at(0.99):5d} {ordered[-1]:5d}"


def main() -> None:
    """Print the table; end with 1 if a limit is passed."""
    root = Path(__file__).parent.parent / "cascade"
    sources = {path: path.read_text("utf-8") for path in sorted(root.rglob("*.py"))}
    files = [text.count("\n") for text in sources.values()]
    functions = [length for text in sources.values() for length in function_lengths(ast.parse(text))]
    print(f"{'lines of':10} {'count':>6} {'median':>7} {'p90':>5} {'p99':>5} {'max':>5}")
    print(line("files", files))
    print(line("functions", functions))
    p99 = sorted(functions)[int(len(functions) * 0.99)]
    if max(files) > MAX_FILE_LINES or p99 > MAX_P99_FUNCTION_LINES:
        sys.exit(f"over the limit: files at most {MAX_FILE_LINES} lines, functions at p99 {MAX_P99_FUNCTION_LINES}")


if __name__ == "__main__":
    main()
