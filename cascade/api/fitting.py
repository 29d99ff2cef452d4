"""`fit`: choose a policy on a log, certify what it promises, and write the policy directory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade.api.logs import Log, LogOptions, Problems, config_here, datasets_for, read_log
from cascade.checks import kind_problems, refuse
from cascade.conformal.certificate import Certificate, MadeFor
from cascade.conformal.promise import PROMISE, Promise
from cascade.episodes.reading import Reading, mispriced, price_problem
from cascade.episodes.rows import Dataset, joined
from cascade.errors import UsageError
from cascade.files import writable
from cascade.fitting.attempts import place_of
from cascade.fitting.certificates import certified_for, of_log, policy_directory
from cascade.fitting.divide import unseen
from cascade.fitting.fit import Fit, FitSettings
from cascade.fitting.fit import fit as fitted
from cascade.policies.directory import POLICY_FILE, PolicyDirectory, Requests
from cascade.policies.live import LivePolicy
from cascade.reports.fit import fit_report
from cascade.reports.notices import about_columns, about_data_sets, about_requests, outside, reference_of
from cascade.reports.report import Result, Tell, warn

if TYPE_CHECKING:
    from cascade.config import CascadeConfig


@dataclass(frozen=True, repr=False, kw_only=True)
class FitResult(Result):
    """A policy, what is certified about it, and what it saves.

    Attributes:
        done: every figure of the fit.
        directory: the policy directory.
        output: where it was written; None if it was not.
    """

    done: Fit
    directory: PolicyDirectory
    output: str | None = None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates: one for all requests, or one for each segment or level."""
        return tuple(self.directory.certificates.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fit --json`."""
        certificates = {name: certificate.document for name, certificate in self.directory.certificates.items()}
        return {"output": self.output, **super().to_dict(), "certificates": certificates}

    def save(self, directory: str | PathLike[str]) -> FitResult:
        """Write the policy directory, over any that is there, and return the result with its path.

        Raises:
            UsageError: it cannot be written there.
        """
        self.directory.write(Path(directory))
        return replace(self, output=str(directory), reports=(fit_report(self.done, str(directory)),))


def fit(
    log: Log,
    promise: Promise,
    settings: FitSettings = FitSettings(),  # noqa: B008 - frozen
    *,
    config: str | PathLike[str] | CascadeConfig | None = None,
    output: str | PathLike[str] | None = None,
    force: bool = False,
    tell: Tell = warn,
) -> FitResult:
    """Choose a policy on a log, and certify what it promises.

    The fits of a log file are counted in a file beside it: each further fit is tested at a smaller level.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests; or one that was read.
        promise: what is promised.
        settings: how to fit.
        config: the configuration that will serve: models, prices, prompts, strategy.
        output: the policy directory to write.
        force: overwrite the policy in the directory.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: the call is wrong; the message lists every problem.
        NotCertifiedError: the log cannot certify the promise.

    >>> result = fit("demo-ladder", Promise("regret", 0.1, 0.9), tell=lambda notice: None)
    >>> result.done.saves, result.certificates[0].n
    (True, 244)
    """
    wrong = kind_problems(Promise, PROMISE, promise=promise)
    refuse(wrong + kind_problems(FitSettings, "a FitSettings, as in FitSettings(seed=1)", settings=settings))
    problems, options = Problems(), LogOptions.of(log)
    if output is not None:
        problems.catch(lambda: _check_output(Path(output), force=force))
    configured = None if config is None else problems.catch(lambda: _config(config))
    if promise.rate < 1:
        options = options._replace(label_rate=promise.rate)
    reading = problems.catch(lambda: read_log(options, promise.kind, tell))
    if reading is not None and configured is not None:
        problems.catch(lambda: _check_prices(reading, configured))
    earlier = problems.catch(lambda: _directory(settings))
    problems.refuse()
    assert reading is not None  # noqa: S101 - else there was a problem
    datasets = datasets_for(reading, promise.kind)
    for notice in (*about_data_sets(datasets), *about_requests(datasets, reference="reference" in promise.rules.needs)):
        tell(notice)
    if configured is None and config_here(reading, datasets)[0] is not None:
        tell("No settings and prices are on record, so nothing checks them: add --config cascade.yaml to record them.")
    result = _fitted(joined(datasets), promise, settings, earlier, configured, reading, tell)
    return result if output is None else result.save(output)


def _fitted(
    data: Dataset, promise: Promise, settings: FitSettings, earlier: PolicyDirectory | None,
    config: CascadeConfig | None, reading: Reading, tell: Tell,
) -> FitResult:  # fmt: skip
    log, truth, file = data.log, data.facts.truth, reading.file
    if truth is not None and truth.kind is not None:
        promise = replace(promise, rate=truth.rate)
    cascade = None if config is None else _cascade(data, config)
    requests, before = Requests(), None
    if earlier is not None:
        earlier.refuse_other_plan(log)
        settings, requests = replace(settings, policy=earlier.policy), earlier.requests
        before = next((certificate.made_for for certificate in earlier.certificates.values()), None)
    done = fitted(unseen(log, requests.fitted), promise, settings, attempts=None if file is None else place_of(file))
    live = LivePolicy(done.policy, log.nodes)

    def made_for(requests: Any) -> MadeFor:
        bought = requests if live.by_call else done.policy.walks(requests).log
        return certified_for(requests, bought, data.facts, cascade, before)

    about: dict[str, Any] = {"reference": None if log.reference is None else reference_of(data)}
    about |= {"comparator": reading.matcher if truth is None else truth.comparator, "unlabelled": data.facts.unjudged}
    today = datetime.now(UTC).date()
    directory = policy_directory(done, log.nodes, today, before=requests, made_for=made_for, **about)
    if config is not None:
        from cascade.factory import unserved  # with providers, which a fit without a configuration does not need

        for problem in unserved(config.strategy, live):
            tell(f"The configured strategy cannot serve it: {problem}")
    for notice in (*outside(data, directory.certificates), *about_columns(done.policy, directory.certificates)):
        tell(notice)
    return FitResult(reports=(fit_report(done),), done=done, directory=directory)


def _cascade(data: Dataset, config: CascadeConfig) -> MadeFor:
    """Return the configured cascade. Raises UsageError if the log is of another."""
    from cascade.serving.conditions import made_for, refuse_other_cascade  # with strategies and providers

    cascade = made_for(config)
    refuse_other_cascade(data.log.name, of_log(data.log, data.facts), cascade)
    return cascade


def _config(config: str | PathLike[str] | CascadeConfig) -> CascadeConfig:
    from cascade.config import load  # with strategies and providers, which a fit without a configuration does not need

    return load(Path(config)) if isinstance(config, str | PathLike) else config


def _directory(settings: FitSettings) -> PolicyDirectory | None:
    """Return the policy directory that is to be certified again; None if the settings name none."""
    if not isinstance(settings.policy, str) or not Path(settings.policy).is_dir():
        return None
    return PolicyDirectory.read(settings.policy)


def _check_prices(reading: Reading, config: CascadeConfig) -> None:
    """Raise UsageError if the log's costs were computed at other prices than the configuration's."""
    if differing := mispriced(reading.rows(), config.prices())[1]:
        advice = "collect a new log, or set the prices of this one in the configuration"
        raise UsageError(f"{price_problem(differing)}; {advice}")


def _check_output(target: Path, *, force: bool) -> None:
    """Raise UsageError if a policy cannot be written to a path, or would overwrite another."""
    writable(target)
    if (target / POLICY_FILE).exists() and not force:
        raise UsageError(f"{target} already holds a policy: choose another --output, or overwrite it with --force.")
