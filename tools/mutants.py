"""Change the code in 200 fixed ways, one at a time, and count the changes that the tests notice.

    python tools/mutants.py                     applies each mutant of mutants.json and runs the tests of its file
    python tools/mutants.py --room ledger       those of one room
    python tools/mutants.py --check             says which mutants no longer fit the code, and runs nothing
    python tools/mutants.py --make              draws the mutants anew: rooms whose files were replaced need that

A mutant is a line of a file and what to put in its place; it is found by its text, so moved lines do not matter. It is
applied in a copy of the tracked files and judged by the test files of its file (`TESTS`), then by those of its room:
"killed" if a test fails or takes too long, "survived" if all pass, "gone" if the line is not there once. Results are
written as they come, to mutants-result.json; a stopped run goes on where it was.

Mutants are drawn by a hash of their text, so that a change elsewhere leaves the others as they are. Left out are lines
that cannot matter or only say something: types, docstrings, messages, logging, sizes of caches, and `SKIPPED`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIST, RESULT = ROOT / "tools" / "mutants.json", ROOT / "tools" / "mutants-result.json"
SEED, EACH, MOST_OF_FUNCTION = 7, 50, 5

ROOMS: Mapping[str, Sequence[str]] = {
    "certifier": [
        *(f"cascade/conformal/{name}.py" for name in ("path", "certify", "binomial", "monitor")),
        *(f"cascade/fitting/{name}.py" for name in ("menu", "attempts", "divide")),
    ],
    "guard": ["cascade/providers/guard.py", "cascade/resilience/health.py"],
    "ledger": [
        *(f"cascade/budget/{name}.py" for name in ("caps", "charges", "tokens")),
        "cascade/records/database.py",
        "cascade/records/ledger.py",
        "cascade/serving/spending.py",
    ],
    "reading": ["cascade/providers/reading.py", "cascade/providers/assembling.py", "cascade/chat_faults.py"],
}
"""The files of each room; files that do not exist are left out."""

_CONFORMAL, _FITTING = "tests/unit/conformal/test_", "tests/unit/fitting/test_"
TESTS: Mapping[str, Sequence[str]] = {
    "path": [_FITTING + "order_of_purchase.py", "tests/record"],
    "certify": [_FITTING + "fit.py", "tests/record"],
    "menu": [_FITTING + "menu.py", _FITTING + "fit.py"],
    "attempts": [_FITTING + "fit.py"],
    "divide": [_FITTING + "fit.py"],
    "binomial": [_CONFORMAL + "binomial.py"],
    "monitor": [_CONFORMAL + "monitor.py"],
    "guard": ["tests/unit/providers/test_guard.py"],
    "health": ["tests/unit/resilience", "tests/unit/providers/test_guard.py"],
    "caps": [
        "tests/unit/budget/test_caps.py",
        "tests/unit/records/test_leases.py",
        "tests/unit/serving/test_spending.py",
    ],
    "charges": ["tests/unit/budget", "tests/unit/test_engine.py"],
    "database": ["tests/unit/budget/test_caps.py", "tests/unit/records/test_traces.py"],
    "ledger": ["tests/unit/records/test_leases.py", "tests/unit/budget/test_caps.py"],
    "tokens": ["tests/unit/budget/test_charges.py"],
    "spending": ["tests/unit/serving/test_spending.py"],
    "reading": ["tests/unit/providers/test_reading.py", "tests/unit/providers/test_replay.py"],
    "assembling": ["tests/unit/providers/test_assembling.py"],
    "chat_faults": ["tests/unit/test_chat.py", "tests/faults/test_chat_messages.py"],
}
"""By a file's name, the tests that judge its mutants first."""
ROOM_TESTS: Mapping[str, Sequence[str]] = {
    "certifier": [
        "tests/record",
        "tests/unit/conformal",
        "tests/unit/fitting",
        "tests/unit/test_broken_promises.py",
    ],
    "guard": [
        "tests/unit/resilience",
        "tests/unit/providers/test_deployments.py",
        "tests/unit/server/test_reasoning.py",
        "tests/faults/test_payload.py",
        "tests/faults/test_transport.py",
        "tests/faults/test_table.py",
        "tests/faults/test_gateway.py",
        "tests/unit/test_streaming.py",
        "tests/unit/test_engine.py",
        "tests/unit/server/test_http.py",
    ],
    "ledger": [
        "tests/unit/budget",
        "tests/unit/serving/test_spending.py",
        "tests/unit/test_engine.py",
        "tests/unit/test_chat.py",
        "tests/unit/test_orchestrator.py",
        "tests/unit/config/test_loading.py",
        "tests/unit/collect",
        "tests/unit/server/test_http.py",
        "tests/unit/server/test_contract.py",
        "tests/faults/test_gateway.py",
        "tests/faults/test_table.py",
        "tests/property/test_engine.py",
    ],
    "reading": [
        "tests/unit/providers",
        "tests/unit/test_chat.py",
        "tests/unit/server/test_contract.py",
        "tests/property/test_reading.py",
        "tests/faults/test_payload.py",
        "tests/faults/test_table.py",
        "tests/faults/test_chat_messages.py",
    ],
}
"""The tests that judge what the first ones let through."""

SKIPPED: Mapping[str, str] = {
    "binomial": r"unspent|_law|MOST_QUESTIONS",
    "monitor": r"_log_urn|_log_most|_log_beta|_hurdles|hoeffding|_count_of|_divergence"
    r"|_problems|_HURDLES|_POWER|_LARGEST",
    "spending": r"_EarlyGuard",
}
"""By a file's name, a pattern of the functions and constants that get no mutant: advice, sizes, and what will go."""
_IDLE = re.compile(
    r"^\s*(@|from |import |\"\"\"|#|assert |logger|raise )|joint|exchangeable|hurdle|\bnull\b|budget_nano|most_nano"
    r"|_CHUNK|lru_cache|_MOST_CELLS|_QUOTED|_NAMED|__slots__|__all__|TypeAlias|TYPE_CHECKING|strict=|repr="
)


class Mutant(NamedTuple):
    """A change: in a file, within a function, by an operator, a text that is there once, and its replacement."""

    room: str
    file: str
    function: str
    operator: str
    before: str
    after: str

    @property
    def name(self) -> str:
        """A short name, by which results are kept."""
        return hashlib.sha256("\0".join([str(SEED), *self[1:]]).encode()).hexdigest()[:10]


# --- the operators ---

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_MOST_CONSTANT = 1000
"""A larger number is a size, and one more of it changes nothing."""
_SWAPS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
    "minimum": "maximum",
    "maximum": "minimum",
    "left": "right",
    "right": "left",
}


class _Edit(NamedTuple):
    """Bytes of a line to replace: from `start` to `end`."""

    line: int
    start: int
    end: int
    operator: str
    text: str


def _between(
    lines: Sequence[bytes], left: ast.expr, right: ast.expr, old: str, new: str, operator: str
) -> Iterator[_Edit]:
    """Yield the edit of an operator between two operands on one line."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    gap = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
    match = re.search(rb"(?<![\w<>=!*/])" + re.escape(old.encode()) + rb"(?![\w<>=*/])", gap)
    if match is not None:
        start = left.end_col_offset + match.start()
        yield _Edit(right.lineno, start, start + len(old.encode()), operator, new)


def _edits(node: ast.AST, lines: Sequence[bytes]) -> Iterator[_Edit]:
    """Yield what can be changed at a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        old, new = _COMPARISONS[type(node.ops[0])]
        yield from _between(lines, node.left, node.comparators[0], old, new, "comparison")
    elif isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from _between(lines, node.values[0], node.values[1], old, new, "and, or")
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_class(node.right):
        old, new = _ARITHMETIC[type(node.op)]
        yield from _between(lines, node.left, node.right, old, new, "arithmetic")
    elif isinstance(node, ast.expr | ast.stmt) and node.lineno == node.end_lineno:
        yield from _edits_on_a_line(node, lines[node.lineno - 1])


def _edits_on_a_line(node: ast.expr | ast.stmt, text: bytes) -> Iterator[_Edit]:
    line, start, end = node.lineno, node.col_offset, node.end_col_offset or 0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield _Edit(line, start, node.operand.col_offset, "dropped not", "")
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
        at = text.index(old.encode(), node.target.end_col_offset or 0)
        yield _Edit(line, at, at + 2, "arithmetic", new)
    elif isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in _SWAPS:
            yield _Edit(line, end - len(name), end, "swapped name", _SWAPS[name])
    elif isinstance(node, ast.Constant):
        yield from _constants(node, line, (start, end))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield _Edit(line, start, end, "returned None", "return None")
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield _Edit(line, start, end, "dropped call", "pass")


def _is_class(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id[0].isupper()


def _constants(node: ast.Constant, line: int, whole: tuple[int, int]) -> Iterator[_Edit]:
    if isinstance(node.value, bool):
        yield _Edit(line, *whole, "constant", str(not node.value))
    elif isinstance(node.value, int | float) and abs(node.value) < _MOST_CONSTANT:
        yield _Edit(line, *whole, "constant", repr(node.value + 1))
    elif node.value in {"left", "right"}:
        yield _Edit(line, *whole, "constant", repr(_SWAPS[str(node.value)]))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _nodes(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each node that does something, with the name of its function."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "type_comment", "bases"}:
            continue
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, ast.AST) or isinstance(each, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import):
                continue
            name = function
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{function}.{each.name}".lstrip(".")
            elif isinstance(each, ast.Assign) and not function and isinstance(each.targets[0], ast.Name):
                name = each.targets[0].id
            yield name, each
            yield from _nodes(each, name)


def _raises(tree: ast.AST, lines: Sequence[bytes]) -> Iterator[tuple[str, _Edit]]:
    """Yield the removal of each `raise` that has a line for itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in ast.walk(node):
                if isinstance(each, ast.Raise) and each.lineno == each.end_lineno and each.exc is not None:
                    yield (
                        node.name,
                        _Edit(each.lineno, each.col_offset, len(lines[each.lineno - 1]), "removed raise", "pass"),
                    )


def candidates(room: str, file: str) -> Iterator[Mutant]:
    """Yield every mutant of a file whose text is there once."""
    text = (ROOT / file).read_text("utf-8")
    tree, lines = ast.parse(text), [line.encode() for line in text.split("\n")]
    skipped = re.compile(SKIPPED.get(Path(file).stem, r"(?!)"))
    every = [(function, edit) for function, node in _nodes(tree) for edit in _edits(node, lines)]
    for function, edit in dict.fromkeys([*every, *_raises(tree, lines)]):
        line = lines[edit.line - 1]
        idle = _IDLE.search(line.decode()) and edit.operator != "removed raise"
        if idle or skipped.search(function) or b"# noqa: S101" in line:
            continue
        changed = line[: edit.start] + edit.text.encode() + line[edit.end :]
        before, after = _unique(text, lines, edit.line, changed)
        if before and _compiles(text.replace(before, after)):
            yield Mutant(room, file, function, edit.operator, before, after)


def _unique(text: str, lines: Sequence[bytes], number: int, changed: bytes) -> tuple[str, str]:
    """Return a line with as many of the lines before it as make it unique, and what to put there."""
    for more in range(6):
        above = [line.decode() for line in lines[max(0, number - 1 - more) : number - 1]]
        before, after = ("\n".join([*above, line.decode()]) + "\n" for line in (lines[number - 1], changed))
        if text.count(before) == 1:
            return before, after
    return "", ""


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def make() -> list[Mutant]:
    """Draw the mutants of each room, by their hashes: one a line, a few a function."""
    mutants: list[Mutant] = []
    for room, files in ROOMS.items():
        every = [each for file in files if (ROOT / file).exists() for each in candidates(room, file)]
        used, functions = set[str](), Counter[str]()
        for each in sorted(every, key=lambda each: each.name):
            place = f"{each.file} {each.before}"
            full = functions[f"{each.file} {each.function}"] >= MOST_OF_FUNCTION
            if place in used or full or sum(mutant.room == room for mutant in mutants) == EACH:
                continue
            used.add(place)
            functions[f"{each.file} {each.function}"] += 1
            mutants.append(each)
    return mutants


# --- running ---


def run(mutants: Sequence[Mutant], *, broad: bool) -> None:
    """Judge the mutants that have no result yet, and write each result at once."""
    results: dict[str, str] = json.loads(RESULT.read_text("utf-8"))["results"] if RESULT.exists() else {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        _copy(tree)
        for module in ("pytest", "numpy", "pydantic", "sqlalchemy", "httpx"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        sound: list[list[str]] = []
        for each in mutants:
            wanted = {None, "passed by its file's tests"} if broad else {None}
            if results.get(each.name) not in wanted:
                continue
            tests = _tests(each, tree, broad=broad)
            if tests not in sound and not _passes(tests, tree):
                output = (tree / "pytest.log").read_text("utf-8")[-2000:]
                sys.exit(f"These tests fail on the code as it is: {' '.join(tests)}\n{output}")
            sound.append(tests)
            started = time.monotonic()
            results[each.name] = _judge(each, tree, broad=broad)
            shown = each.before.splitlines()[-1].strip()
            print(f"{results[each.name]:<28} {time.monotonic() - started:5.1f} s  {each.file}: {shown}", flush=True)
            _write(mutants, results)


def _copy(tree: Path) -> None:
    """Copy the tracked files, compiled, so that no run has to write."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "cascade", "tests"], cwd=tree, check=False)


def _judge(mutant: Mutant, tree: Path, *, broad: bool) -> str:
    """Apply one mutant in the copy, run its tests, and take it back."""
    path = tree / mutant.file
    text = path.read_text("utf-8") if path.exists() else ""
    if text.count(mutant.before) != 1:
        return "gone"
    for each in path.parent.glob(f"__pycache__/{path.stem}.*"):
        each.unlink()  # compiled again in each run: two mutants of one second and one length look the same
    path.write_text(text.replace(mutant.before, mutant.after), "utf-8")
    try:
        passed = _passes(_tests(mutant, tree, broad=broad), tree)
    finally:
        path.write_text(text, "utf-8")
    if not passed:
        return "killed" if not broad else "killed by its room's tests"
    return "survived" if broad else "passed by its file's tests"


def _tests(mutant: Mutant, tree: Path, *, broad: bool) -> list[str]:
    """Return what judges a mutant, of the files that exist: tests, and the examples in the docstrings of its file."""
    tests = ROOM_TESTS[mutant.room] if broad else TESTS.get(Path(mutant.file).stem, ROOM_TESTS[mutant.room])
    return [test for test in [*tests, mutant.file] if (tree / test).exists()]


_BROKEN = 70
"""The exit code of a child that could not run pytest."""
PER_TEST_S, CPU_S, WALL_S = 60, 300, 900
"""What one test may take, and the tests of one mutant, in seconds; more is a failure."""


def _passes(tests: Sequence[str], tree: Path) -> bool:
    """Run tests in a child of this process, which has the large packages loaded; return whether all pass."""
    child = os.fork()
    if not child:
        try:
            _test(tests, tree)
        finally:
            traceback.print_exc()
            os._exit(_BROKEN)
    until = time.monotonic() + WALL_S
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code in {3, 4, 5, _BROKEN}:
                output = (tree / "pytest.log").read_text("utf-8")[-2000:]
                raise RuntimeError(f"pytest cannot run {tests}: it ended with {code}. {output}")
            return code == 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _test(tests: Sequence[str], tree: Path) -> None:
    import pytest

    os.setpgid(0, 0)
    os.chdir(tree)
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    sys.path[:0] = [str(tree)]
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    output = os.open(tree / "pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    with contextlib.suppress(BaseExceptionGroup):  # what a failed test left open
        code = pytest.main(["-x", "-q", "-p", "no:randomly", "-p", "no:xdist", f"--timeout={PER_TEST_S}", *tests])
    os._exit(int(code))


def _write(mutants: Sequence[Mutant], results: Mapping[str, str]) -> None:
    totals: dict[str, Counter[str]] = {}
    for each in _read():
        result = results.get(each.name, "not run")
        totals.setdefault(each.room, Counter())["killed" if result.startswith("killed") else result] += 1
    del mutants
    document = {"totals": {room: dict(sorted(count.items())) for room, count in totals.items()}, "results": results}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _read() -> list[Mutant]:
    return [Mutant(*each) for each in json.loads(LIST.read_text("utf-8"))]


def _fits(mutant: Mutant) -> bool:
    path = ROOT / mutant.file
    return path.exists() and path.read_text("utf-8").count(mutant.before) == 1


def main() -> int:
    """Do what the command line says; 1 if a mutant is gone (`--check`)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--room", choices=list(ROOMS))
    given = parser.parse_args()
    if given.make:
        LIST.write_text(json.dumps(make(), indent=0, ensure_ascii=False) + "\n", "utf-8")
        return 0
    mutants = [each for each in _read() if given.room in {None, each.room}]
    if given.check:
        there = {
            file: (ROOT / file).read_text("utf-8") if (ROOT / file).exists() else ""
            for file in {m.file for m in mutants}
        }
        gone = [each for each in mutants if there[each.file].count(each.before) != 1]
        print("\n".join(f"{each.name} {each.file} {each.function}" for each in gone))
        return int(bool(gone))
    run(mutants, broad=False)
    run(mutants, broad=True)
    print(json.dumps(json.loads(RESULT.read_text("utf-8"))["totals"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
