"""A name in a configuration becomes an object; a strategy and a policy of one's own, from their name to what is served."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cascade import FitSettings, Orchestrator, Promise, fit
from cascade.collection import CollectSettings, collect
from cascade.config import CascadeConfig, load
from cascade.config.policies import POLICIES
from cascade.errors import ConfigError, MissingExtraError, UsageError
from cascade.factory import build_policy
from cascade.logs.questions import AskedQuestion
from cascade.plans.presets import STRATEGIES
from cascade.policies.directory import PolicyDirectory
from cascade.providers.fake import FakeProvider, reply
from cascade.registry import Registry, callable_alone, imported, subclass_of
from cascade.types import Question, Request
from unit.certified import directory
from unit.plugged import EXAMPLES, PACKAGES, installed_once

SHAPES: Registry[Any] = Registry("shape", "cascade.shapes", {"circle": "math:tau"}, lambda _: None, by_place=True)
CALLED: Registry[Any] = Registry("call", "cascade.calls", {"root": "math:sqrt", "tau": "math:tau"}, callable_alone)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes entry points known: install(group, name, place)."""
    points: list[EntryPoint] = []
    monkeypatch.setattr("cascade.registry.entry_points", lambda group: [plug for plug in points if plug.group == group])
    return lambda group, name, place: points.append(EntryPoint(name, place, group))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes a module and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"shape_of_a_test_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_a_built_in_name_is_imported(install):
    install("cascade.shapes", "circle", "math:pi")
    install("cascade.shapes", "half", "math:pi")
    install("cascade.others", "other", "math:pi")
    assert SHAPES.names == ("circle", "half")
    assert SHAPES.find("circle") == 2 * SHAPES.find("half"), "a package took a built-in name"
    assert SHAPES.find("other") is None


def test_a_place_is_a_name_only_where_it_may_be():
    assert SHAPES.find("math:pi") == SHAPES.find("circle") / 2
    assert CALLED.find("math:sqrt") is None


def test_what_cannot_be_called_is_no_factory():
    assert CALLED.find("root")(4) == 2
    with pytest.raises(UsageError, match=r"The call 'tau' \(math:tau\) cannot be used: it cannot be called\."):
        CALLED.find("tau")


def test_two_packages_that_bring_one_name_are_refused_with_both(install):
    install("cascade.shapes", "half", "math:pi")
    install("cascade.shapes", "half", "math:e")
    with pytest.raises(UsageError, match=r"2 packages provide a shape 'half' \(math:e, math:pi\); uninstall"):
        SHAPES.find("half")


@pytest.mark.parametrize(
    ("text", "attribute", "message"),
    [
        ("Shape = 1", "Shpae", "cannot be found in shape_of_a_test_0; did you mean Shape?"),
        ("import no_such_module", "Shape", "cannot be found: there is no module no_such_module"),
        ("1 / 0", "Shape", "cannot be imported: ZeroDivisionError"),
        ("raise RuntimeError('key sk-abcdefghijklmnop')", "Shape", "cannot be imported: RuntimeError: key"),
        ("import math; math.no_such", "Shape", "cannot be imported: AttributeError: module 'math' has no attribute"),
    ],
)
def test_an_import_that_fails_is_one_error_that_says_what_to_do(module, text, attribute, message):
    with pytest.raises(UsageError) as caught:
        SHAPES.find(f"{module(text)}:{attribute}")
    assert message in str(caught.value)
    assert "Repair or uninstall the package" in str(caught.value)
    assert "sk-abc" not in str(caught.value)


def test_a_missing_extra_goes_through(module):
    name = module("from cascade.errors import MissingExtraError\nraise MissingExtraError('other', 'this')")
    with pytest.raises(MissingExtraError, match="pip install other"):
        SHAPES.find(f"{name}:Shape")


@pytest.mark.parametrize("place", ["math", "math:", ":pi"])
def test_a_place_has_a_module_and_an_attribute(place):
    with pytest.raises(ValueError, match="must be"):
        imported(place)


def test_an_incomplete_class_is_named_with_what_it_lacks():
    from abc import ABC, abstractmethod

    class Shape(ABC):
        @abstractmethod
        def area(self) -> float: ...

    class Square(Shape):
        def area(self) -> float:
            return 1.0

    lacks = subclass_of(Shape)
    assert lacks(Square) is None
    assert lacks(Shape) == "it does not define area"
    assert lacks(Square()) == lacks(int) == f"it is not a subclass of {__name__}.{Shape.__qualname__}"


ROOT = Path(__file__).parents[2]
PRICE = {"price": {"input": 1.0, "output": 4.0}}
MODELS: Mapping[str, Any] = {
    "models": {"base": {"model": "small", **PRICE}, "guide": {"model": "large", **PRICE}},
    "provider": "fake",
    "traces": "off",
}
LADDER = {"kind": "ladder", "models": ["a", "b", "base"]}
OWN: Mapping[str, Any] = MODELS | {
    "strategy": {"kind": "sampling", "samples": 3},
    "policy": {"kind": "agreeing", "threshold": 0.5},
}
PLACES = {"strategy": "sampling_strategy:SamplingConfig", "policy": "agreeing_policy:Agreeing"}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_once(tmp_path_factory)


@pytest.fixture
def plugged(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the example packages known while a test runs."""
    monkeypatch.syspath_prepend(str(packages))
    yield
    for module in PACKAGES.values():
        sys.modules.pop(module, None)


def answers(request: Request) -> Any:
    """Answer rightly at chances that differ by question: always the same for one question and step."""
    number = int(request.question.text.split()[-1].rstrip("?"))
    easy, chance = Random(number).random(), Random(1_000 * number + request.step)
    right = chance.random() < 0.3 + 0.7 * easy
    return reply(f"Answer: {number if right else chance.randrange(10_000, 20_000)}")


def provider() -> FakeProvider:
    return FakeProvider(answers)


def questions(many: int, start: int = 0) -> list[AskedQuestion]:
    return [AskedQuestion(f"q{k}", Question(f"What is {k}?"), (str(k),)) for k in range(start, start + many)]


def logged(folder: Path, config: CascadeConfig, many: int = 300) -> Path:
    """Return a log of all steps."""
    log = folder / "log.jsonl"
    collect(config, questions(many), log, CollectSettings(matcher="exact"), providers={"fake": provider()})
    return log


@pytest.mark.usefixtures("plugged")
def test_an_installed_strategy_and_policy_are_named_and_asked():
    assert STRATEGIES.names == ("base_guide", "ladder", "exit", "nodes", "sampling")
    assert POLICIES.names[-1] == "agreeing"
    fake = FakeProvider({"small": ["Answer: Inn", "Answer: Danube", "Answer: Danube", "Answer: Rhine"]})
    with Orchestrator.from_config(OWN, providers={"fake": fake}) as orchestrator:
        answer = orchestrator.ask("Which river runs through Vienna?")
    assert (answer.text, answer.stopped) == ("Danube", "horizon")
    assert [step.signals["agrees_with_earlier"] for step in answer.steps] == [None, 0.0, 0.5]
    assert [call.request.model for call in answer.calls] == ["small"] * 3


@pytest.mark.usefixtures("plugged")
def test_they_can_be_named_by_their_places():
    by_place = MODELS | {
        "strategy": {"kind": PLACES["strategy"]},
        "policy": {"kind": PLACES["policy"], "threshold": 0.5},
    }
    config, named = load(by_place), load(OWN)
    assert type(config.strategy) is type(named.strategy)
    assert build_policy(config) == build_policy(named)
    with Orchestrator.from_config(config, providers={"fake": provider()}) as orchestrator:
        assert orchestrator.ask("What is 7?").answers


def test_a_provider_of_ones_own_is_named_by_its_place(module):
    name = module("from cascade.providers.fake import FakeProvider\nmake = lambda settings: FakeProvider()")
    for written in (f"{name}:make", {"kind": f"{name}:make", "options": {"path": "x"}}):
        with Orchestrator.from_config(MODELS | {"provider": written}) as orchestrator:
            assert orchestrator.ask("What is 7?").text
    for wrong in (f"{name}:take", "no_module:make", "faek"):
        with pytest.raises(ConfigError) as caught:
            load(MODELS | {"provider": wrong})
        assert [problem.partition(":")[0] for problem in caught.value.problems] == ["provider.kind"]
    with pytest.raises(ConfigError, match="replay"):
        load(MODELS | {"provider": "replai:log.jsonl"})


@pytest.mark.usefixtures("plugged")
def test_a_strategy_brings_the_policy_that_fits_it_and_keeps_its_settings_strict():
    assert load(MODELS | {"strategy": {"kind": "sampling"}}).policy.model_dump()["kind"] == "fixed"
    with pytest.raises(ConfigError) as caught:
        load(
            MODELS
            | {"strategy": {"kind": "sampling", "sampels": 2, "samples": 0}, "policy": {"kind": "agreing", "doubt": 2}}
        )
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "strategy.samples: input should be greater than or equal to 1, not 0",
        "strategy.sampels: there is no such setting",
        "policy: there is no kind 'agreing'",
    ]


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": {"kind": "base_guide"}, "policy": {"kind": "sampling"}}, "policy: there is no kind 'sampling'"),
        ({"policy": {"kind": "uala"}}, "policy: uala reads the signal p_yes, which the sampling strategy"),
        ({"policy": {"kind": "prompted"}}, "policy: prompted needs a model that decides"),
        (
            {"strategy": {"kind": "sampling", "model": "bse"}},
            "models.bse: the sampling strategy needs it; did you mean",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load(OWN | settings)


@pytest.mark.usefixtures("plugged")
def test_an_own_policy_is_fitted_on_a_log_of_an_own_strategy_and_served(tmp_path):
    config = load(OWN)
    log = logged(tmp_path, config)
    fitted = fit(
        log, Promise("coverage", 0.3), FitSettings(policy="agreeing"), config=config, output=tmp_path / "policy"
    )
    (certificate,) = fitted.directory.certificates.values()
    served = {**OWN, "policy": str(tmp_path / "policy")}
    with Orchestrator.from_config(served, providers={"fake": provider()}) as orchestrator:
        answer = orchestrator.ask("What is 5000?")
        assert answer.certificate == certificate
        assert orchestrator.runtime.policy.kappa == certificate.kappa


@pytest.mark.usefixtures("plugged")
def test_a_policy_directory_names_installed_kinds_alone(tmp_path):
    """To read a directory, which may come from anywhere, imports nothing that its files name."""
    directory(tmp_path)
    file = tmp_path / "policy.json"
    file.write_text(file.read_text().replace('"uala"', '"antigravity:Anything"'))
    with pytest.raises(ConfigError):
        PolicyDirectory.read(tmp_path)
    assert "antigravity" not in sys.modules


def test_without_the_packages_their_names_are_unknown():
    with pytest.raises(ConfigError) as caught:
        load(OWN)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "strategy: there is no kind 'sampling'",
        "policy: there is no kind 'agreeing'",
    ]


TOYS = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cascade.conformal.path import Scores
from cascade.policies.policy import Policy
from cascade.plans.nodes import PlanNode
from cascade.plans.presets import StrategyConfig


class TwiceConfig(StrategyConfig):
    def listed(self, uses):
        return [PlanNode(name, uses["base"]) for name in ("once", "again")]


@dataclass(frozen=True)
class Patient(Policy):
    kind: ClassVar[str] = "patient"
    nodes: tuple[int, ...] | None = None

    def scores(self, log):
        return Scores(np.full(log.answer.shape, np.inf))


@dataclass(frozen=True)
class Raising(Patient):
    kind: ClassVar[str] = "raising"

    def scores(self, log):
        return 1 / 0
"""


def test_a_toy_strategy_and_a_toy_policy_touch_one_file(tmp_path, monkeypatch):
    (tmp_path / "toys_of_a_test.py").write_text(TOYS)
    monkeypatch.syspath_prepend(str(tmp_path))
    toys = {
        "strategy": {"kind": "toys_of_a_test:TwiceConfig"},
        "policy": {"kind": "toys_of_a_test:Patient", "threshold": 0},
    }
    with Orchestrator.from_config(MODELS | toys) as orchestrator:
        assert [step.candidates[0].source for step in orchestrator.ask("ha").steps] == ["once", "again"]
    with pytest.raises(UsageError):
        Orchestrator.from_config(MODELS | toys | {"policy": {"kind": "toys_of_a_test:Raising", "threshold": 0}})


# --- the pages ---

PAGES = {"docs/write-a-strategy.md": "write_a_strategy", "docs/write-a-policy.md": "write_a_policy"}
PAGES |= {"docs/write-a-promise.md": "write_a_promise"}


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(("page", "folder"), PAGES.items())
def test_the_page_shows_the_example_and_its_code_runs(page, folder):
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(r"```(python|toml|yaml)\n(.*?)```", text, re.DOTALL)
    shown = {language: [code for name, code in blocks if name == language] for language in ("python", "toml", "yaml")}
    assert shown["python"][0] == (EXAMPLES / folder / f"{PACKAGES[folder]}.py").read_text("utf-8")
    (project,) = shown["toml"]
    assert project in (EXAMPLES / folder / "pyproject.toml").read_text("utf-8")
    names: dict[str, Any] = {"__name__": "example"}
    for code in shown["python"][1:]:
        exec(compile(code, page, "exec"), names)  # noqa: S102 - our own page
    assert (shown["yaml"] == []) == ("promise" in page)
    for code in shown["yaml"]:
        from cascade.config.yamlfile import parse_yaml

        assert load({**MODELS, "strategy": {"kind": "sampling"}, **parse_yaml(code, page)})
