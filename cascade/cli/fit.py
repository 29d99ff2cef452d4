"""`cascade fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

from typing import Any

from cascade.api.fitting import FitResult, fit
from cascade.api.promises import KIND
from cascade.cli.main import Shown, command, flag, say
from cascade.training.portfolio import METHODS, method_named, method_written

_METHODS_SAID = ", ".join(map(method_written, METHODS))


def _fit(**given: Any) -> FitResult:
    return fit(**given, working=Shown, tell=say)


fit_log = command(
    fit,
    "cascade fit episodes.parquet --alpha 0.1 -o policy",
    flags={
        "output": flag(
            *("--output", "-o"),
            kind=str,  # no Path: an empty text would be the current folder
            required=True,
            metavar="PATH",
            help="The policy directory to write.",
        ),
        "policy": flag(
            callback=method_named,
            help=f"The kind of policy: {_METHODS_SAID}. auto compares all but networks (--networks) and takes the "
            "simplest that does as well as the best.",
        ),
        "guarantee": flag(help=KIND),
        "levels": flag(metavar="NAME=ALPHA,…"),
        "default_level": flag(metavar="NAME"),
        "network_config": flag(metavar="FILE"),
        "steps": flag(),
    },
    call=_fit,
)
