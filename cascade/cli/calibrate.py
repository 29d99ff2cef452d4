"""`cascade calibrate`: a threshold with a guarantee, from a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from cascade.calibration.calibrating import Calibrated, calibrate_policy
from cascade.cli.calibrate_levels import LevelGiven, levels_given, write_and_say_calibrated
from cascade.cli.certificates import calibrated_document, calibrated_report
from cascade.cli.logs import open_log, refuse_other_prices, say_pooled, say_questions, tables_for
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
    Kind,
    Matched,
    Most,
    Output,
    Seed,
    Together,
    Where,
    nano_of,
    wanted_guarantee,
)
from cascade.cli.output import console, notes, plain, print_json
from cascade.cli.policies import GivenPolicy, check_target, given_policy
from cascade.cli.recalibrate import Promise, changes, days_held, held_before, lost, prices_held
from cascade.config import CascadeConfig, load
from cascade.errors import NotCertifiedError, UsageError
from cascade.evaluation.logs import Log
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import PolicyArtifact, write


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
    seed: Seed = 0,
    allow_everything: AllowEverything = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Set a policy's threshold on a log so that a promise about fresh questions holds, and certify it.

    Of a policy with levels all are calibrated, each with the alpha that it has.

    Example: cascade calibrate episodes.parquet --policy "{kind: threshold, keep: both}" -o policy
    """
    given = given_policy(policy, certificates=False)
    target = _target(given, output, force=force)
    settings = given.config if config is None else load(config)
    asked = Asked(guarantee, alpha, delta, budget, most, by_group, abstain, by_segment, together)
    levels = levels_given(given, asked, target, force=force)
    each = {"": LevelGiven(given, asked)} if levels is None else levels.each
    parts = {name: _part(one, expires_days, settings, name) for name, one in each.items()}
    log = open_log(episodes, where or (), matcher)
    say_pooled(log.tables)
    say_questions(log.tables)
    how = _How(log, settings, seed, allow_everything)
    done = {name: _calibrated(part, how, name) for name, part in parts.items()}
    first = next(iter(parts))  # all levels are of one cascade
    _say_lost(parts[first].before, done[first].artifact)
    if levels is not None:
        write_and_say_calibrated(done, levels.default, target, as_json=as_json)
        return
    write(target, done[""].artifact)
    if as_json:
        print_json({"output": str(target), **calibrated_document(done[""])})
        return
    out = console()
    for report in calibrated_report(done[""], out.width):
        out.print(report)
    out.print(f"written: {plain(str(target))}", soft_wrap=True)


class _Part(NamedTuple):
    """A policy to calibrate, what its directory held before, and what is to be promised."""

    given: GivenPolicy
    before: PolicyArtifact | None
    wanted: Promise


class _How(NamedTuple):
    """What all levels of a policy have in common when they are calibrated."""

    log: Log
    settings: CascadeConfig | None
    seed: int
    allow_everything: bool


def _part(one: LevelGiven, days: int | None, settings: CascadeConfig | None, level: str) -> _Part:
    """Return what is to be calibrated; what is promised, and what of it changes, is said."""
    before = held_before(one.given, anew=one.asked.kind is not None)
    return _Part(one.given, before, _promise(one.asked, days, before, settings, level))


def _calibrated(part: _Part, how: _How, level: str) -> Calibrated:
    """Calibrate one policy. The level is named where that fails, if it is one."""
    given, before, wanted = part
    _demand_prices(how.log, how.settings, before)
    try:
        done = calibrate_policy(
            tables_for(how.log, wanted.asked.kind, given.bare),
            given.bare,
            given.section,
            wanted.asked,
            config=how.settings,
            seed=how.seed,
            expires_days=wanted.days,
            held=before or given.artifact,
            allow_everything=how.allow_everything,
        )
    except NotCertifiedError as error:
        if not level:
            raise
        raise NotCertifiedError(f"Level {level!r}: {error}", needed_n=error.needed_n, chance=error.chance) from None
    return done


def _target(given: GivenPolicy, output: Path | None, *, force: bool) -> Path:
    """Return the directory to write; refuse to write over another policy."""
    target = given.directory if output is None else output
    if target is None:
        raise UsageError("Say where the policy directory is to be written: -o policy")
    same = given.directory is not None and target.resolve() == given.directory.resolve()
    check_target(target, same=same, force=force, otherwise=f"Calibrate that one with --policy {target}, choose")
    return target


def _promise(
    asked: Asked, days: int | None, before: PolicyArtifact | None, config: CascadeConfig | None, level: str
) -> Promise:
    """Return what is to be promised: what a directory promised before, but for what was given; and say what changes."""
    if before is None or before.asked is None:
        return Promise(wanted_guarantee(asked, config), days)
    was = Promise(before.asked, days_held(before))
    if asked.kind is not None:
        now = Promise(wanted_guarantee(asked, config), days)
    else:
        now = Promise(_taken_over(asked, before.asked, config), was.days if days is None else days)
    notes().print(plain(f"{level and f'{level}: '}{changes(was, now)}"), soft_wrap=True)
    return now


def _taken_over(asked: Asked, held: Guarantee, config: CascadeConfig | None) -> Guarantee:
    """Return a promise with the parts that were given in the place of those it had."""
    if held.rules.on_cost and asked.alpha is not None:
        raise UsageError("--alpha is a share of questions, and a budget promises none; leave it out.")
    bounded = held.budget_nano_usd is not None or asked.budget is not None
    cap = config.budget.per_question if config is not None and bounded else None
    given: dict[str, Any] = {
        "alpha": asked.alpha,
        "delta": asked.delta,
        "budget_nano_usd": nano_of("--budget", asked.budget),
        "most_nano_usd": nano_of("--most", cap if asked.most is None else asked.most),
        "by_group": asked.by_group or None,
        "by_segment": asked.by_segment or None,
        "together": asked.together or None,
        "abstain": asked.abstain or None,
    }
    try:
        return replace(held, **{name: value for name, value in given.items() if value is not None})
    except UsageError as error:
        told = f"The directory promises {held.kind}; --guarantee KIND asks for another promise, all of it anew."
        raise UsageError(f"{error} {told}") from None


def _say_lost(before: PolicyArtifact | None, now: PolicyArtifact) -> None:
    """Say what was on record of the cascade before, and is no longer."""
    gone = None if before is None else lost(before.certificates[0].made_for, now.certificates[0].made_for)
    if gone is not None:
        notes().print(gone, style="yellow", soft_wrap=True, markup=False)


def _demand_prices(log: Log, config: CascadeConfig | None, before: PolicyArtifact | None) -> None:
    """Refuse a log that was costed at other prices than those the certificate will be made for."""
    if config is not None:
        prices, whose = config.prices(), "the configuration"
        advice = "collect anew, or configure the prices of the log"
    elif before is not None:
        prices, whose = prices_held(before.certificates[0].made_for), "the certificate was made for"
        advice = "collect anew, or say with --config what will serve"
    else:
        return
    refuse_other_prices(log, prices, whose, advice)
