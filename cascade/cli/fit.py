"""`cascade fit`: chooses a policy on a log, and certifies what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cascade.api.fitting import fit
from cascade.api.logs import LogOptions
from cascade.cli import options as opt
from cascade.cli.main import print_result, say
from cascade.conformal.promise import KINDS, Promise
from cascade.errors import UsageError
from cascade.fitting.fit import CHOICES, FitSettings


def fit_log(
    log: opt.LogName,
    promise: Annotated[str, typer.Option(help=f"What is promised: {', '.join(KINDS.built_in)}.")],
    risk: Annotated[float, typer.Option(help="The share of requests that may be lost.")] = 0.05,
    confidence: Annotated[
        float | None, typer.Option(help="The probability that no more are lost. For coverage, by default on average.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help=f"A kind: {', '.join(CHOICES)}; one with settings, as in '{{kind: ccpo, steps: 300}}'; or a policy "
            "directory, which is certified again."
        ),
    ] = "auto",
    learns: Annotated[float, typer.Option(help="The share of the groups that learns, where that is needed.")] = 0.3,
    newest: Annotated[float | None, typer.Option(help="Certify on this share of the log, the newest.")] = None,
    by_segment: Annotated[bool, typer.Option("--by-segment", help="Certify each segment by itself.")] = False,
    abstain: Annotated[bool, typer.Option("--abstain", help="Let answers be withheld that are not sure.")] = False,
    levels: Annotated[
        str | None, typer.Option(metavar="NAME=RISK,…", help="Certify at several risks; a request names one.")
    ] = None,
    expires_days: Annotated[int | None, typer.Option(help="The days after which the certificates expire.")] = None,
    seed: opt.Seed = 0,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    reference: opt.Reference = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    rate: Annotated[float, typer.Option("--label-rate", help="Only the reviews drawn at this rate.")] = 1.0,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The configuration that will serve.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The policy directory to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the policy in the directory.")] = False,
    details: opt.Details = False,
    as_json: opt.AsJson = False,
) -> None:
    """Choose a policy on a log, and certify what it promises.

    Example: cascade fit episodes.parquet --promise agreement --risk 0.05 --confidence 0.9 -o policy
    """
    if output is not None and not output.strip():
        raise UsageError("--output is empty; name the policy directory to write, as in -o policy.")
    chosen: Any = policy
    if policy.lstrip().startswith("{"):
        from cascade.config.yamlfile import parse_yaml

        chosen = parse_yaml(policy, "--policy")
    settings = FitSettings(chosen, learns, newest, by_segment, abstain, levels, expires_days, seed)
    result = fit(
        LogOptions(log, where, matcher, reference, models, reviews),
        Promise(promise, risk, confidence, rate),
        settings,
        config=config,
        output=output,
        force=force,
        tell=say,
    )
    print_result(result, as_json=as_json, details=details)
