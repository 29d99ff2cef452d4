"""What the code may not do, read off its syntax trees."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp

import cascade
from cascade.conformal.certificate import Certificate
from cascade.conformal.promise import KINDS
from cascade.logs.presets import presets
from cascade.policies.signals import LIVE

PACKAGE = Path(cascade.__file__).parent
ROOT = Path(__file__).parents[2]


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


ONLY_IN = {
    "litellm": {"providers/litellm.py"},
    "tenacity": {"resilience/health.py"},
    "xllamacpp": {"providers/local.py"},
    "torch": {"policies/networks.py"},
    "ray": {"parallel.py"},
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
    "uvicorn": {"server/lifecycle.py", "server/connection.py"},
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
    *("providers/litellm.py", "providers/local.py", "parallel.py"),
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


def test_a_package_is_imported_only_where_it_may_be():
    packages = {name: {module.split(".")[0] for module in imported(tree)} for name, tree in trees().items()}
    for package, places in ONLY_IN.items():
        users = {name for name, used in packages.items() if package in used}
        folders = tuple(folder for folder in places if folder.endswith("/"))
        actual = {next((folder for folder in folders if name.startswith(folder)), name) for name in users}
        assert actual == places, package


def test_nothing_dangerous_is_called():
    wrong = []
    for name, tree in trees().items():
        called = {dotted(node.func) for node in nodes(tree) if isinstance(node, ast.Call)}
        wrong += [f"{name}: {target}" for target in sorted(called & FORBIDDEN_CALLS)]
        wrong += [f"{name}: {target}" for target in imported(tree) if target == "time.time"]
    assert wrong == []


def test_no_test_measures_time():
    """What a slow or busy machine takes is no mistake: steps are counted (`tests/steps.py`), and clocks are a test's own."""
    here = Path(__file__).parents[1]
    looked = re.compile(r"(?:perf_counter|process_time|thread_time|monotonic|\btime)(?:_ns)?\(\) - ")
    files = [path for path in here.rglob("test_*.py") if here / "long" not in path.parents]
    assert [path.name for path in files if looked.search(path.read_text("utf-8"))] == []


def test_the_environment_is_read_only_where_it_may_be():
    readers = set()
    for name, tree in trees().items():
        used = {dotted(node) for node in nodes(tree) if isinstance(node, ast.Attribute)}
        if used & {"os.environ", "os.getenv", "os.environb", "os.putenv"} or "os.environ" in set(imported(tree)):
            readers.add(name)
    assert readers == READS_ENVIRONMENT


GUARANTEES = {"coverage", "regret", "error"}
ELSEWHERE = {"regret"}
"""Names that mean a kind of guarantee wherever they are compared; the others also name figures and fields."""


def _branches(node: ast.AST) -> bool:
    """Whether a comparison, or a list of cases, tells one kind of guarantee from another."""
    if isinstance(node, ast.Compare):
        texts = {sub.value for sub in ast.walk(node) if isinstance(sub, ast.Constant) and isinstance(sub.value, str)}
        return bool(texts & ELSEWHERE or (texts & {*KINDS.built_in} and ".kind" in ast.unparse(node)))
    cases = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
    return len(GUARANTEES & {sub.value for sub in cases if isinstance(sub, ast.Constant)}) > 1


def test_a_kind_of_guarantee_is_told_from_another_in_its_own_room_alone():
    others = {name: tree for name, tree in trees().items() if name != "conformal/promise.py"}
    branches = [f"{name}:{node.lineno}" for name, tree in others.items() for node in nodes(tree) if _branches(node)]
    assert branches == []


def test_nothing_is_printed_outside_the_command_line():
    for name, tree in trees().items():
        called = {dotted(node.func) for node in nodes(tree) if isinstance(node, ast.Call)}
        assert "print" not in called, name
        assert name.startswith("cli/") or "sys.exit" not in called, name


def test_every_module_says_what_it_is():
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


def test_no_foreign_exception_is_swallowed_whole():
    bare = [
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert bare == []


def test_the_changelogs_newest_version_is_the_packages():
    path = PACKAGE.parent / "CHANGELOG.md"
    versions = re.findall(r"^## (\d+\.\d+\.\d+)\b", path.read_text("utf-8"), re.MULTILINE)
    assert versions[0] == cascade.__version__.partition(".dev")[0]


def test_modules_import_each_other_in_no_circle():
    """`lint-imports` sees circles of siblings; a package and what is in it are none."""
    graph = grimp.build_graph("cascade", cache_dir=None)  # imports in functions and for types are in it
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # raises CycleError with the circle


TEXT = (ROOT / "pyproject.toml").read_text("utf-8")
FULL = tomllib.loads(TEXT)["project"]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("distributions", ROOT / "tools" / "distributions.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


distributions = load()


def test_the_core_is_the_same_project_without_litellm():
    core = tomllib.loads(distributions.core_project(TEXT))["project"]
    (litellm,) = set(FULL["dependencies"]) - set(core["dependencies"])
    assert [litellm] == core["optional-dependencies"]["litellm"]
    assert core.pop("name") == "certified-cascade-core"
    assert core["optional-dependencies"].pop("all") == [
        "certified-cascade-core[litellm,local,logs,train,sql,math,server,otel,ray]"
    ]
    same = {name: value for name, value in FULL.items() if name not in {"name", "dependencies"}}
    same["optional-dependencies"] = {k: v for k, v in FULL["optional-dependencies"].items() if k != "all"}
    assert {name: value for name, value in core.items() if name != "dependencies"} == same


def test_all_has_every_extra_that_a_user_may_want():
    extras = FULL["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert {need for extra in named for need in extras[extra]} == {
        need for extra, needs in extras.items() if extra not in {"all", "dev", "dev-pages", "docs"} for need in needs
    }


CITED = re.compile(r"(?<![\w/.-])((?:design|docs)/[\w-]+\.(?:md|svg)|benchmarks/\w+\.py)\b")
NEIGHBOUR = re.compile(r"`([\w-]+\.md)`")
"""How a page of `design/` speaks of another."""
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def texts(*patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(ROOT.glob(pattern))


PAGES = ("README.md", "design/*.md", "docs/*.md")
READ = list(texts(*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "cascade/**/*.py", "benchmarks/**/*.py", "examples/*.py"))


def test_what_is_cited_exists():
    lost = []
    for path in READ:
        text = path.read_text("utf-8")
        cited = set(CITED.findall(text))
        if path.parent.name == "design":
            cited |= {f"design/{name}" for name in NEIGHBOUR.findall(text) if name.islower()}
        if path.name == "README.md":
            cited |= set(LINK.findall(text))
        lost += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(cited) if not (ROOT / name).exists()]
    assert lost == []


def test_a_page_lists_all_that_its_room_offers():
    offered = {
        "docs/import.md": [*presets()],
        "docs/certificates.md": [*KINDS.built_in, *(field.name for field in fields(Certificate))],
        "design/promises.md": [*KINDS.built_in],
        "design/signals.md": [*LIVE],
    }
    pages = {page: (ROOT / page).read_text("utf-8") for page in offered}
    assert [(page, name) for page, names in offered.items() for name in names if f"`{name}`" not in pages[page]] == []


def test_every_benchmark_is_cited_by_a_page():
    pages = "\n".join(path.read_text("utf-8") for path in texts(*PAGES))
    cited = set(re.findall(r"(?<!\w)(\w+\.py)\b", pages))
    assert not [path.name for path in texts("benchmarks/*.py") if path.name not in cited]


def test_no_page_or_message_names_a_package_of_somebody_else():
    """`cascade` and `cascade-orchestrator` on the package index are other projects."""
    others = re.compile(r"pip install (?:-\S+ )*[\"']?cascade(?![-\w]*/)|cascade[-_]orchestrator")
    shown = [path for path in READ if path.parent.name != "design"]  # design/packaging.md says whose names they are
    sources = (*shown, *texts("SECURITY.md", "Makefile", "pyproject.toml"))
    assert not [path.name for path in sources if others.search(path.read_text("utf-8"))]
