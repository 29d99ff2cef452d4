"""Measure the house: sizes, names and paths of the project, and hold them to the marks in tools/marks.json.

A mark is the most that a figure may be. A mark that is passed or cannot be measured fails. Marks only go down:
`--lower` writes today's figures where they are lower, and a mark above the one before fails, unless `grants` names it.
A function's length is without its docstring. Run it with the project's own interpreter, since it asks and fits once.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MARKS = Path("tools/marks.json")
VAGUE = frozenset(
    """
    one ones found said says asked made held told taken given there shown known wanted seen kept left got did it that
    them thing things item stuff data2 val res tmp obj again ahead apart beside behind both each either else ever few
    first_one how many more most much none other others part parts piece place places read_ same some such what when
    where which who whole why
    """.split()  # noqa: SIM905 - eighty words, a line each otherwise
)
"""Names that say nothing about the value."""
NO_NAMES = frozenset({"one", "found", "said", "asked", "held", "made", "told", "taken", "kept"})
"""Participles that name no value, in any file; `Account.held` is the amount that holds have set aside."""


def tracked(pattern: str) -> list[Path]:
    """Return the tracked files that match a git pathspec."""
    out = subprocess.run(["git", "ls-files", pattern], capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in out.splitlines() if Path(line).is_file()]


def kinds_of_lines(source: str, tree: ast.AST) -> collections.Counter[str]:
    """Count code, docstring, comment and blank lines."""
    doc: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            doc.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    count: collections.Counter[str] = collections.Counter()
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        kind = "doc" if number in doc else "blank" if not text else "comment" if text.startswith("#") else "code"
        count[kind] += 1
    return count


def bindings(tree: ast.AST) -> collections.Counter[str]:
    """Count the names that the code binds: targets, attributes, arguments, functions and classes."""
    names: collections.Counter[str] = collections.Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names[node.attr] += 1
        elif isinstance(node, ast.arg):
            names[node.arg] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] += 1
    return names


def static() -> dict[str, float]:
    """Return the marks that need no import of the project."""
    marks: dict[str, float] = {}
    rooms: collections.Counter[str] = collections.Counter()
    lines: collections.Counter[str] = collections.Counter()
    functions: list[int] = []
    files: list[tuple[int, str]] = []
    statements = 0
    classes: dict[str, list[str]] = collections.defaultdict(list)
    names: collections.Counter[str] = collections.Counter()
    for path in tracked("cascade/*.py"):
        source = path.read_text("utf8")
        tree = ast.parse(source)
        count = kinds_of_lines(source, tree)
        lines += count
        total = sum(count.values())
        files.append((total, str(path)))
        rooms[path.parts[1] if len(path.parts) > 2 else "(top)"] += total
        names += bindings(tree)
        for node in ast.walk(tree):
            statements += isinstance(node, ast.stmt)
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].append(f"{path}:{node.lineno}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = (node.end_lineno or node.lineno) - node.lineno + 1
                if ast.get_docstring(node):
                    body -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                functions.append(body)
    functions.sort()
    marks["cascade_lines"] = sum(lines.values())
    marks["cascade_code_lines"] = lines["code"]
    marks["cascade_statements"] = statements
    others = [
        path
        for path in tracked("cascade/")
        if path.suffix not in (".py", ".jsonl", ".parquet", ".png", ".gguf") and "data" not in path.parts
    ]
    marks["cascade_other_text_lines"] = sum(path.read_text("utf8", "replace").count("\n") for path in others)
    marks["cascade_files"], marks["functions"] = len(files), len(functions)
    marks["function_p99"] = functions[int(len(functions) * 0.99)] if functions else 0
    marks["file_max"] = max(files)[0] if files else 0
    twice = {name: places for name, places in classes.items() if len(places) > 1}
    marks["class_names_twice"] = len(twice)
    bound = sum(names.values())
    vague = {name: n for name, n in names.items() if name.lstrip("_") in VAGUE}
    marks["vague_names_percent"] = round(100 * sum(vague.values()) / max(bound, 1), 1)
    marks["one_letter_percent"] = round(
        100 * sum(n for name, n in names.items() if len(name) == 1 and name != "_") / max(bound, 1), 1
    )
    bound_in = [bindings(ast.parse(path.read_text("utf8"))).items() for path in tracked("*.py")]
    marks["participles"] = sum(n for names in bound_in for name, n in names if name.strip("_") in NO_NAMES)
    for folder in ("tests", "benchmarks", "tools", "examples"):
        marks[f"{folder}_lines"] = sum(path.read_text("utf8").count("\n") for path in tracked(f"{folder}/*.py"))
    for folder in ("docs", "design"):
        marks[f"{folder}_words"] = sum(len(path.read_text("utf8").split()) for path in tracked(f"{folder}/*.md"))
    readme = Path("README.md").read_text("utf8")
    marks["readme_lines"], marks["readme_words"] = readme.count("\n"), len(readme.split())
    print("rooms:", ", ".join(f"{room} {n}" for room, n in rooms.most_common()))
    print("longest files:", ", ".join(f"{name} {n}" for n, name in sorted(files, reverse=True)[:5]))
    print(
        "class names used twice:",
        ", ".join(f"{name} x{len(p)}" for name, p in sorted(twice.items(), key=lambda x: -len(x[1]))[:12]),
    )
    print("vague names:", ", ".join(f"{name} {n}" for name, n in sorted(vague.items(), key=lambda x: -x[1])[:14]))
    return marks


RUN = r"""
import sys, threading, warnings, json, inspect, dataclasses, typing
warnings.simplefilter("ignore")
files, moves, last, counting, root = set(), 0, None, False, None
def profile(frame, event, arg):
    global moves, last
    if not counting or event != "call": return
    name = frame.f_code.co_filename
    if name.startswith(root):
        files.add(name)
        moves += name != last
        last = name
threading.setprofile(profile); sys.setprofile(profile)  # before the import, so that every thread is seen
from pathlib import Path
import cascade
root = str(Path(cascade.__file__).parent)
p = {"input": 1, "output": 4}
models = {"base": {"model": "a", "price": p}, "guide": {"model": "b", "price": p}}
ladder = {"kind": "ladder", "models": ["base", "guide"]}
o = cascade.Orchestrator.from_config({"models": models, "provider": "fake", "strategy": ladder, "traces": "off"})
o.ask("warm up")
counting = True
o.ask("Which river runs through Vienna?")
counting = False
sys.setprofile(None)
def options(parameters, seen):
    total = 0
    for parameter in parameters:
        total += 1
        hint, default = str(parameter.annotation), parameter.default
        kind = type(default)
        held = dataclasses.fields(default) if dataclasses.is_dataclass(default) else ()
        fields = getattr(kind, "_fields", None) or [f.name for f in held] or list(getattr(kind, "model_fields", ()))
        if kind.__module__.startswith("cascade") and kind not in seen:
            seen.add(kind); total += len(fields)
    return total
signature = inspect.signature(cascade.fit)
marks = {"ask_files": len(files), "ask_moves": moves}
marks["orchestrator_members"] = len([m for m in dir(cascade.Orchestrator) if not m.startswith("_")])
marks["fit_parameters"] = len(signature.parameters)
marks["fit_options"] = options(signature.parameters.values(), set())
print(json.dumps(marks))
"""
FIT = r"""
import sys, warnings, json
warnings.simplefilter("ignore")
from pathlib import Path
import cascade
root = str(Path(cascade.__file__).parent)
files = set()
def profile(frame, event, arg):
    if event == "call" and frame.f_code.co_filename.startswith(root): files.add(frame.f_code.co_filename)
sys.setprofile(profile)
cascade.fit("demo-requests", cascade.Promise("agreement", 0.05, 0.9), tell=lambda *_: None)
sys.setprofile(None)
print(json.dumps({"fit_files": len(files)}))
"""


def running() -> dict[str, float]:
    """Return the marks of one question and one fit, each in a process of its own.

    What a thread of duckdb calls is not seen, and which one calls a matcher is chance: of three fits the least counts.
    """
    marks: dict[str, float] = {}
    for program in (RUN, FIT, FIT, FIT):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            measured = json.loads(done.stdout.strip().splitlines()[-1])
            marks |= {name: min(value, marks.get(name, value)) for name, value in measured.items()}
    return marks


def raised(marks: dict[str, Any]) -> list[str]:
    """Return the marks that are higher than in the version of the file before, without a grant."""
    command = ["git", "log", "--format=%H", "-2", "--", str(MARKS)]
    commits = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    clean = not subprocess.run(["git", "diff", "--quiet", "HEAD", "--", str(MARKS)], check=False).returncode
    before = commits[1:] if clean else commits[:1]
    if not before:
        return []
    shown = subprocess.run(["git", "show", f"{before[0]}:{MARKS}"], capture_output=True, text=True, check=False)
    old = json.loads(shown.stdout)["marks"] if shown.returncode == 0 else {}
    granted = marks.get("grants", {})
    return [name for name, most in marks["marks"].items() if name in old and most > old[name] and name not in granted]


def main() -> int:
    """Print the figures beside their marks; return 1 if one is passed, missing or raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="write today's figures where they are lower")
    lower = parser.parse_args().lower
    figures, marks = static() | running(), json.loads(MARKS.read_text("utf8"))
    most: dict[str, float] = marks["marks"]
    for name, value in figures.items():
        limit = f"   at most {most[name]:,}" if name in most else ""
        print(f"{name:24} {value:>9,.10g}{limit}{'   PASSED' if name in most and value > most[name] else ''}")
    wrong = [name for name in most if name not in figures or figures[name] > most[name]]
    for name in most.keys() - figures.keys():
        print(f"{name:24} could not be measured")
    for name in raised(marks):
        print(f"{name:24} has a higher mark than before, without a grant")
        wrong.append(name)
    if lower:
        marks["marks"] = {name: min(limit, figures.get(name, limit)) for name, limit in most.items()}
        MARKS.write_text(json.dumps(marks, indent=2) + "\n", "utf8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
