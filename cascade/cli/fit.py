"""`cascade fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from cascade.cli.fit_asked import Given, Reading, Ready, checked
from cascade.cli.fit_crossed import write_and_say
from cascade.cli.fit_levels import DefaultLevel, LevelsAsked, cards, write_and_say_levels
from cascade.cli.fit_networks import (
    Checkpoint,
    CheckpointEvery,
    Device,
    NetworkConfig,
    NetworksAsked,
    Offered,
    Resume,
    Showing,
    Steps,
    ended_gently,
)
from cascade.cli.fit_tables import Found, fitted_document, fitted_report
from cascade.cli.fit_uncertified import write_and_say_uncertified
from cascade.cli.options import (
    Abstain,
    AllowEverything,
    Alpha,
    AsJson,
    Asked,
    Budget,
    ByGroup,
    BySegment,
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
    Together,
    Where,
)
from cascade.cli.output import console, print_json
from cascade.episodes.embeddings import vectors_of
from cascade.evaluation.logs import Log
from cascade.evaluation.report.card import Facts, facts_of
from cascade.policies.artifact import PLOT_FILE, write
from cascade.policies.embedding import Embedder
from cascade.strategies.embedding import sentence_model
from cascade.training.choice.portfolio import AUTO
from cascade.training.crossing import fit_crossed
from cascade.training.embedding import Embedding
from cascade.training.fitting import Fitted, fit_policy
from cascade.training.levels import conditioned, fit_levels
from cascade.training.networks.trainer import BARE, CERTIFIABLE
from cascade.training.notes import starts_from
from cascade.training.uncertified import fit_uncertified

Directory = Annotated[
    str, typer.Option("--output", "-o", metavar="PATH", help="The policy directory to write.")
]  # no Path: an empty text would be the current folder
LambdaSet = Annotated[
    float,
    typer.Option("--lambda-set", help="What each answer more in the set is charged with, as a share of a step."),
]
Share = Annotated[
    float | None,
    typer.Option(
        "--calibration-share",
        help="The share of questions that certify, and are used for nothing else. By default 0.3; for regret, the "
        "share that costs least in the end, or all questions where nothing is learned.",
    ),
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
    by_segment: BySegment = False,
    together: Together = False,
    by_group: ByGroup = False,
    abstain: Abstain = False,
    calibration_share: Share = None,
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
    seed: Seed = 0,
    allow_everything: AllowEverything = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Learn when to stop from a log, choose honestly among simple and learned policies, and certify the best.

    Questions are divided first: one part to fit and choose on, one, which nothing else looks at, to certify.

    Example: cascade fit episodes.parquet --alpha 0.1 -o policy
    """
    given = Given(
        policy,
        calibration_share,
        lambda_set,
        init,
        sentence_model if embed else None,
        cross=cross_calibrate,
        everything=allow_everything,
        levels=levels,
        default_level=default_level,
        networks=NetworksAsked(networks, network_config, steps, device, checkpoint, checkpoint_every, resume),
    )
    promise = Asked(guarantee, alpha, delta, budget, most, by_group, abstain, by_segment, together)
    reading = Reading(episodes, where or (), matcher, config)
    ready = checked(given, promise, reading, output, force=force, expires_days=expires_days)
    to = _To(Path(output), {"method asked for": policy, "seed": str(seed)}, as_json)
    how: dict[str, Any] = {"method": policy, "config": ready.settings, "seed": seed}
    if cross_calibrate:
        _crossed(ready, {**how, "expires_days": expires_days}, to)
        return
    how |= {"lambda_set": lambda_set} | ({} if calibration_share is None else {"calibration_share": calibration_share})
    how["embedding"] = None if ready.embedder is None else _embedding(ready.log, ready.embedder)
    if policy in BARE:
        _uncertified(given, ready, how, to)
    else:
        more = {"init": ready.init, "expires_days": expires_days, "allow_everything": allow_everything}
        _certified(given, ready, how | more, to)


class _To(NamedTuple):
    """Where a policy is written, what its model card says was asked for, and whether JSON is printed."""

    output: Path
    asked: Mapping[str, str]
    as_json: bool


def _crossed(ready: Ready, how: dict[str, Any], to: _To) -> None:
    """Fit and certify with no question set aside, and write."""
    with Showing("choosing, fitting and certifying, five times"):
        done = fit_crossed(ready.tables, ready.wanted, **how)
    write_and_say(done, to.output, to.asked, as_json=to.as_json)


def _uncertified(given: Given, ready: Ready, how: dict[str, Any], to: _To) -> None:
    """Train a network that carries no certificate, and write it."""
    with Showing("training") as showing, ended_gently(given.networks):
        networks = given.networks.networks(ready.network, showing.tell)
        done = fit_uncertified(ready.tables, ready.wanted, networks=networks, **how)
    write_and_say_uncertified(done, to.output, to.asked, as_json=to.as_json)


def _certified(given: Given, ready: Ready, how: dict[str, Any], to: _To) -> None:
    """Fit and certify, one policy or several levels, and write."""
    each = _fitted(given, ready, how)
    told = {name: {**to.asked, **dict(_took_effect(given, ready, one))} for name, one in each.items()}
    if ready.levels is None:
        _write_and_say(each[""], to.output, told[""], as_json=to.as_json)
    else:
        write_and_say_levels(each, ready.levels.default, to.output, told, as_json=to.as_json)


def _fitted(given: Given, ready: Ready, how: dict[str, Any]) -> Mapping[str, Fitted]:
    """Fit and certify: each level by its name; without levels one, called ""."""
    with Showing() as showing, ended_gently(given.networks):
        networks = given.networks.networks(ready.network, showing.tell)
        if ready.levels is None:
            return {"": fit_policy(ready.tables, ready.wanted, networks=networks, **how)}
        make = conditioned(networks, given.policy, how["seed"]) if given.policy in CERTIFIABLE else None
        return fit_levels(ready.tables, ready.wanted, ready.levels.alphas, make=make, networks=networks, **how)


# --- what is written ---


def _took_effect(given: Given, ready: Ready, fitted: Fitted) -> Iterator[tuple[str, str]]:
    """Yield what was asked for, for the model card, as far as it had an effect."""
    share = given.calibration_share or fitted.sizes.calibration / max(fitted.sizes.questions, 1)
    yield "share of the questions that certifies", f"{share:.2g}"
    if given.lambda_set and not ready.wanted.single:  # of one answer served there is none further
        yield "charged for each further answer", f"{given.lambda_set:g} of a step"
    if given.init is not None and ready.init is not None and starts_from(ready.init, fitted.policy):
        yield "started from", given.init.name


def _write_and_say(fitted: Fitted, output: Path, asked: Mapping[str, str], *, as_json: bool) -> None:
    """Write the directory with its model card, and print what is in it."""
    facts = facts_of(fitted, asked)
    drawn = _write(output, fitted, facts)
    found = Found(fitted, facts.baselines, facts.left_out, str(output), drawn=drawn)
    if as_json:
        print_json(fitted_document(found))
        return
    out = console()
    for part in fitted_report(found, out.width):
        out.print(part)


def _embedding(log: Log, embedder: Embedder) -> Embedding:
    """Return the sentence model, and what it makes of each question of a log."""
    return Embedding(embedder, vectors_of(log.rows(), embedder))


def _write(output: Path, fitted: Fitted, facts: Facts) -> bool:
    """Write the directory, and return whether there is a plot in it."""
    files = cards(facts)
    write(output, fitted.artifact, files=files)
    return PLOT_FILE in files
