"""`cascade fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cascade.api.fitting import FitResult, fit
from cascade.api.methods import METHODS, method_named, method_written
from cascade.cli.command import KIND, command, flag
from cascade.cli.fit_networks import Showing, ended_gently
from cascade.cli.output import say
from cascade.training.networks.progress import Tell

_METHODS_SAID = ", ".join(map(method_written, METHODS))


def _fit(**given: Any) -> FitResult:
    @contextmanager
    def working(said: str) -> Iterator[Tell]:
        with Showing(said) as showing, ended_gently(given["networks"].checkpoint):
            yield showing.tell

    return fit(**given, working=working, tell=say)


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
        "seconds_price_usd": flag("--seconds-price", metavar="USD"),
        "network_config": flag(metavar="FILE"),
        "steps": flag(),
        "checkpoint": flag(metavar="DIR"),
        "every": flag("--checkpoint-every", min=1),
    },
    call=_fit,
)
