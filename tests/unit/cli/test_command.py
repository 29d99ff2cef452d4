"""Commands that call a function of the package have its parameters as options, with the same defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.api.collecting import collect
from cascade.api.onboarding import onboard
from cascade.api.promoting import promote
from cascade.api.study import evaluate, verify
from cascade.cli import logs, verbs
from cascade.cli.main import COMMANDS, loaded, print_result
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError
from cascade.reports.report import Report, Result

RENAMED = {"max_cost_usd": "max_cost", "walks": "walk"}


@pytest.mark.parametrize(
    ("act", "command"),
    [
        (collect, logs.collect),
        (evaluate, verbs.evaluate),
        (onboard, verbs.onboard),
        (promote, verbs.promote),
        (verify, verbs.verify),
    ],
)
def test_every_parameter_of_an_act_is_an_option(act: Callable[..., Any], command: Callable[..., Any]) -> None:
    options = {name: option.default for name, option in inspect.signature(command).parameters.items()}
    for name, parameter in inspect.signature(act).parameters.items():
        if name == "promise":
            assert Promise(options["promise"], options["risk"], options["confidence"]) == parameter.default
        elif name not in {"tell", "show"}:
            default = options[RENAMED.get(name, name)]
            assert (str(default) if isinstance(default, Path) else default) == parameter.default, name


def test_every_command_is_there_and_says_what_it_does() -> None:
    assert [name for name in COMMANDS if not (loaded(name).__doc__ or loaded(name).info.help)] == []


def test_a_result_with_an_error_is_printed_and_then_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    burnt = Result(reports=(Report((), document={"sugar": 0.5}),), error=NotCertifiedError("burnt"))
    with pytest.raises(NotCertifiedError):
        print_result(burnt, as_json=True)
    assert "sugar" in capsys.readouterr().out
