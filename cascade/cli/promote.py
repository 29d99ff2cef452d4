"""`cascade promote`: tries to certify a policy on the requests that `cascade serve` observed, and puts it in force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.promoting import plan_promotion, promote, promote_if_likely
from cascade.cli.main import print_result
from cascade.errors import UsageError


def promote_cascade(
    config: Annotated[Path, typer.Argument(help="The configuration that is served, with a section modes.")] = Path(
        "cascade.yaml"
    ),
    cascade: Annotated[
        str | None, typer.Option("--cascade", help="The cascade's name; by default server.name.")
    ] = None,
    canary: Annotated[
        str | None, typer.Option("--canary", help="The share of keys that the policy serves, as in 5% or 0.05.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Estimate what a promotion still takes; take no look.")] = False,
    if_likely: Annotated[
        bool, typer.Option("--if-likely", help="Look only if the plan says that a promotion is likely; for a timer.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Look even if the plan says that no promotion is likely.")
    ] = False,
    by: Annotated[str, typer.Option("--by", help="Who promotes, for the record.")] = "cascade promote",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Certify a policy on the requests observed so far; if it also saves money, put it in force.

    Each look at certifying rows spends a part of delta, whether it promotes or not; its rows never certify again.
    If the latest plan says that no promotion is likely, only --anyway looks.

    Example: cascade promote cascade.yaml --canary 5%
    """
    if plan:
        print_result(plan_promotion(config, cascade=cascade), as_json=as_json)
        return
    if if_likely:
        if canary is not None:
            raise UsageError("--if-likely takes the canary from the configuration: modes.canary.")
        print_result(promote_if_likely(config, cascade=cascade, by=by), as_json=as_json)
        return
    share = None if canary is None else _share(canary)
    print_result(promote(config, cascade=cascade, canary=share, by=by, anyway=anyway), as_json=as_json)


def _share(written: str) -> float:
    """Return a share that is written as 5% or as 0.05."""
    try:
        return float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--canary takes a share, as in 5% or 0.05, not {written!r}.") from None
