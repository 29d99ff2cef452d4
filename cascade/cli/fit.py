"""`cascade fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cascade.cli.fit_crossed import write_and_say
from cascade.cli.fit_tables import Found, fitted_document, fitted_report
from cascade.cli.logs import open_log, refuse_other_prices, say_pooled, tables_for
from cascade.cli.options import (
    Abstain,
    AllowEverything,
    Alpha,
    AsJson,
    Asked,
    Budget,
    ByGroup,
    Configured,
    Delta,
    Episodes,
    ExpiresDays,
    Force,
    Matched,
    Method,
    Most,
    NewKind,
    Seed,
    Where,
    wanted_guarantee,
)
from cascade.cli.output import console, notes, print_json
from cascade.cli.policies import check_target, policy_directory
from cascade.config import CascadeConfig, load
from cascade.episodes.embeddings import vectors_of
from cascade.errors import UsageError
from cascade.evaluation.logs import Log
from cascade.evaluation.report import plots
from cascade.evaluation.report.card import Facts, card_files, facts_of
from cascade.policies.artifact import CARD_FILE, PLOT_FILE, POLICY_FILE, write
from cascade.policies.cross import CrossPolicy
from cascade.policies.learned import LearnedPolicy
from cascade.strategies.embedding import sentence_model
from cascade.training.choice.portfolio import AUTO
from cascade.training.crossing import check_crossable, fit_crossed
from cascade.training.dividing import SHARE
from cascade.training.embedding import Embedding
from cascade.training.fitting import Fitted, Init, fit_policy

Directory = Annotated[Path, typer.Option("--output", "-o", help="The policy directory to write.")]
LambdaSet = Annotated[
    float,
    typer.Option("--lambda-set", min=0, help="What each answer more in the set is charged with, as a share of a step."),
]
Share = Annotated[
    float,
    typer.Option("--calibration-share", help="The share of questions that certify, and are used for nothing else."),
]

Embed = Annotated[
    bool,
    typer.Option(
        "--embed",
        help="Offer what each question is about, by a local sentence model (extra embed; cascade models pull minilm). "
        "A policy that looks at it needs both to serve.",
    ),
]
Cross = Annotated[
    bool,
    typer.Option(
        "--cross-calibrate",
        help="Set no question aside: each fits, and certifies a policy that has not seen it. What is proven is weaker: "
        "misses up to twice alpha.",
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
    by_group: ByGroup = False,
    abstain: Abstain = False,
    calibration_share: Share = SHARE,
    init: Annotated[Path | None, typer.Option("--init", help="A fitted policy to start from.")] = None,
    embed: Embed = False,
    cross_calibrate: Cross = False,
    config: Configured = None,
    expires_days: ExpiresDays = None,
    where: Where = None,
    matcher: Matched = None,
    seed: Seed = 0,
    allow_everything: AllowEverything = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Learn when to stop from a log, choose honestly among simple and learned policies, and certify the best.

    Questions are divided first: one part to fit and choose on, one, which nothing else looks at, to certify.

    Example: cascade fit episodes.parquet --alpha 0.1 -o policy
    """
    check_target(output, same=False, force=force, otherwise=f"Calibrate that one with --policy {output}, choose")
    _refuse_other_pages(output, force=force)
    settings = None if config is None else load(config)
    wanted = wanted_guarantee(Asked(guarantee, alpha, delta, budget, most, by_group, abstain), settings)
    if cross_calibrate:
        given = {"--lambda-set": lambda_set, "--init": init, "--embed": embed, "--allow-everything": allow_everything}
        given |= {"--calibration-share": calibration_share != SHARE}
        check_crossable(wanted, [name for name, there in given.items() if there])
    started = None if init is None else _init(init)
    log = _log(episodes, where or (), matcher, settings)
    tables = tables_for(log, wanted.kind)
    asked = {"method asked for": policy, "seed": str(seed)}
    if cross_calibrate:
        with notes().status("choosing, fitting and certifying, five times"):
            done = fit_crossed(tables, wanted, method=policy, config=settings, seed=seed, expires_days=expires_days)
        write_and_say(done, output, asked, as_json=as_json)
        return
    with notes().status("choosing, fitting and certifying"):
        fitted = fit_policy(
            tables,
            wanted,
            method=policy,
            config=settings,
            seed=seed,
            calibration_share=calibration_share,
            lambda_set=lambda_set,
            init=started,
            embedding=_embedding(log) if embed else None,
            expires_days=expires_days,
            allow_everything=allow_everything,
        )
    asked |= {"share set aside to certify": f"{calibration_share:g}"}
    asked |= {"charged for each further answer": f"{lambda_set:g} of a step"} if lambda_set else {}
    asked |= {} if init is None else {"started from": init.name}
    _write_and_say(fitted, output, asked, as_json=as_json)


def _log(episodes: str, where: Sequence[str], matcher: str | None, settings: CascadeConfig | None) -> Log:
    """Open a log, and refuse one of other prices than are configured."""
    log = open_log(episodes, where, matcher)
    say_pooled(log.tables)
    if settings is not None:
        advice = "collect anew, or configure the prices of the log"
        refuse_other_prices(log, settings.prices(), "the configuration", advice)
    return log


def _write_and_say(fitted: Fitted, output: Path, asked: Mapping[str, str], *, as_json: bool) -> None:
    """Write the directory with its model card, and print what is in it."""
    facts = facts_of(fitted, asked)
    drawn = _write(output, fitted, facts)
    found = Found(fitted, facts.baselines, str(output), drawn=drawn)
    if as_json:
        print_json(fitted_document(found))
        return
    out = console()
    for part in fitted_report(found, out.width):
        out.print(part)


def _refuse_other_pages(output: Path, *, force: bool) -> None:
    """Refuse to write a model card over a README.md that is none, as in the folder of a project."""
    if (output / CARD_FILE).exists() and not (output / POLICY_FILE).exists() and not force:
        raise UsageError(
            f"{output} is no policy directory and holds a {CARD_FILE}, which the model card would be written over; "
            "choose another --output, or --force."
        )


def _embedding(log: Log) -> Embedding:
    """Return the sentence model, and what it makes of each question of a log."""
    embedder = sentence_model()
    return Embedding(embedder, vectors_of(log.rows(), embedder))


def _init(directory: Path) -> Init:
    """Return the policy to start from.

    Raises:
        UsageError: it was not fitted, or several were, so that there is nothing to start from.
    """
    held = policy_directory(directory, certificates=False)
    if isinstance(held.policy, CrossPolicy):
        raise UsageError(f"{directory} was cross-calibrated: it holds several policies, and none alone to start from.")
    if not isinstance(held.policy, LearnedPolicy):
        raise UsageError(f"{directory} holds a policy that was not fitted: there is nothing in it to start from.")
    return Init(held.policy, held.artifact.seen)


def _write(output: Path, fitted: Fitted, facts: Facts) -> bool:
    """Write the directory, and return whether there is a plot in it; an older one that the card does not show goes."""
    plot = plots.plot_fit(facts.drawing) if facts.drawing is not None and plots.available() else None
    files = card_files(facts, plot)
    write(output, fitted.artifact, files=files)
    if PLOT_FILE not in files:
        (output / PLOT_FILE).unlink(missing_ok=True)
    return PLOT_FILE in files
