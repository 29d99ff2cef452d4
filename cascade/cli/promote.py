"""`cascade promote`: tries to certify a policy on the requests that `cascade serve` observed, and puts it in force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.promoting import plan_promotion, promote, promote_if_ready
from cascade.cli.main import print_result


def promote_cascade(
    config: Annotated[Path, typer.Argument(help="The configuration that is served, with a section modes.")] = Path(
        "cascade.yaml"
    ),
    cascade: Annotated[
        str | None, typer.Option("--cascade", help="The cascade's name; by default server.name.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what the next look takes; take no look.")] = False,
    if_ready: Annotated[
        bool, typer.Option("--if-ready", help="Look only if the plan says that there is enough; for a timer.")
    ] = False,
    by: Annotated[str, typer.Option("--by", help="Who promotes, for the record.")] = "cascade promote",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Certify a policy on the requests observed so far; if it also saves money, put it in force.

    Each look at certifying rows spends a part of delta, whether it promotes or not; its rows never certify again.

    Example: cascade promote cascade.yaml --if-ready
    """
    if plan:
        print_result(plan_promotion(config, cascade=cascade), as_json=as_json)
        return
    take = promote_if_ready if if_ready else promote
    print_result(take(config, cascade=cascade, by=by), as_json=as_json)
