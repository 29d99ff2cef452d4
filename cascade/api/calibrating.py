"""`calibrate`: a threshold with a guarantee, from a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from cascade.api.fit_levels import certified_levels, refuse_foreign
from cascade.api.logs import (
    CONFIGURED,
    Files,
    LogAsked,
    LogGiven,
    Models,
    ReviewOptions,
    Where,
    read_reviewed,
    refuse_other_prices,
    tables_for,
    tell_pooled,
    tell_questions,
    without_training,
)
from cascade.api.output import Result, Tell, plain_text, warn
from cascade.api.policies import GivenPolicy, PolicyAsked, given_policy
from cascade.api.promises import GuaranteeOptions, calibrated_document, calibrated_report, wanted_guarantee
from cascade.calibration.calibrating import Calibrated, calibrate_policy
from cascade.calibration.fingerprint import unknown
from cascade.config import CascadeConfig, load
from cascade.errors import ConfigError, NotCertifiedError, UsageError
from cascade.evaluation.logs import Log
from cascade.factory import HeldLevels, read_levels
from cascade.guarantees.base import Guarantee
from cascade.money import Price
from cascade.policies import levels as level_files
from cascade.policies.artifact import LEVELS_FOLDER, PolicyArtifact, check_target, write
from cascade.policies.reading import read
from cascade.text import counted


@dataclass(frozen=True, slots=True)
class CalibrationResult(Result):
    """A policy, or each of its levels, certified on a log.

    Attributes:
        calibrated: the result for each level, by name; without levels, one result under the name "".
        output: the directory that was written.
        default: the level that serves a question that names none; None without levels.
    """

    calibrated: Mapping[str, Calibrated]
    output: str
    default: str | None = None

    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        if self.default is None:
            yield from calibrated_report(self.calibrated[""], width)
        else:
            asked = counted(self.calibrated[self.default].n, "calibration question")
            yield Text(f"{asked}, the same for all levels", style="bold")
            yield from certified_levels(self.calibrated, self.default, width)
        yield Text(f"written: {plain_text(self.output)}", no_wrap=True, overflow="ignore")

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `calibrate --json`. Costs in USD per question."""
        if self.default is None:
            return {"output": self.output, **calibrated_document(self.calibrated[""])}
        each = {
            name: {"alpha": one.guarantee.alpha, **calibrated_document(one)} for name, one in self.calibrated.items()
        }
        return {"output": self.output, "default": self.default, "levels": each}


def calibrate(
    log: LogGiven,
    policy: PolicyAsked,
    *,
    output: str | Path | None = None,
    guarantee: str | Guarantee | None = None,
    alpha: float | None = None,
    delta: float | None = None,
    by_segment: bool = False,
    abstain: bool = False,
    config: str | Path | None = None,
    expires_days: int | None = None,
    where: Where = None,
    matcher: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    seed: int = 0,
    allow_everything: bool = False,
    force: bool = False,
    tell: Tell = warn,
) -> CalibrationResult:
    """Set a policy's threshold on a log so that a guarantee holds for new questions, and write the certificate.

    If the policy has levels, all are calibrated, each with its own alpha.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        policy: a policy directory, a policy's settings as in cascade.yaml, or a configuration.
        output: the policy directory to write. By default that of --policy.
        guarantee: the kind of guarantee. For a policy directory, the parts of its guarantee that are not given stay
            unchanged.
        alpha: the share of questions that may be missed. By default 0.1.
        delta: the guarantee holds with probability 1 - delta over calibrations, not only on average over them.
        by_segment: make a certificate for each segment of enough questions (a tenant, a task, a language).
        abstain: abstain if the confidence in the best answer is too low.
        config: the configuration that will serve: models, prices, prompts, strategy.
        expires_days: the number of days after which the certificate expires. By default it never does.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        seed: seed of the random draws.
        allow_everything: if there are too few questions, keep every answer of every step instead of failing.
        force: overwrite the policy in the directory.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: the call is wrong; the message lists every problem.
        NotCertifiedError: the log cannot certify the promise; the error says how many questions would.
    """
    arguments = locals()
    given = given_policy(policy, certificates=False)
    target = _target(given, None if output is None else Path(output), force=force)
    settings = given.config if config is None else load(Path(config))
    asked = GuaranteeOptions.of(arguments)
    levels = levels_given(given, asked, target, force=force)
    each = {"": LevelGiven(given, asked)} if levels is None else levels.each
    how = _How(settings, seed, allow_everything, tell)
    parts = {name: _part(one, expires_days, how, name) for name, one in each.items()}
    first = next(iter(parts))  # all levels belong to one cascade
    said = ReviewOptions.of(reviews, label_rate)
    opened = read_reviewed(LogAsked(log, where, matcher, models=models), said, parts[first].wanted.asked.kind, tell)
    if said.files:
        opened = without_training(opened, parts[first].before or given.artifact, tell)
    tell_pooled(opened.tables, tell)
    tell_questions(opened.tables, tell)
    done = {name: _calibrated(part, opened, how, name) for name, part in parts.items()}
    before = parts[first].before
    gone = (
        None if before is None else lost(before.certificates[0].made_for, done[first].artifact.certificates[0].made_for)
    )
    if gone is not None:
        tell(gone)
    if levels is None:
        write(target, done[""].artifact)
    else:
        level_files.write(target, {name: one.artifact for name, one in done.items()}, levels.default)
    return CalibrationResult(done, str(target), None if levels is None else levels.default)


class _Part(NamedTuple):
    """A policy to calibrate, the earlier contents of its directory, and the promise to make."""

    given: GivenPolicy
    before: PolicyArtifact | None
    wanted: Promise


class _How(NamedTuple):
    """The settings that all levels of a policy share when they are calibrated."""

    settings: CascadeConfig | None
    seed: int
    allow_everything: bool
    tell: Tell


def _part(one: LevelGiven, days: int | None, how: _How, level: str) -> _Part:
    """Return the policy to calibrate, with its promise; report the promise and its changes to `tell`."""
    before = held_before(one.given, anew=one.asked.kind is not None)
    return _Part(one.given, before, _promise(one.asked, days, before, how, level))


def _calibrated(part: _Part, log: Log, how: _How, level: str) -> Calibrated:
    """Calibrate one policy. If that fails for a level, the error names the level."""
    given, before, wanted = part
    _demand_prices(log, how.settings, before)
    try:
        done = calibrate_policy(
            tables_for(log, wanted.asked.kind, None if log.matcher else before),
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
        if level:
            error.args = (f"Level {level!r}: {error}",)
        raise
    return done


def _target(given: GivenPolicy, output: Path | None, *, force: bool) -> Path:
    """Return the directory to write; refuse to write over another policy."""
    target = given.directory if output is None else output
    if target is None:
        raise UsageError("Name the policy directory to write: -o policy")
    same = given.directory is not None and target.resolve() == given.directory.resolve()
    check_target(target, same=same, force=force, otherwise=f"Calibrate that one with --policy {target}, choose")
    return target


def _promise(
    asked: GuaranteeOptions, days: int | None, before: PolicyArtifact | None, how: _How, level: str
) -> Promise:
    """Return the promise to make: the earlier one with the given parts replaced; report the changes to `tell`."""
    tell = how.tell
    if before is None or before.asked is None:
        return Promise(wanted_guarantee(asked, tell), days)
    was = Promise(before.asked, days_held(before))
    if asked.kind is not None:
        now = Promise(wanted_guarantee(asked, tell), days)
    else:
        now = Promise(_taken_over(asked, before.asked), was.days if days is None else days)
    tell(f"{level and f'{level}: '}{changes(was, now)}")
    return now


def _taken_over(asked: GuaranteeOptions, held: Guarantee) -> Guarantee:
    """Return a promise in which the given parts replace the old ones."""
    given: dict[str, Any] = {
        "alpha": asked.alpha,
        "delta": asked.delta,
        "by_segment": asked.by_segment or None,
        "abstain": asked.abstain or None,
    }
    try:
        return replace(held, **{name: value for name, value in given.items() if value is not None})
    except UsageError as error:
        told = f"The directory promises {held.kind}; --guarantee KIND replaces the whole promise."
        raise UsageError(f"{error} {told}") from None


def _demand_prices(log: Log, config: CascadeConfig | None, before: PolicyArtifact | None) -> None:
    """Refuse a log whose costs were computed at other prices than the certificate's."""
    if config is not None:
        refuse_other_prices(log, config.prices(), *CONFIGURED)
    elif before is not None:
        held = (before.certificates[0].made_for.get("prices") or {}).items()
        prices = {model: None if price is None else _price(price) for model, price in held}
        advice = "collect a new log, or give --config with the configuration that will serve"
        refuse_other_prices(log, prices, "the certificate was made for", advice)


# --- what a directory promised before, and the parts that a new calibration keeps ---


_UNSAID = "name the promise with --guarantee"


class Promise(NamedTuple):
    """A promise, and the number of days for which it is valid; None: without end."""

    asked: Guarantee
    days: int | None


def held_before(given: GivenPolicy, *, anew: bool) -> PolicyArtifact | None:
    """Return the contents of a policy directory; None if there is no directory or it has no certificate.

    Args:
        given: the policy.
        anew: whether the call replaces the whole promise, so that an unreadable file may be overwritten.

    Raises:
        ConfigError: the old promise is unknown, and the call asks for no new one.
    """
    if given.directory is None:
        return None
    try:
        held = read(given.directory)
    except ConfigError as error:
        if anew:
            return None
        raise ConfigError([*error.problems, f"so its earlier promise is unknown; {_UNSAID}"], error.source) from None
    if held.certificates and held.asked is None and not anew:
        raise ConfigError([f"its earlier promise is not recorded; {_UNSAID}"], str(given.directory))
    return held if held.certificates else None


def days_held(held: PolicyArtifact) -> int | None:
    """Return the number of days for which the certificates are valid; None if they do not expire."""
    first = held.certificates[0]
    if first.expires is None:
        return None
    return (date.fromisoformat(first.expires) - date.fromisoformat(first.created)).days


def changes(before: Promise, now: Promise) -> str:
    """Return one line with the earlier promise and its changes.

    >>> changes(Promise(Guarantee("coverage", 0.03), None), Promise(Guarantee("coverage", 0.05), None))
    'promised before: coverage, alpha 0.03; changed: alpha 0.03 -> 0.05'
    """
    was, will = _parts(before), _parts(now)
    changed = [f"{name} {was[name] or 'none'} -> {will[name] or 'none'}" for name in was if was[name] != will[name]]
    said = ", ".join(_said(was))
    return f"promised before: {said}; changed: {', '.join(changed)}" if changed else f"promised as before: {said}"


def _parts(promise: Promise) -> dict[str, str]:
    """Return each part of a promise in words; "" for a part that is not set."""
    asked = promise.asked
    shares = {name: "" if one is None else f"{one:g}" for name, one in (("alpha", asked.alpha), ("delta", asked.delta))}
    return {
        "guarantee": asked.kind,
        **shares,
        "by segment": "yes" if asked.by_segment else "",
        "abstaining": "yes" if asked.abstain else "",
        "days": "" if promise.days is None else str(promise.days),
    }


def _said(parts: Mapping[str, str]) -> Iterator[str]:
    for name, value in parts.items():
        if value:
            yield value if name == "guarantee" else name if value == "yes" else f"{name} {value}"


def lost(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a warning that names the facts about the cascade that a new certificate drops; None if it drops none."""
    gone = [name for name in unknown(now) if name not in unknown(before)]
    if not gone:
        return None
    return f"no longer recorded, because the log is of another cascade: {', '.join(gone)}; give --config"


def _price(held: Mapping[str, Any]) -> Price:
    above = tuple((int(tokens), _price(price)) for tokens, price in held["above"])
    return replace(Price(**{name: value for name, value in held.items() if name != "above"}), above=above)


# --- a policy with levels: every level keeps its alpha, and all are certified anew together ---


class LevelGiven(NamedTuple):
    """One level to calibrate: its policy and its promise, with its own alpha."""

    given: GivenPolicy
    asked: GuaranteeOptions


class LevelsGiven(NamedTuple):
    """The levels of a policy directory to calibrate, the cheapest first, and the default one."""

    default: str
    each: Mapping[str, LevelGiven]


def levels_given(given: GivenPolicy, asked: GuaranteeOptions, target: Path, *, force: bool) -> LevelsGiven | None:
    """Return the levels of a policy directory, each with its promise; None if it has no levels.

    Args:
        given: the policy.
        asked: the promise to make.
        target: the directory to write the levels into.
        force: whether they may overwrite what is there.

    Raises:
        UsageError: not every level can make this promise, or other files are where a level would be written.
        ConfigError: the directory cannot be read.
    """
    held = None if given.directory is None else read_levels(given.directory, certificates=False)
    if held is None or given.directory is None:
        return None
    if asked.alpha is not None:
        raise UsageError(
            f"{given.directory} has levels, each with an alpha of its own: {held.levels.told}. Leave --alpha out, or "
            f"calibrate one by itself: --policy {given.directory / LEVELS_FOLDER}/NAME -o OTHER"
        )
    if not force:
        refuse_foreign(target, held.levels.by_name, held.levels.default)
    found = {
        name: LevelGiven(_of_level(given, held, name), asked._replace(alpha=level.alpha))
        for name, level in held.levels.by_name.items()
    }
    return LevelsGiven(held.levels.default, found)


def _of_level(given: GivenPolicy, held: HeldLevels, name: str) -> GivenPolicy:
    assert given.directory is not None  # noqa: S101 - the levels were read from there
    policy = held.policies[name]
    return GivenPolicy(policy.section, given.config, given.directory / held.levels.directory(name), policy)
