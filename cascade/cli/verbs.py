"""`cascade evaluate`, `verify`, `promote` and `onboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.evaluating import evaluate
from cascade.api.logs import LogOptions
from cascade.api.onboarding import onboard
from cascade.api.promoting import promote
from cascade.api.verifying import verify
from cascade.cli import options as opt
from cascade.cli.main import print_result, say
from cascade.conformal.promise import Promise


def evaluate_log(
    log: opt.LogName,
    policy: Annotated[
        str, typer.Option(help="A policy directory, a policy's settings as in cascade.yaml, or a configuration.")
    ],
    audits: Annotated[
        bool, typer.Option("--audits", help="Test the certificates on the log's audits, in the order they were asked.")
    ] = False,
    level: Annotated[float, typer.Option(help="With --audits, the probability of a false alarm.")] = 0.05,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    label_rate: opt.LabelRate = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
) -> None:
    """Play one policy on a log: its cost, its losses and what is right, with intervals. No model is asked.

    Example: cascade evaluate episodes.parquet --policy "{kind: threshold, threshold: 0.3}"
    """
    options = LogOptions(log, where, matcher, None, models, reviews, label_rate)
    print_result(evaluate(options, policy, audits=audits, level=level, seed=seed, tell=say), as_json=as_json)


def verify_policy(
    directory: Annotated[Path, typer.Argument(help="A policy directory with its certificates.")],
    log: opt.LogName,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The configuration that will serve.")] = None,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    label_rate: opt.LabelRate = None,
    as_json: opt.AsJson = False,
) -> None:
    """Check a policy's certificates on a log: hashes, dates, models, and whether the data give the same threshold.

    On requests that the policy was not made from, it counts the losses and says whether they refute the promise.

    Example: cascade verify policy episodes.parquet
    """
    options = LogOptions(log, where, matcher, None, models, reviews, label_rate)
    print_result(verify(directory, options, config=config, tell=say), as_json=as_json)


def promote_policy(
    config: Annotated[Path, typer.Argument(help="The configuration that is served, with a section modes.")] = Path(
        "cascade.yaml"
    ),
    cascade: Annotated[str | None, typer.Option(help="The cascade's name; by default server.name.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what the next look takes; take no look.")] = False,
    if_ready: Annotated[
        bool, typer.Option("--if-ready", help="Look only if the plan says that there is enough; for a timer.")
    ] = False,
    by: Annotated[str, typer.Option(help="Who promotes, for the record.")] = "cascade promote",
    as_json: opt.AsJson = False,
) -> None:
    """Certify a policy on the requests observed so far; if it also saves money, put it in force.

    Each look at certifying conversations spends a part of 1 - confidence, whether it promotes or not. They never
    certify again.

    Example: cascade promote cascade.yaml --if-ready
    """
    print_result(promote(config, cascade=cascade, plan=plan, if_ready=if_ready, by=by), as_json=as_json)


def onboard_model(
    model: Annotated[str, typer.Argument(help="The new model: its key or its name under models.")],
    log: opt.LogName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The log of the probes. Requests recorded there are not asked again.")
    ],
    probes: Annotated[int, typer.Option(min=2, help="How many of the log's requests are asked.")] = 100,
    config: opt.Config = Path("cascade.yaml"),
    promise: Annotated[str, typer.Option(help="The kind of promise that the policy has to keep.")] = "regret",
    risk: Annotated[float, typer.Option(help="The share of requests that may be lost.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="The probability that no more are lost.")] = 0.9,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    concurrency: opt.Concurrency = 8,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
) -> None:
    """Ask a new model some of a log's requests, and estimate what it would save if asked before the reference.

    The reference's answers are taken from the log. A fit with more probes counts as another attempt on these.

    Example: cascade onboard new-model episodes.parquet -o probes.jsonl --probes 200
    """
    result = onboard(
        model,
        LogOptions(log, where, matcher),
        output,
        probes=probes,
        config=config,
        promise=Promise(promise, risk, confidence),
        concurrency=concurrency,
        seed=seed,
        tell=say,
    )
    print_result(result, as_json=as_json)
