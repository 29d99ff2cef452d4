"""`fit`: learns policies from a log, chooses one, and certifies it. All options are checked together first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pydantic import ValidationError

from cascade.api.fit_report import PolicyFit, policy_fit, tell_unserved
from cascade.api.logs import (
    CONFIGURED,
    Files,
    LogAsked,
    LogGiven,
    Models,
    Problems,
    ReviewOptions,
    Where,
    checked_log,
    compared,
    read_reviewed,
    refuse_other_prices,
    tables_for,
    tell_pooled,
    tell_questions,
)
from cascade.api.output import Tell, warn
from cascade.api.promises import GuaranteeOptions, wanted_guarantee
from cascade.calibration.fingerprint import describe_uncovered
from cascade.episodes.table import EpisodeTable
from cascade.errors import ConfigError, UsageError
from cascade.evaluation.logs import Log
from cascade.guarantees.base import Guarantee, default_kind
from cascade.policies.artifact import CARD_FILE, POLICY_FILE, check_target
from cascade.policies.learned import CERTIFIABLE, NETWORKS
from cascade.training.fitting import Fitted, fit_policy
from cascade.training.portfolio import AUTO, check_method, method_written

if TYPE_CHECKING:
    from cascade.api.fit_levels import LevelsFit, LevelsWanted
    from cascade.config import CascadeConfig
    from cascade.training.networks.config import CCPOConfig
    from cascade.training.networks.trainer import Networks

FitResult: TypeAlias = "PolicyFit | LevelsFit"
Working: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Returns a context manager that shows that a task goes on; its argument is the name of the task."""


class NetworkOptions(NamedTuple):
    """The options of policy networks, as given.

    Attributes:
        offered: let --policy auto also try two policy networks, CCPO and CPO batch. Each is trained five times, for
            seconds to minutes each time. Needs the extra train.
        config: a file with the settings of training, YAML or JSON: docs/networks.md.
        steps: how many steps networks are trained for. By default 1,000.
        device: where networks are trained: cpu, or cuda, which is not bitwise reproducible. By default cpu.
    """

    offered: bool = False
    config: Path | None = None
    steps: int | None = None
    device: str | None = None

    @property
    def options(self) -> list[str]:
        """The options that were given."""
        there = {"--networks": self.offered, "--network-config": self.config is not None}
        there |= {"--steps": self.steps is not None, "--device": self.device is not None}
        return [name for name, one in there.items() if one]

    def networks(self, config: CCPOConfig | None) -> Networks | None:
        """Return the trainer; None without networks."""
        if config is None:
            return None
        from cascade.training.networks.trainer import Networks

        return Networks(config, offered=self.offered)


def _silent(_: str) -> AbstractContextManager[object]:
    return nullcontext()


def fit(
    log: LogGiven,
    *,
    guarantee: str | Guarantee | None = None,
    alpha: float | None = None,
    delta: float | None = None,
    by_segment: bool = False,
    abstain: bool = False,
    policy: str = AUTO,
    calibration_share: float | None = None,
    levels: str | Mapping[str, float] | None = None,
    default_level: str | None = None,
    networks: NetworkOptions = NetworkOptions(),  # noqa: B008 - frozen
    config: str | Path | None = None,
    expires_days: int | None = None,
    allow_everything: bool = False,
    where: Where = None,
    matcher: str | None = None,
    reference: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    force: bool = False,
    working: Working = _silent,
    tell: Tell = warn,
) -> FitResult:
    """Learn a policy from a log: compare simple and learned policies by cross-fitting, and certify the best.

    The questions are divided first: one part is used to fit and choose the policy, the other only to certify it.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        guarantee: the kind of guarantee, or a whole `Guarantee`, and then none of its parts beside it.
        alpha: the share of questions that may be missed. By default 0.1.
        delta: the guarantee holds with probability 1 - delta over calibrations, not only on average over them.
        by_segment: make a certificate for each segment of enough questions (a tenant, a task, a language).
        abstain: abstain if the confidence in the best answer is too low.
        policy: the kind of policy; auto compares all but networks and takes the simplest that does as well as the best.
        calibration_share: the share of questions set aside for certification. By default 0.3; for regret 0.7,
            or all questions if the score was fixed beforehand.
        levels: fit several levels, each with a certificate, into one directory; a request names one: low=0.2,high=0.05.
            For regret, agreement and preference, which the reference keeps by itself, above 0.1 promises little:
            low=0.1,medium=0.05,high=0.02.
        default_level: the level used when a request names none. By default the middle one.
        networks: the options of policy networks.
        config: the configuration that will serve: models, prices, prompts, strategy.
        expires_days: the number of days after which the certificate expires. By default it never does.
        allow_everything: if there are too few questions, keep every answer of every step instead of failing.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        reference: guide, or a ladder's model: an answer is right if it equals this model's output. Labels are ignored.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        seed: seed of the random draws; the same log and seed give the same policy.
        output: the policy directory to write. By default none is written; see `save` of the result.
        force: overwrite the policy in the directory.
        working: makes the context that shows that a fit goes on.
        tell: is called with each notice about the log or the call.

    Returns:
        A `PolicyFit`; with levels a `LevelsFit`.

    Raises:
        UsageError: the call is wrong; the message lists every problem.
        NotCertifiedError: the log cannot certify the promise; the error says how many questions would.

    >>> found = fit("demo", alpha=0.2, policy="threshold")
    >>> found.certificates[0].kind
    'coverage'
    """
    arguments = locals()
    given, promise = FitOptions.of(arguments), GuaranteeOptions.of(arguments)
    notices: list[str] = []

    def told(notice: str) -> None:
        notices.append(notice)
        tell(notice)

    log_asked, reviewed = LogAsked(log, where, matcher, reference, models), ReviewOptions.of(reviews, label_rate)
    ready = checked(given, promise, log_asked, reviewed, told)
    found = _fitted(_CheckedFit(given, ready, working), seed)
    serves = found if isinstance(found, PolicyFit) else found.fits[found.default]
    for table in ready.tables:
        if (said := describe_uncovered(table, serves.certificates)) is not None:
            told(said)
    found = replace(found, notices=tuple(notices))
    if output is None:
        return found
    problems = Problems()  # again: another fit may have written there in the meantime
    _check_output(problems, str(output), force=force)
    problems.refuse()
    return found.save(output)


class _CheckedFit(NamedTuple):
    """A checked call, and its callback for progress."""

    given: FitOptions
    ready: Ready
    working: Working


def _fitted(call: _CheckedFit, seed: int) -> FitResult:
    given, ready = call.given, call.ready
    asked = {"method asked for": given.policy, "seed": str(seed)}
    how: dict[str, Any] = {"method": given.policy, "config": ready.settings, "seed": seed}
    how |= {} if given.calibration_share is None else {"calibration_share": given.calibration_share}
    how |= {"expires_days": given.expires_days, "allow_everything": given.allow_everything}
    each = _certified(call, how)
    fits = {name: policy_fit(one, _asked(call, name, one, asked)) for name, one in each.items()}
    if ready.levels is None:
        return fits[""]
    from cascade.api.fit_levels import LevelsFit

    return LevelsFit(fits, ready.levels.default)


def _asked(call: _CheckedFit, level: str, fitted: Fitted, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the call for the model card of a level."""
    named = {"level": level} if level else {}
    share = call.given.calibration_share or fitted.sizes.calibration / max(fitted.sizes.questions, 1)
    return {**named, **asked, "share of the questions that certifies": f"{share:.2g}"}


def _certified(call: _CheckedFit, how: dict[str, Any]) -> Mapping[str, Fitted]:
    """Fit and certify: each level by its name; without levels one, called ""."""
    given, ready, levels = call.given, call.ready, call.ready.levels
    with call.working("choosing, fitting and certifying"):
        networks = given.networks.networks(ready.network)
        if levels is None:
            return {"": fit_policy(ready.tables, ready.wanted, networks=networks, **how)}
        from cascade.training.levels import conditioned, fit_levels

        make = (
            conditioned(networks, given.policy, how["seed"])
            if networks is not None and given.policy in CERTIFIABLE
            else None
        )
        return fit_levels(ready.tables, ready.wanted, levels.alphas, make=make, networks=networks, **how)


class FitOptions(NamedTuple):
    """How to fit a policy and where to write it: arguments of `fit`, by the same names."""

    policy: str
    calibration_share: float | None
    levels: str | None
    default_level: str | None
    networks: NetworkOptions
    config: Path | None
    expires_days: int | None
    allow_everything: bool
    output: str | None
    force: bool

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FitOptions:
        """Return the options among the arguments of a call."""
        found = {name: given[name] for name in cls._fields}
        if isinstance(found["levels"], Mapping):  # as written on the command line
            found["levels"] = ",".join(f"{name}={alpha!r}" for name, alpha in found["levels"].items())
        for name, kind in {"config": Path, "output": str}.items():
            found[name] = None if found[name] is None else kind(found[name])
        return cls(**found)


class Ready(NamedTuple):
    """The checked inputs of a fit."""

    wanted: Guarantee
    settings: CascadeConfig | None
    log: Log
    tables: Sequence[EpisodeTable]
    levels: LevelsWanted | None = None
    network: CCPOConfig | None = None


def checked(
    given: FitOptions, promise: GuaranteeOptions, log_asked: LogAsked, reviews: ReviewOptions, tell: Tell
) -> Ready:
    """Return the inputs of a fit; raise one error that lists every problem."""
    problems = Problems()
    if given.output is not None:
        _check_output(problems, given.output, force=given.force)
    with problems.noted():
        check_method(given.policy)
    if given.calibration_share is not None and not 0 < given.calibration_share < 1:
        problems.add(f"The share of questions that certify must lie between 0 and 1, not {given.calibration_share:g}.")
    network = wanted_config(problems, given.networks, given.policy)
    settings = None if (config := given.config) is None else problems.of(lambda: _settings(config))
    log = checked_log(problems, compared(log_asked) if reviews.files else log_asked, tell)
    if log is not None and promise.kind is None and any(table.truth is not None for table in log.tables):
        promise = promise._replace(kind=default_kind(compared=True))
    levels = _levels(problems, given, promise)
    at_default = promise if levels is None else promise._replace(alpha=levels.alphas[levels.default])
    wanted = problems.of(lambda: wanted_guarantee(at_default, tell))
    if reviews.files and log is not None and wanted is not None:
        kind = wanted.kind
        log = problems.of(lambda: read_reviewed(log_asked, reviews, kind, tell))
    tables: Sequence[EpisodeTable] | None = None
    if log is not None:
        with problems.noted():
            if settings is not None:
                refuse_other_prices(log, settings.prices(), *CONFIGURED)
        tables = problems.of(lambda: tables_for(log, None if wanted is None else wanted.kind))
    problems.refuse()
    assert wanted is not None  # noqa: S101 - else there were problems
    assert log is not None  # noqa: S101 - the same
    assert tables is not None  # noqa: S101 - the same
    tell_pooled(tables, tell)
    tell_questions(tables, tell, reference=wanted.rules.needs_reference)
    tell_unserved(tables, settings, tell)
    return Ready(wanted, settings, log, tables, levels, network)


def _levels(problems: Problems, given: FitOptions, promise: GuaranteeOptions) -> LevelsWanted | None:
    """Return the levels asked for, if any; note problems with them or with the place to write them."""
    if given.levels is None and given.default_level is None:
        return None
    from cascade.api.fit_levels import check_places, levels_asked

    levels = levels_asked(problems, given.levels, given.default_level, promise)
    if given.output is not None:
        check_places(problems, Path(given.output), levels, force=given.force)
    return levels


def _settings(path: Path) -> CascadeConfig:
    from cascade.config import load

    return load(path)


def _check_output(problems: Problems, output: str, *, force: bool) -> None:
    """Note the problem if a policy cannot be written to the output directory."""
    if not output.strip():
        problems.add(
            "--output is empty; name the policy directory to write, as in -o policy; -o . is the current directory."
        )
        return
    with problems.noted():
        otherwise = f"Calibrate that one with --policy {output}, choose"
        check_target(Path(output), same=False, force=force, otherwise=otherwise)
        place = Path(output)
        if (place / CARD_FILE).exists() and not (place / POLICY_FILE).exists() and not force:
            raise UsageError(
                f"{place} is not a policy directory and holds a {CARD_FILE}, which the model card would overwrite; "
                "choose another --output, or --force."
            )


def wanted_config(problems: Problems, given: NetworkOptions, method: str) -> CCPOConfig | None:
    """Return the settings of training; None if no network is trained, or if a problem was noted."""
    used = method in NETWORKS or (method == AUTO and given.offered)
    for said in _conflicts(given, method, used=used):
        problems.add(said)
    if not used and not given.options:
        return None
    from cascade.training.networks.trainer import require_torch

    config = problems.of(lambda: _config(given))
    if used and config is not None:
        problems.of(lambda: require_torch(config.device))
    return config if used else None


def _conflicts(given: NetworkOptions, method: str, *, used: bool) -> Iterator[str]:
    """Yield the conflicts between options."""
    if given.offered and method in NETWORKS:
        named = method_written(method)
        yield (
            f"--networks adds networks to --policy auto, and --policy {named} is a network itself; leave "
            f"--networks out."
        )
    elif given.options and not used:
        several = f"{', '.join(given.options)} {'is' if len(given.options) == 1 else 'are'}"
        named = ", ".join(map(method_written, NETWORKS))
        yield f"{several} of policy networks: --policy {named}, or auto with --networks."


def _config(given: NetworkOptions) -> CCPOConfig:
    """Return the settings of the file, overridden by the options given beside it.

    Raises:
        ConfigError: lists every problem with them.
    """
    from cascade.training.networks.config import CCPOConfig

    document: dict[str, Any] = {}
    if given.config is not None:
        from cascade.config.yamlfile import read_yaml

        if not given.config.is_file():
            raise UsageError(f"There is no file {given.config} with settings of networks.")
        document |= read_yaml(given.config, "docs/networks.md has an example")
    document |= {} if given.steps is None else {"steps": given.steps}
    document |= {} if given.device is None else {"device": given.device}
    try:
        return CCPOConfig.model_validate(document)
    except ValidationError as error:
        from cascade.config.problems import problems_behind, problems_in

        found = [*problems_in(CCPOConfig, document, error), *problems_behind(CCPOConfig, document, error)]
        source = "the settings of networks" if given.config is None else str(given.config)
        raise ConfigError(dict.fromkeys(found), source) from None
