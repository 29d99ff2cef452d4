"""`fit`: chooses a policy on a log, certifies what it promises, and writes the policy directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from cascade.api.logs import (
    CONFIGURED,
    Files,
    LogAsked,
    LogGiven,
    Problems,
    ReviewOptions,
    read_reviewed,
    reads_for,
    refuse_other_prices,
)
from cascade.api.notices import reference_of, tell_pooled, tell_requests
from cascade.api.output import Result, Tell, shown, warn
from cascade.conformal.certificate import Certificate
from cascade.conformal.fingerprint import MadeFor, certified_for, of_log
from cascade.conformal.promise import Promise
from cascade.conformal.scope import unlike
from cascade.episodes.opening import LADDER, OFFERS, SHIPPED
from cascade.episodes.reading import Reading
from cascade.episodes.rows import Read, joined
from cascade.episodes.store.address import is_url
from cascade.errors import UsageError
from cascade.files import writable
from cascade.fitting.attempts import place_of
from cascade.fitting.certificates import policy_directory
from cascade.fitting.divide import unseen
from cascade.fitting.fit import Fit, FitSettings
from cascade.fitting.fit import fit as fitted
from cascade.money import exact_dollars
from cascade.policies.directory import POLICY_FILE, PolicyDirectory, Requests
from cascade.policies.live import Live
from cascade.table import Log
from cascade.text import counted

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.reports.report import Report


@dataclass(frozen=True, slots=True)
class FitResult(Result):
    """A policy, what is certified about it, and what it saves.

    Attributes:
        done: every figure of the fit.
        directory: the policy directory.
        output: where it was written; None: nowhere.
        details: whether the printed result has the tables.
    """

    done: Fit
    directory: PolicyDirectory = field(repr=False)
    output: str | None = None
    details: bool = False

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates: one for all requests, or one for each segment or level."""
        return tuple(self.directory.certificates.values())

    @property
    def report(self) -> Report:
        """The report of the fit."""
        from cascade.reports.fit import of_fit  # which a fit that prints nothing does without

        return of_fit(self.done, self.output)

    def save(self, directory: str | PathLike[str]) -> FitResult:
        """Write the policy directory, whatever is there, and return the result that names it.

        Raises:
            UsageError: it cannot be written there.
        """
        self.directory.write(Path(directory))
        return replace(self, output=str(directory))

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences and narrow tables
        """Yield the parts of the printed result: a few lines, and with `details` the tables."""
        yield from (Text(shown(line), overflow="fold") for line in self.report.lines)
        for table in self.report.tables if self.details else ():
            yield Text(shown("\n".join(["", *table.plain()])), no_wrap=True, overflow="ignore")

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fit --json`."""
        certificates = {name: each.document for name, each in self.directory.certificates.items()}
        return {"output": self.output, **self.report.document, "certificates": certificates}


def fit(
    log: LogGiven | LogAsked,
    promise: Promise,
    settings: FitSettings = FitSettings(),  # noqa: B008 - frozen
    *,
    reviews: Files = None,
    config: str | PathLike[str] | CascadeConfig | None = None,
    output: str | PathLike[str] | None = None,
    force: bool = False,
    tell: Tell = warn,
) -> FitResult:
    """Choose a policy on a log, and certify what it promises.

    Beside a log that is a file, the fits of it are counted: each further one is tested at a smaller level.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests; or one that was read.
        promise: what is promised.
        settings: how to fit.
        reviews: a file of reviews (`cascade review`): they decide what is right. Several, for several reviewers.
        config: the configuration that will serve: models, prices, prompts, strategy.
        output: the policy directory to write.
        force: overwrite the policy in the directory.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: the call is wrong; the message lists every problem.
        NotCertifiedError: the log cannot certify the promise.

    >>> done = fit("demo-ladder", Promise("regret", 0.1, 0.9), tell=lambda notice: None)
    >>> done.done.saves, done.certificates[0].n
    (True, 244)
    """
    found = Problems()
    if output is not None:
        found.of(lambda: _check_output(Path(output), force=force))
    configured = None if config is None else found.of(lambda: _config(config))
    asked = log if isinstance(log, LogAsked) else LogAsked(log)
    rate = promise.rate if promise.rate < 1 else None
    opened = found.of(lambda: read_reviewed(asked, ReviewOptions.of(reviews, rate), promise.kind, tell))
    if opened is not None and configured is not None:
        found.of(lambda: refuse_other_prices(opened, configured.prices(), *CONFIGURED))
    earlier = found.of(lambda: _directory(settings))
    found.refuse()
    assert opened is not None  # noqa: S101 - else there was a problem
    return _fitted(asked, opened, promise, settings, earlier, configured, tell, output)


def _fitted(
    asked: LogAsked, opened: Reading, promise: Promise, settings: FitSettings, earlier: PolicyDirectory | None,
    config: CascadeConfig | None, tell: Tell, output: str | PathLike[str] | None,
) -> FitResult:  # fmt: skip
    reads = reads_for(opened, promise.kind)
    tell_pooled(reads, tell)
    tell_requests(reads, tell, reference="reference" in promise.rules.needs)
    read = joined(reads)
    log, truth = read.log, read.facts.truth
    if truth is not None and truth.kind is not None:
        promise = replace(promise, rate=truth.rate)
    cascade = None if config is None else _cascade(read, config)
    requests = Requests() if earlier is None else earlier.requests
    if earlier is not None:
        if [node.name for node in earlier.plan] != [node.name for node in log.nodes]:
            raise UsageError(f"The policy is for {_names(earlier.plan)}, and {log.name} has {_names(log.nodes)}.")
        settings = replace(settings, policy=earlier.policy)
    done = fitted(unseen(log, requests.fitted), promise, settings, attempts=_attempts(asked))
    live = Live(done.policy, log.nodes)
    before = None if earlier is None else next((each.made_for for each in earlier.certificates.values()), None)

    def made_for(part: Log) -> MadeFor:
        bought = part if live.by_call else done.policy.walks(part).log
        return certified_for(part, bought, read.facts, cascade, before)

    about: dict[str, Any] = {"reference": None if log.reference is None else reference_of(read)}
    about["comparator"] = None if truth is None else truth.comparator
    today = datetime.now(UTC).date()
    directory = policy_directory(done, log.nodes, today, before=requests, made_for=made_for, **about)
    if config is not None:
        from cascade.factory import unserved  # with providers, which a fit without a configuration does not need

        for problem in unserved(config.strategy, live):
            tell(f"The configured strategy cannot serve it: {problem}")
    if outside := _outside(read, directory):
        tell(outside)
    result = FitResult(done, directory)
    return result if output is None else result.save(output)


def _names(plan: Any) -> str:
    return ", ".join(node.name for node in plan)


def _cascade(read: Read, config: CascadeConfig) -> MadeFor:
    """Return the configured cascade. Raises UsageError if the log is of another."""
    from cascade.serving.made_for import made_for, refuse_other_cascade  # with strategies and providers

    cascade = made_for(config)
    refuse_other_cascade(read.log.name, of_log(read.log, read.facts), cascade)
    return cascade


def _outside(read: Read, directory: PolicyDirectory) -> str | None:
    """Return how many requests of a log no certificate covers, and their cost, as a sentence; None if there are none.

    They are of a segment without a certificate, or of a kind that the requests that certify do not have.
    """
    log, certificates = read.log, directory.certificates
    by_segment = any(each.covers == "segment" for each in certificates.values())
    first, rows = next(iter(certificates.values()), None), list[int]()
    for row, (name, segment) in enumerate(zip(log.ids, log.segments, strict=True)):
        certificate, kind = certificates.get(segment or "") if by_segment else first, read.facts.kinds.get(name)
        if certificate is None or (kind is not None and any(unlike(kind, certificate.made_for.get("requests")))):
            rows.append(row)
    if first is None or not rows:
        return None
    costs = np.empty(0) if log.reference is None else log.reference.cost_nano_usd[rows]
    known = costs[costs >= 0]
    cost = exact_dollars(round(float(known.mean()) * len(rows))) if known.size else "an unknown amount"
    share = f"{100 * len(rows) / log.n:.1f} % of the log"
    many = f"{counted(len(rows), 'question')} ({share}) lie outside the certificate"
    return f"{many}: the guide answers such requests, which costs {cost} for those"


def _attempts(asked: LogAsked) -> Path | None:
    """Return the file beside a log that counts its fits; None for a log that is no file."""
    if isinstance(asked.source, Reading) or str(asked.source) in SHIPPED or is_url(str(asked.source)):
        return None
    file = Path(str(asked.source).removeprefix(LADDER).removeprefix(OFFERS))
    return place_of(file) if file.is_file() else None


def _config(given: str | PathLike[str] | CascadeConfig) -> CascadeConfig:
    from cascade.config import load  # with strategies and providers, which a fit without a configuration does not need

    return load(Path(given)) if isinstance(given, str | PathLike) else given


def _directory(settings: FitSettings) -> PolicyDirectory | None:
    """Return the policy directory that is to be certified again; None if the settings name none."""
    if not isinstance(settings.policy, str) or not Path(settings.policy).is_dir():
        return None
    return PolicyDirectory.read(settings.policy)


def _check_output(target: Path, *, force: bool) -> None:
    """Raise UsageError if a policy cannot be written to a path, or would overwrite another."""
    writable(target)
    if (target / POLICY_FILE).exists() and not force:
        raise UsageError(f"{target} holds a policy already: choose another --output, or --force to overwrite it.")
