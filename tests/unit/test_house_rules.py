"""What the code may not do, read off its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

import cascade

ROOT = Path(cascade.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module."""
    paths = sorted(ROOT.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


ONLY_IN = {
    "litellm": {"providers/litellm.py"},
    "tenacity": {"resilience/retry.py"},
    "xllamacpp": {"providers/local.py"},
    "torch": {"policies/networks.py"},
    "ray": {"scale.py"},
    "pickle": set(),
    "marshal": {"chat.py"},  # it reads what it wrote itself, to copy plain values
    "shelve": set(),
    "dill": set(),
    "cloudpickle": set(),
    "requests": set(),
    "yaml": {"config/yamlfile.py", "logs/presets.py"},
    "math_verify": {"matching/maths_worker.py"},
    "matplotlib": set(),
    "duckdb": {"logs/duck.py"},
    "pyarrow": set(),
    "scipy": set(),
    "starlette": {"server/"},
    "uvicorn": {"server/running.py", "server/wire.py"},
    "httpx": set(),
    "aiohttp": {"providers/openai_http.py"},
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "yaml.unsafe_load",
    "yaml.full_load",
    "torch.load",
    "time.time",
    "os.system",
    "time.localtime",
}
READS_ENVIRONMENT = {
    *("config/__init__.py", "matching/code.py"),
    *("providers/litellm.py", "providers/local.py", "scale.py"),
}


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a syntax tree."""
    return tuple(ast.walk(tree))


@cache
def imported(tree: ast.AST) -> tuple[str, ...]:
    return tuple(_imported(tree))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_a_package_is_imported_only_where_it_may_be() -> None:
    packages = {name: {one.split(".")[0] for one in imported(tree)} for name, tree in trees().items()}
    for package, places in ONLY_IN.items():
        users = {name for name, used in packages.items() if package in used}
        folders = tuple(one for one in places if one.endswith("/"))
        found = {next((one for one in folders if name.startswith(one)), name) for name in users}
        assert found == places, package


def test_nothing_dangerous_is_called() -> None:
    wrong = []
    for name, tree in trees().items():
        called = {dotted(node.func) for node in nodes(tree) if isinstance(node, ast.Call)}
        wrong += [f"{name}: {one}" for one in sorted(called & FORBIDDEN_CALLS)]
        wrong += [f"{name}: {one}" for one in imported(tree) if one == "time.time"]
    assert wrong == []


def test_no_test_measures_time() -> None:
    """What a slow or busy machine takes is no mistake: steps are counted (`tests/steps.py`), and clocks are a test's own."""
    here = Path(__file__).parents[1]
    looked = re.compile(r"(?:perf_counter|process_time|thread_time|monotonic|\btime)(?:_ns)?\(\) - ")
    files = [one for one in here.rglob("test_*.py") if here / "long" not in one.parents]
    assert [one.name for one in files if looked.search(one.read_text("utf-8"))] == []


def test_yaml_is_loaded_with_a_subclass_of_the_safe_loader_only() -> None:
    from cascade.config.yamlfile import _Loader, yaml

    assert issubclass(_Loader, yaml.SafeLoader)
    calls = [
        node
        for node in nodes(trees()["config/yamlfile.py"])
        if isinstance(node, ast.Call) and dotted(node.func) == "yaml.load"
    ]
    assert [dotted(call.args[1]) for call in calls] == ["_Loader"]


def test_the_environment_is_read_only_where_it_may_be() -> None:
    readers = set()
    for name, tree in trees().items():
        used = {dotted(node) for node in nodes(tree) if isinstance(node, ast.Attribute)}
        if used & {"os.environ", "os.getenv", "os.environb", "os.putenv"} or "os.environ" in set(imported(tree)):
            readers.add(name)
    assert readers == READS_ENVIRONMENT


GUARANTEES = {"coverage", "regret", "error"}
KINDS = GUARANTEES | {"agreement", "preference"}
ELSEWHERE = {"regret"}
"""Names that mean a kind of guarantee wherever they are compared; the others also name figures and fields."""


def _branches(node: ast.AST) -> bool:
    """Whether a comparison, or a list of cases, tells one kind of guarantee from another."""
    if isinstance(node, ast.Compare):
        texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        return bool(texts & ELSEWHERE or (texts & KINDS and ".kind" in ast.unparse(node)))
    cases = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
    return len(GUARANTEES & {one.value for one in cases if isinstance(one, ast.Constant)}) > 1


def test_a_kind_of_guarantee_is_told_from_another_in_its_own_room_alone() -> None:
    others = {name: tree for name, tree in trees().items() if name != "conformal/promise.py"}
    found = [f"{name}:{node.lineno}" for name, tree in others.items() for node in nodes(tree) if _branches(node)]
    assert found == []


def test_nothing_is_printed_outside_the_command_line() -> None:
    for name, tree in trees().items():
        called = {dotted(node.func) for node in nodes(tree) if isinstance(node, ast.Call)}
        assert "print" not in called, name
        assert name.startswith("cli/") or "sys.exit" not in called, name


def test_every_module_says_what_it_is() -> None:
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


def test_no_foreign_exception_is_swallowed_whole() -> None:
    bare = [
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert bare == []


def test_the_changelogs_newest_version_is_the_packages() -> None:
    path = ROOT.parent / "CHANGELOG.md"
    versions = re.findall(r"^## (\d+\.\d+\.\d+)\b", path.read_text("utf-8"), re.MULTILINE)
    assert versions[0] == cascade.__version__.partition(".dev")[0]


def test_modules_import_each_other_in_no_circle() -> None:
    """`lint-imports` sees circles of siblings; a package and what is in it are none."""
    graph = grimp.build_graph("cascade", cache_dir=None)  # imports in functions and for types are in it
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # raises CycleError with the circle
