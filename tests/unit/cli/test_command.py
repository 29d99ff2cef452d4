"""Commands that are made from the functions that they call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import RenderableType
from typer.testing import CliRunner

from cascade.api.evaluating import evaluate
from cascade.api.output import Result
from cascade.api.verifying import verify
from cascade.cli.main import command, flag
from cascade.errors import CascadeError, NotCertifiedError


class Echo(Result):
    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def parts(self, width: int) -> Iterator[RenderableType]:
        yield repr(sorted(self.given.items()))

    def to_dict(self) -> dict[str, Any]:
        return {name: str(value) for name, value in self.given.items()}


def bake(
    cake: str | Path,
    output: str,
    *,
    layers: Sequence[float] | None = None,
    sugar: float = 0.5,
    tell: Callable[[str], None] = print,
) -> Echo:
    """Bake a cake
    in one line.

    It rises.

    Args:
        cake: the cake, as in
            `apple`.
        output: where it goes.
        layers: how high each is.
        sugar: the share of sugar.
        tell: is told.
    """
    tell("baked")
    return Echo({"cake": cake, "output": output, "layers": layers, "sugar": sugar})


def run(*words: str, **how: Any) -> tuple[int, str]:
    app = typer.Typer(add_completion=False)
    app.command()(command(bake, "bake apple", flags={"output": flag("--output", "-o")}, **how))
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


def test_every_argument_reaches_the_function_as_its_own_type() -> None:
    code, said = run("apple", "-o", "tin", "--layers", "1.5", "--layers", "2")
    assert code == 0
    assert "('cake', PosixPath('apple')), ('layers', [1.5, 2.0]), ('output', 'tin')" in said.replace(
        "WindowsPath", "PosixPath"
    )
    assert "('sugar', 0.5)" in said


def test_the_help_is_the_docstring() -> None:
    code, said = run("--help")
    assert code == 0
    for words in (
        "Bake a cake in one line. It rises. Example: bake apple",
        "The share of sugar.",
    ):
        assert words in said
    assert "--tell" not in said
    assert run("apple")[0] == 2, "--output is required"


def test_a_result_with_an_error_is_printed_and_then_ends_the_command() -> None:
    class Burnt(Echo):
        @property
        def error(self) -> CascadeError:
            return NotCertifiedError("burnt")

    def burn(**given: Any) -> Burnt:
        return Burnt(given)

    app = typer.Typer(add_completion=False)
    app.command()(command(bake, "bake apple", flags={"output": flag("--output", "-o")}, call=burn))
    result = CliRunner().invoke(app, ["apple", "-o", "tin", "--json"])
    assert (str(result.exception), '"sugar": "0.5"' in result.output) == ("burnt", True)


@pytest.mark.parametrize("act", [evaluate, verify], ids=lambda act: act.__name__)
def test_every_parameter_of_an_act_is_an_option(act: Callable[..., Any]) -> None:
    made = inspect.signature(command(act, "cascade")).parameters
    told = {"tell", "show", "working"}
    parameters = {name: one for name, one in inspect.signature(act).parameters.items() if name not in told}
    assert set(parameters) <= set(made)
    for name, one in parameters.items():
        assert made[name].default == one.default, name
        assert " " in made[name].annotation.__metadata__[0].help, "its line in the docstring"
