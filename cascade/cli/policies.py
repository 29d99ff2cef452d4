"""The commands that read a log or a policy: `prove`, `compare`, `evaluate`, `fit`, `verify`, `promote`, `onboard`.

Each calls the function of its name in the package and prints what it returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import cascade
from cascade.api.logs import LogOptions, Problems, read_judged
from cascade.cli import options as opt
from cascade.cli.main import Meter, print_result, say
from cascade.conformal.promise import KINDS, Promise, kind_of
from cascade.episodes.opening import check_there
from cascade.errors import UsageError
from cascade.fitting.fit import CHOICES, FitSettings
from cascade.parallel import HERE
from cascade.policies.canaries import RUNS_A_YEAR

_PROMISES = f"What is promised: {', '.join(KINDS.built_in)}."
Kind = Annotated[str | None, typer.Option("--promise", help=_PROMISES)]


def prove(
    log: opt.LogName,
    promise: Kind = None,
    risk: opt.Risk = None,
    confidence: opt.Confidence = None,
    splits: opt.Splits = 20,
    seed: opt.Seed = 0,
    on: opt.On = HERE,
    details: opt.Details = False,
    as_json: opt.AsJson = False,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    reference: opt.Reference = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    label_rate: opt.LabelRate = None,
) -> None:
    """Estimate what a cascade would save on a log under a promise, how sure that is, and what to do next.

    cascade fit is repeated on random splits, and played on the requests left out. No model is asked.

    Example: cascade prove episodes.parquet --promise regret --risk 0.05 --confidence 0.9
    """
    options = LogOptions(log, where, matcher, reference, models, reviews, label_rate)
    settings = {"splits": splits, "seed": seed, "on": on}
    _study(cascade.prove, options, (promise, risk, confidence), settings, as_json=as_json, details=details)


def compare(
    log: opt.LogName,
    promise: Kind = None,
    risk: opt.Risk = None,
    confidence: opt.Confidence = None,
    splits: opt.Splits = 20,
    seed: opt.Seed = 0,
    on: opt.On = HERE,
    networks: Annotated[
        int | None, typer.Option(min=1, metavar="UPDATES", help="Also train CPO and CCPO; slow. Extra: train.")
    ] = None,
    as_json: opt.AsJson = False,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    reference: opt.Reference = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    label_rate: opt.LabelRate = None,
) -> None:
    """Compare every method on the same random splits of a log. No model is asked.

    Example: cascade compare episodes.parquet --promise coverage --risk 0.1
    """
    options = LogOptions(log, where, matcher, reference, models, reviews, label_rate)
    settings: dict[str, Any] = {"splits": splits, "seed": seed, "on": on}
    if networks is not None:
        from cascade.policies.networks import NetworkSettings

        settings["networks"] = NetworkSettings(steps=networks)
    _study(cascade.compare, options, (promise, risk, confidence), settings, as_json=as_json, details=None)


def _study(
    verb: Any, options: LogOptions, wanted: tuple[str | None, float | None, float | None],
    settings: dict[str, Any], *, as_json: bool, details: bool | None,
) -> None:  # fmt: skip
    """Run a study, and print it; refuse an unknown promise before the log is read."""
    from cascade.studies.study import default_promise

    if wanted[0] is not None and kind_of(wanted[0]) is None:
        Promise(wanted[0])  # raises the error that lists what there is
    log = read_judged(options, wanted[0], say)
    goal = default_promise(log.datasets[0], *wanted) if any(value is not None for value in wanted) else None
    with Meter() as meter:
        result = verb(log, goal, **settings, show=meter.tell, tell=say)
    print_result(result, as_json=as_json, details=details)


def _policy(text: str) -> Any:
    """Return the settings of a policy that an option gives in braces; any other text is returned unchanged."""
    if not text.lstrip().startswith("{"):
        return text
    from cascade.config.yamlfile import parse_yaml  # with strategies, which a fit does without

    return parse_yaml(text, "--policy")


def evaluate(
    log: opt.LogName,
    policy: Annotated[str, typer.Option(help="A policy directory, or a policy's settings as in cascade.yaml.")],
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

    Example: cascade evaluate episodes.parquet --policy "{kind: uala, threshold: 0.3}"
    """
    options = LogOptions(log, where, matcher, models=models, reviews=reviews, label_rate=label_rate)
    result = cascade.evaluate(options, _policy(policy), audits=audits, level=level, seed=seed, tell=say)
    print_result(result, as_json=as_json)


def fit(
    log: opt.LogName,
    promise: Annotated[str, typer.Option(help=_PROMISES)],
    risk: Annotated[float, typer.Option(help="The share of requests that may be lost.")] = 0.05,
    confidence: Annotated[
        float | None,
        typer.Option(help="The probability that no more are lost, 0.9. For coverage, by default on average."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help=f"A kind: {', '.join(CHOICES)}; one with settings, as in '{{kind: ccpo, steps: 300}}'; or a policy "
            "directory, which is certified again."
        ),
    ] = "auto",
    train_share: Annotated[float, typer.Option(help="The share of the groups that a policy learns from.")] = 0.3,
    newest: Annotated[float | None, typer.Option(help="Use only this share of the log, the newest.")] = None,
    by_segment: Annotated[bool, typer.Option("--by-segment", help="Certify each segment by itself.")] = False,
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
    label_rate: Annotated[float, typer.Option(help="Only the reviews drawn at this rate.")] = 1.0,
    config: opt.Serving = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The policy directory to write.")] = None,
    force: opt.Force = False,
    details: opt.Details = False,
    as_json: opt.AsJson = False,
) -> None:
    """Choose a policy on a log, and certify what it promises.

    Example: cascade fit episodes.parquet --promise agreement --risk 0.05 --confidence 0.9 -o policy
    """
    if output is not None and not output.strip():
        raise UsageError("--output is empty; name the policy directory to write, as in -o policy.")
    result = cascade.fit(
        LogOptions(log, where, matcher, reference, models, reviews),
        _promised(log, promise, risk, confidence, label_rate),
        FitSettings(_policy(policy), train_share, newest, by_segment, levels, expires_days, seed),
        config=config,
        output=output,
        force=force,
        tell=say,
    )
    print_result(result, as_json=as_json, details=details)


def _promised(log: str, kind: str, risk: float, confidence: float | None, rate: float = 1.0) -> Promise:
    """Return a promise, by default with the confidence of `prove`; report a wrong one along with a missing log."""
    from cascade.studies.study import CONFIDENCE

    problems, rules = Problems(), kind_of(kind)
    confidence = CONFIDENCE if confidence is None and rules is not None and not rules.of_set else confidence
    promise = problems.catch(lambda: Promise(kind, risk, confidence, rate))
    if promise is None:
        problems.catch(lambda: check_there(log))
    problems.refuse()
    assert promise is not None  # noqa: S101 - else there was a problem
    return promise


def verify(
    directory: Annotated[Path, typer.Argument(help="A policy directory with its certificates.")],
    log: Annotated[str | None, typer.Argument(metavar="LOG", help="A log; --canaries run needs none.")] = None,
    config: opt.Serving = None,
    canaries: Annotated[
        str | None, typer.Option(metavar="record|run", help="Send the judge frozen inputs, to see if it has changed.")
    ] = None,
    runs_a_year: Annotated[
        int, typer.Option(min=1, help="With record, the most runs that decide in a year.")
    ] = RUNS_A_YEAR,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    label_rate: opt.LabelRate = None,
    as_json: opt.AsJson = False,
) -> None:
    """Check a policy's certificates on a log: hashes, dates, models, and whether the data give the same threshold.

    On requests that the policy was not made from, it counts the losses and says whether they refute the promise.

    With --canaries it asks the judge instead, and suspends the certificates if its P(yes) has moved.

    Example: cascade verify policy episodes.parquet
    Example: cascade verify policy -c cascade.yaml --canaries run
    """
    options = log and LogOptions(log, where, matcher, models=models, reviews=reviews, label_rate=label_rate)
    done = cascade.verify(directory, options, config=config, canaries=canaries, runs_a_year=runs_a_year, tell=say)
    print_result(done, as_json=as_json)


def promote(
    config: opt.Config = opt.CONFIG,
    plan: Annotated[bool, typer.Option("--plan", help="Report what the next look takes; take no look.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Certify a policy on the requests observed so far; if it also saves money, put it in force.

    Each attempt (a look) uses up a part of 1 - confidence, and its conversations. With too few none is made, so a
    timer may run this.

    Example: cascade promote --config support.yaml
    """
    from cascade.api import promoting

    result = promoting.promote(config, plan=plan)
    print_result(result, as_json=as_json)


def onboard(
    model: Annotated[str, typer.Argument(help="The new model: its key or its name under models.")],
    log: opt.LogName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The log of the probes. Requests recorded there are not asked again.")
    ],
    probes: Annotated[int, typer.Option(min=2, help="The number of the log's requests to ask.")] = 100,
    config: opt.Config = opt.CONFIG,
    promise: Annotated[str, typer.Option(help=_PROMISES)] = "regret",
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
    result = cascade.onboard(
        model,
        LogOptions(log, where, matcher),
        output,
        probes=probes,
        config=config,
        promise=_promised(log, promise, risk, confidence),
        concurrency=concurrency,
        seed=seed,
        tell=say,
    )
    print_result(result, as_json=as_json)
