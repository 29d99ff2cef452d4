"""Every example, the Python, the commands and the configurations on the pages can be used as they stand, offline."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer.main
import yaml

from cascade import Orchestrator
from cascade.api.fitting import fit
from cascade.api.study import verify
from cascade.cli.main import COMMANDS, app, loaded
from cascade.collection import collect
from cascade.config import load
from cascade.config.policies import DirectoryConfig
from cascade.conformal.promise import Promise
from cascade.episodes.journal import Journal
from cascade.errors import RefusedError
from cascade.fitting.fit import FitSettings
from cascade.logs.questions import AskedQuestion
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider, Reply, reply
from cascade.types import Question, Request

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
def test_it_runs_and_prints(name, capsys):
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", ["docs/index.md", "docs/python.md", "docs/fit.md", "docs/write-an-agent.md"])
def test_the_python_on_the_page_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {"__name__": "example"}
    for code in blocks:
        exec(compile(code, page, "exec"), names)  # noqa: S102 - our own page


_KERNEL = """
import ast, asyncio, inspect, json, sys, types

kernel = types.SimpleNamespace(config={"IPKernelApp": {}}, __name__="ipykernel")
sys.modules |= {"IPython": types.SimpleNamespace(get_ipython=lambda: kernel), "ipywidgets": None}

async def run(names):
    for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), "notebook", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if inspect.isawaitable(running := eval(code, names)):
                await running
    print([study.verdict for study in names["result"].studies])

asyncio.run(run({}))
"""
"""Runs a notebook as a kernel without ipywidgets does: what duckdb sees of one is asked when it is imported."""


@pytest.mark.usefixtures("leaves_nothing")
def test_the_notebook_runs_in_a_kernel():
    command = [sys.executable, "-c", _KERNEL, str(FOLDER / "notebook.ipynb")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "True 3" in ended.stdout
    assert ended.stdout.endswith("['saves']\n")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER / "shop"))
    return importlib.import_module("shop_run")


def opened(run: ModuleType, tmp_path: Path) -> tuple[Orchestrator, Journal, FakeProvider]:
    """Return a small model that always says done after a look, and a large one that does the task."""
    wanted = {task.message: task.calls for task in run.tasks()}

    def says(request: Request) -> Reply:
        turn = sum(message.role == "assistant" for message in request.messages) - 3  # those of the example
        calls = wanted[request.question.text] if "1.5b" in request.model else ("orders Nobody",)
        return reply([*calls, "done"][min(turn, len(calls))], input_tokens=100)

    fake = FakeProvider(says)
    orchestrator = Orchestrator.from_config(run.CONFIG | {"provider": "fake"}, providers={"fake": fake})
    return orchestrator, Journal(tmp_path / "shop.journal"), fake


def test_the_large_model_is_learned_where_it_can_be_paid_and_no_task_is_overspent(run, tmp_path):
    orchestrator, journal, fake = opened(run, tmp_path)
    with orchestrator, journal:
        models, tasks = run.models_of(orchestrator, journal), run.tasks()[:12]
        poor, rich = (run.learned(tasks, models, budget) for budget in (100_000, 10_000_000))
        assert poor == run.ALWAYS_SMALL  # of equals the cheapest, and the first
        for budget in (100_000, 1_000_000, 10_000_000):
            played = [run.play(task, run.ALWAYS_LARGE, models, budget) for task in tasks]
            assert max(result.cost_nano_usd for result in played) <= budget
        assert all(result.right and not result.stopped for result in played)
        assert sum(run.play(task, rich, models, 10_000_000).right for task in tasks) == 12
        before = len(fake.requests)
        run.learned(tasks, models, 10_000_000)
        assert len(fake.requests) == before  # every call is on record


def test_with_scripted_models_a_switch_is_learned_that_is_as_right_and_cheaper(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["shop_run.py", "--fake", "--tasks", "24"])
    run.main()
    small, large, learned = (line.split(" | ") for line in capsys.readouterr().out.splitlines()[-3:])
    assert int(small[2].split("/")[0]) < int(large[2].split("/")[0])
    assert learned[2] == large[2] == "12/12"
    assert float(learned[3]) < float(large[3])


FILES = sorted(path.name for path in (FOLDER / "plans").glob("*.yaml"))
KNOWS = {"small": 0.55, "other-small": 0.55, "middle": 0.8, "large": 0.97}


def script(request: Request) -> Payload:
    """Let a model be right by chance, less sure of itself where it is wrong, and a judge be mostly right about it."""
    rng = np.random.default_rng([len(request.model), request.seed or 0, *request.question.text.encode()])
    right = bool(rng.random() < KNOWS.get(request.model, 0.8))
    if request.purpose == "judge":
        is_right = "Danube" in request.messages[-1].content
        return reply("Yes", p_yes=0.9) if is_right == right else reply("No, Danube" if right else "No, Inn", p_yes=0.1)
    river = "Danube" if right else str(rng.choice(["Inn", "Rhine"]))
    sure = -0.05 if right == (rng.random() < 0.8) else -1.5
    return reply(f"Reasoning: a river.\nAnswer: {river}", logprobs=[sure] * 6, input_tokens=100)


def question(number: int) -> Question:
    return Question(f"Which river is it, {'very ' * (number % 5)}well hidden, number {number}?")


@pytest.mark.parametrize("name", FILES)
def test_it_is_logged_fitted_and_asked(name, tmp_path):
    assert len(FILES) == 6
    config, fake = load(FOLDER / "plans" / name), {"fake": FakeProvider(script)}
    questions = [AskedQuestion(f"q{number}", question(number), ("Danube",)) for number in range(150)]
    collect(config, questions, tmp_path / "log.jsonl", providers=fake)
    promise, settings = Promise("regret", 0.3, 0.9), FitSettings()
    fit(str(tmp_path / "log.jsonl"), promise, settings, config=config, output=tmp_path / "policy")
    served = load({**config.model_dump(mode="json"), "policy": str(tmp_path / "policy")})
    with Orchestrator.from_config(served, providers=fake) as orchestrator:
        answers = [orchestrator.ask(question(number)) for number in range(150, 190)]
    assert all(answer.certificate is not None and answer.text for answer in answers)
    walks = {tuple([step.number for step in answer.steps]) for answer in answers}
    assert any(len(walk) < config.strategy.horizon for walk in walks)
    large = sum(
        any(call.request.model == "large" and call.request.purpose != "judge" for call in run.calls) for run in answers
    )
    assert large < len(answers)


def test_a_certificate_from_a_log_with_a_refused_node_verifies_on_that_log(tmp_path):
    """0.6: "their answers, costs, signals or judgements have changed", of the very log that it was made from."""

    def refusing(request: Request) -> Payload:
        if request.role == "other" and request.question.text == question(7).text:
            raise RefusedError("the filter declined")
        return script(request)

    models = {name: {"model": name, "price": {"input": 1, "output": 4}} for name in ("small", "middle", "large")}
    names = {"first": "small", "other": "middle", "last": "large"}
    nodes = [{"name": name, "model": model} for name, model in names.items()]
    config = load({"models": models, "strategy": {"kind": "nodes", "nodes": nodes}, "provider": "fake"})
    questions = [AskedQuestion(f"q{number}", question(number), ("Danube",)) for number in range(120)]
    done = collect(config, questions, tmp_path / "log.jsonl", providers={"fake": FakeProvider(refusing)})
    assert [(refusal.role, refusal.questions) for refusal in done.refused] == [("other", 1)]
    for share in (0.6, 0.1):  # the request learns, or certifies
        folder, settings = tmp_path / f"policy {share}", FitSettings(train_share=share)
        fit(str(tmp_path / "log.jsonl"), Promise("regret", 0.3, 0.9), settings, config=config, output=folder)
        verdict = verify(folder, str(tmp_path / "log.jsonl"))
        assert verdict.ok, verdict.failed


PRINTED = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.*"))]
SHORT = re.compile(r"…|\.\.\.|\[")
"""What stands for something else in a line, such as `cascade fit LOG --promise …`."""
FENCED = re.compile(r"^```(?:console|text|)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OF_PACKAGES = {"write-a-policy.md", "write-a-promise.md", "write-a-strategy.md", "write-an-agent.md"}
"""Pages whose configurations name a package's class; tests of their examples read them."""


def written() -> Iterator[tuple[str, str, bool]]:
    """Yield (the page, the command, whether it is whole)."""
    for page in PRINTED:
        text = page.read_text("utf-8")
        for block in FENCED.findall(text):
            yield from (
                (page.name, line, True) for line in re.findall(r"^(?:\$ )?(cascade [a-z].*)$", block, re.MULTILINE)
            )
        yield from ((page.name, " ".join(line.split()), False) for line in re.findall(r"`(cascade [a-z][^`]*)`", text))
    for name in COMMANDS:
        target = loaded(name)
        apart = [command.callback for command in getattr(target, "registered_commands", ())]
        for function in apart or [target]:
            yield from ((name, line, True) for line in re.findall(r"Example: (cascade .*)", function.__doc__ or ""))


LINES = sorted(
    {
        (name, line.partition("  ")[0], whole)
        for name, line, whole in written()
        if not SHORT.search(line) and not line.startswith(("cascade fit  ", "cascade demo:"))  # lines of an output
    }
)


def parse(words: list[str]) -> None:
    """Parse a command without running it."""
    root: Any = typer.main.get_command(app)
    name, *rest = words
    context = root.context_class(root, info_name="cascade", **root.context_settings)
    command = root.get_command(None, name)
    assert command is not None, name
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("page", "line", "whole"), LINES)
def test_a_printed_command_parses(page, line, whole):
    """One in a sentence may leave out what it is about."""
    try:
        parse(shlex.split(line, comments=True)[1:])
    except typer._click.exceptions.MissingParameter:
        assert not whole


BLOCKS = {
    f"{page.name} {number}": yaml.safe_load(text)
    for page in PRINTED
    if page.name not in OF_PACKAGES
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
}
PRICE = {"input": 1, "output": 4}
MODELS = {name: {"model": name, "price": PRICE} for name in ("base", "guide", "small", "large", "judge")}
KEYS = {"keys": [{"name": "batch", "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}]}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_printed_configuration_answers(block, monkeypatch, tmp_path):
    """One that shows a section alone is asked with these models and keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_checks.py").write_text("def passes(question, message):\n    return True\n")
    config = load({"models": MODELS, "server": KEYS, **BLOCKS[block], "traces": "off", "provider": "fake"})
    if not isinstance(config.policy, DirectoryConfig) and config.modes is None and config.budget.store is None:
        with Orchestrator.from_config(
            config, providers={"fake": FakeProvider(lambda _: reply("Answer: Danube", logprobs=[-0.1]))}
        ) as ladder:
            assert ladder.ask("Which river runs through Vienna?").text == "Danube"
