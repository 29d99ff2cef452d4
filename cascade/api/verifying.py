"""`verify`: checks certificates against a log, without trusting their files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cascade.api.logs import Log, LogOptions, read_log, reads_for
from cascade.api.policies import read_directory
from cascade.config import CascadeConfig, load
from cascade.conformal.scope import of_log
from cascade.episodes.reading import Reading, mispriced
from cascade.episodes.rows import joined
from cascade.errors import CascadeError, ConfigError, NotCertifiedError, UsageError
from cascade.fitting.attempts import counted, place_of
from cascade.reports.notices import about_data_sets, reference_of
from cascade.reports.report import Report, Result, Tell, warn
from cascade.serving.made_for import made_for
from cascade.studies.proof import Check, checks, counted_as, same_cascade, same_reference


@dataclass(frozen=True, slots=True, repr=False)
class VerificationResult(Result):
    """The checks of a policy's certificates."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """The failed checks, each with its finding."""
        return tuple([f"{check.name} ({check.text})" for check in self.checks if not check.ok])

    @property
    def error(self) -> CascadeError | None:
        """That the certificate does not hold; None if it does."""
        failed = "; ".join(self.failed)
        return NotCertifiedError(f"The certificate does not hold. What failed: {failed}.") if failed else None

    @property
    def reports(self) -> tuple[Report, ...]:
        """A line for each check."""
        lines = tuple([f"{'ok' if check.ok else 'no'}  {check.name:10}{check.text}" for check in self.checks])
        return (Report(lines, document={"ok": self.ok, "checks": [check._asdict() for check in self.checks]}),)


def verify(
    directory: str | Path, log: Log, *, config: str | Path | None = None, tell: Tell = warn
) -> VerificationResult:
    """Check a policy's certificates on a log: hashes, dates, models, and whether the same data give the same threshold.

    On requests that the policy was not made from, it counts the losses and says whether they refute the promise.

    Args:
        directory: a policy directory with its certificates.
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        config: the configuration that will serve: models, prices, prompts, strategy.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or directory.
        ConfigError: the configuration cannot be read.
    """
    settings, options = None if config is None else load(Path(config)), LogOptions.of(log)
    try:
        policy = read_directory(Path(directory))
    except ConfigError as error:
        source = "" if error.source is None else f"{error.source}: "
        return VerificationResult((Check("file", False, source + "; ".join(error.problems)),))
    kind, first = (
        None if policy.promise is None else policy.promise.kind,
        next(iter(policy.certificates.values()), None),
    )
    reading = read_log(options, kind, tell)
    reads = reads_for(reading, kind, options.matcher or (None if first is None else first.comparator))
    for notice in about_data_sets(reads):
        tell(notice)
    logged = joined(reads)
    try:
        policy.refuse_other_plan(logged.log)
    except UsageError as error:
        return VerificationResult((Check("cascade", False, str(error)),))
    results = list(checks(policy, logged.log, datetime.now(UTC).date()))
    if first is not None:
        configured = None if settings is None else made_for(settings)
        results.insert(2, same_cascade(first.made_for, of_log(logged.log, logged.facts), configured))
    if first is not None and first.unit != "conversation":  # the server's store counts the looks at these
        results.append(same_reference(policy, None if logged.log.reference is None else reference_of(logged)))
        ledger = None if reading.file is None else place_of(reading.file)
        results.append(counted_as(policy, counted(ledger, policy.requests.certified)))
    return VerificationResult((*results, *([] if settings is None else [_prices(reading, settings)])))


def _prices(log: Reading, config: CascadeConfig) -> Check:
    """Check that the log's costs were computed at the prices of the configuration."""
    if differing := [model.describe() for model in mispriced(log.rows(), config.prices())]:
        text = f"the log was costed at other prices than the configuration: {'; '.join(differing)}"
        return Check("prices", False, text)
    return Check("prices", True, "every call of the log costs the same at the configured prices")
