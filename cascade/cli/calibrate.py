"""`cascade calibrate`: a threshold with a guarantee, from a log."""

from __future__ import annotations

from typing import Annotated

import typer

from cascade.api.calibrating import calibrate
from cascade.cli.options import (
    Abstain,
    AllowEverything,
    Alpha,
    AsJson,
    Budget,
    ByGroup,
    BySegment,
    Configured,
    Delta,
    Episodes,
    ExpiresDays,
    Force,
    Kind,
    LabelRate,
    Matched,
    Models,
    Most,
    Output,
    Reviews,
    Seed,
    Together,
    Where,
)
from cascade.cli.output import print_result, say


def calibrate_log(
    episodes: Episodes,
    policy: Annotated[str, typer.Option("--policy", help="A policy directory, a policy as YAML, or a configuration.")],
    output: Output = None,
    guarantee: Kind = None,
    alpha: Alpha = None,
    delta: Delta = None,
    budget: Budget = None,
    most: Most = None,
    by_segment: BySegment = False,
    together: Together = False,
    by_group: ByGroup = False,
    abstain: Abstain = False,
    config: Configured = None,
    expires_days: ExpiresDays = None,
    where: Where = None,
    matcher: Matched = None,
    models: Models = None,
    reviews: Reviews = None,
    label_rate: LabelRate = None,
    seed: Seed = 0,
    allow_everything: AllowEverything = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Set a policy's threshold on a log so that a guarantee holds for new questions, and write the certificate.

    Of a policy with levels all are calibrated, each with the alpha that it has.

    Example: cascade calibrate episodes.parquet --policy "{kind: threshold, keep: both}" -o policy
    """
    found = calibrate(
        episodes,
        policy,
        output=output,
        guarantee=guarantee,
        alpha=alpha,
        delta=delta,
        budget_usd=budget,
        most_usd=most,
        by_segment=by_segment,
        together=together,
        by_group=by_group,
        abstain=abstain,
        config=config,
        expires_days=expires_days,
        where=where,
        matcher=matcher,
        models=models,
        reviews=reviews,
        label_rate=label_rate,
        seed=seed,
        allow_everything=allow_everything,
        force=force,
        tell=say,
    )
    print_result(found, as_json=as_json)
