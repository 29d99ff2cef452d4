"""`verify`: checks certificates against a log, without trusting their files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.logs import (
    Files,
    LogAsked,
    LogGiven,
    Models,
    ReviewOptions,
    Where,
    read_reviewed,
    reads_for,
)
from cascade.api.notices import tell_pooled
from cascade.api.output import Result, Tell, plain_text, table, warn
from cascade.api.policies import current_directory
from cascade.config import CascadeConfig, load
from cascade.conformal.certificate import Certificate
from cascade.conformal.fingerprint import differences, models_said, of_log, unknown
from cascade.episodes.reading import Reading, mispriced
from cascade.episodes.rows import Read, joined
from cascade.errors import CascadeError, ConfigError, NotCertifiedError
from cascade.serving.made_for import made_for
from cascade.studies.proof import Check, checks


@dataclass(frozen=True, slots=True)
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

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - its table is narrow
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        marks = {True: Text("ok", style="green"), False: Text("no", style="bold red")}
        rows = [[plain_text(each.name), marks[each.ok], Text(plain_text(each.text))] for each in self.checks]
        yield table(("check", "", "found"), rows, left=3, wrap=3)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `verify --json`."""
        return {"ok": self.ok, "checks": [check._asdict() for check in self.checks]}


def verify(
    directory: str | Path,
    log: LogGiven,
    *,
    config: str | Path | None = None,
    where: Where = None,
    matcher: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    tell: Tell = warn,
) -> VerificationResult:
    """Check a policy's certificates on a log: hashes, dates, models, and whether the same data give the same threshold.

    On requests that the policy was not made from, it counts the losses and says whether they refute the promise.

    Args:
        directory: a policy directory with its certificates.
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        config: the configuration that will serve: models, prices, prompts, strategy.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or directory.
        ConfigError: the configuration cannot be read.
    """
    settings = None if config is None else load(Path(config))
    try:
        read = current_directory(Path(directory))
    except ConfigError as error:
        where_from = "" if error.source is None else f"{error.source}: "
        return VerificationResult((Check("file", False, where_from + "; ".join(error.problems)),))
    kind, first = None if read.promise is None else read.promise.kind, next(iter(read.certificates.values()), None)
    asked = LogAsked(log, where, matcher, models=models)
    opened = read_reviewed(asked, ReviewOptions.of(reviews, label_rate), kind, tell)
    reads = reads_for(opened, kind, matcher or (None if first is None else first.comparator))
    tell_pooled(reads, tell)
    whole = joined(reads)
    if [node.name for node in whole.log.nodes] != [node.name for node in read.plan]:
        plan = ", ".join(node.name for node in read.plan)
        there = ", ".join(node.name for node in whole.log.nodes)
        return VerificationResult((Check("cascade", False, f"the policy is for {plan}, and the log has {there}"),))
    found = list(checks(read, whole.log, datetime.now(UTC).date()))
    if first is not None:
        found.insert(2, _cascade(first, whole, settings))
    return VerificationResult((*found, *([] if settings is None else [_prices(opened, settings)])))


def _cascade(certificate: Certificate, read: Read, config: CascadeConfig | None) -> Check:
    """Check that the log, and the configuration, are of the cascade that a certificate was made for."""
    then, logged = certificate.made_for, of_log(read.log, read.facts)
    changed = [f"in the log, {text}" for text in differences(then, logged)]
    if config is not None:
        now = made_for(config)
        changed += [f"as configured, {text}" for text in differences(then, now) or differences(logged, now, "the log")]
    if changed:
        return Check("cascade", False, "; ".join(changed))
    unseen = unknown(then)
    rest = f"; not recorded, and not checked: {', '.join(unseen)}" if unseen else ""
    return Check("cascade", True, f"made for {models_said(then) or 'unknown models'}{rest}")


def _prices(log: Reading, config: CascadeConfig) -> Check:
    """Check that the log's costs were computed at the prices of the configuration."""
    found = [each.describe() for each in mispriced(log.rows(), config.prices())]
    if found:
        return Check("prices", False, f"the log was costed at other prices than the configuration: {'; '.join(found)}")
    return Check("prices", True, "every call of the log costs the same at the configured prices")
