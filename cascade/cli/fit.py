"""`cascade fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cascade.api.fit_networks import NetworkOptions
from cascade.api.fitting import fit
from cascade.cli.fit_networks import (
    Checkpoint,
    CheckpointEvery,
    Device,
    NetworkConfig,
    Offered,
    Resume,
    Showing,
    Steps,
    ended_gently,
)
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
    LabelRate,
    Matched,
    Method,
    Models,
    Most,
    NewKind,
    Reference,
    Reviews,
    Seed,
    Together,
    Where,
)
from cascade.cli.output import print_result, say
from cascade.training.choice.portfolio import AUTO
from cascade.training.networks.progress import Tell

Directory = Annotated[
    str, typer.Option("--output", "-o", metavar="PATH", help="The policy directory to write.")
]  # no Path: an empty text would be the current folder
LambdaSet = Annotated[
    float,
    typer.Option("--lambda-set", help="The price of each further answer in the set, as a share of a step's cost."),
]
Share = Annotated[
    float | None,
    typer.Option(
        "--calibration-share",
        help="The share of questions set aside for certification. By default 0.3; for regret, the "
        "share that costs least in the end, or all questions where nothing is learned.",
    ),
]

Embed = Annotated[
    bool,
    typer.Option(
        "--embed",
        help="Add sentence embeddings of the question as features (extra embed; cascade models pull minilm). "
        "A policy that looks at it needs both to serve.",
    ),
]
Cross = Annotated[
    bool,
    typer.Option(
        "--cross-calibrate",
        help="Set no question aside: each certifies a policy that was fitted without it. The certificate is weaker: "
        "misses up to twice alpha.",
    ),
]
LevelsAsked = Annotated[
    str | None,
    typer.Option(
        "--levels",
        metavar="NAME=ALPHA,…",
        help="Fit several levels, each with a certificate, into one directory; a request names one: low=0.2,high=0.05.",
    ),
]
DefaultLevel = Annotated[
    str | None,
    typer.Option(
        "--default-level", metavar="NAME", help="The level used when a request names none. By default the middle one."
    ),
]
SecondsPrice = Annotated[
    float | None,
    typer.Option(
        "--seconds-price",
        metavar="USD",
        help="What a second of waiting is worth: costs are then USD and this for each second that the log says.",
    ),
]


def fit_log(
    episodes: Episodes,
    output: Directory,
    policy: Method = AUTO,
    guarantee: NewKind = None,
    alpha: Alpha = None,
    delta: Delta = None,
    budget: Budget = None,
    most: Most = None,
    lambda_set: LambdaSet = 0.0,
    by_segment: BySegment = False,
    together: Together = False,
    by_group: ByGroup = False,
    abstain: Abstain = False,
    calibration_share: Share = None,
    seconds_price: SecondsPrice = None,
    init: Annotated[Path | None, typer.Option("--init", help="A fitted policy to start from.")] = None,
    embed: Embed = False,
    cross_calibrate: Cross = False,
    levels: LevelsAsked = None,
    default_level: DefaultLevel = None,
    networks: Offered = False,
    network_config: NetworkConfig = None,
    steps: Steps = None,
    device: Device = None,
    checkpoint: Checkpoint = None,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    config: Configured = None,
    expires_days: ExpiresDays = None,
    where: Where = None,
    matcher: Matched = None,
    reference: Reference = None,
    models: Models = None,
    reviews: Reviews = None,
    label_rate: LabelRate = None,
    seed: Seed = 0,
    allow_everything: AllowEverything = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Learn a policy from a log: compare simple and learned policies by cross-fitting, and certify the best.

    Questions are divided first: one part to fit and choose on, one, which nothing else looks at, to certify.

    Example: cascade fit episodes.parquet --alpha 0.1 -o policy
    """

    @contextmanager
    def working(said: str) -> Iterator[Tell]:
        with Showing(said) as showing, ended_gently(checkpoint):
            yield showing.tell

    found = fit(
        episodes,
        guarantee=guarantee,
        alpha=alpha,
        delta=delta,
        budget_usd=budget,
        most_usd=most,
        by_segment=by_segment,
        together=together,
        by_group=by_group,
        abstain=abstain,
        policy=policy,
        calibration_share=calibration_share,
        lambda_set=lambda_set,
        init=init,
        embed=embed,
        cross_calibrate=cross_calibrate,
        levels=levels,
        default_level=default_level,
        networks=NetworkOptions(networks, network_config, steps, device, checkpoint, checkpoint_every, resume),
        config=config,
        expires_days=expires_days,
        allow_everything=allow_everything,
        where=where,
        matcher=matcher,
        reference=reference,
        models=models,
        reviews=reviews,
        label_rate=label_rate,
        seconds_price_usd=seconds_price,
        seed=seed,
        output=output,
        force=force,
        working=working,
        tell=say,
    )
    print_result(found, as_json=as_json)
