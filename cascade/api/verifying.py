"""`verify`: checks certificates against a log, without trusting their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cascade.api.logs import (
    Files,
    LogAsked,
    LogGiven,
    Models,
    ReviewOptions,
    Where,
    other_prices,
    read_reviewed,
    tables_for,
    tell_pooled,
)
from cascade.api.output import Result, Tell, plain_text, table, warn
from cascade.api.policies import policy_directory
from cascade.calibration.verifying import Check, Verdict, not_whole, verify_held
from cascade.config import CascadeConfig, load
from cascade.errors import CascadeError, ConfigError, NotCertifiedError
from cascade.evaluation.logs import Log
from cascade.factory import HeldPolicy, read_levels
from cascade.policies.levels import Levels


@dataclass(frozen=True, slots=True)
class VerificationResult(Result):
    """The checks of a policy's certificates.

    Attributes:
        verdicts: the checks of each level by its name; without levels those of the policy, under "".
        levels: the levels of the policy; None if it has none.
    """

    verdicts: Mapping[str, Verdict]
    levels: Levels | None = None

    @property
    def ok(self) -> bool:
        """Whether every check of every level holds."""
        return all(one.ok for one in self.verdicts.values())

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the failed checks, each with its finding."""
        said = (
            f"{check.name} of {name} ({check.said})" if name else f"{check.name} ({check.said})"
            for name, one in self.verdicts.items()
            for check in one.checks
            if not check.ok
        )
        return tuple(dict.fromkeys(said))

    @property
    def error(self) -> CascadeError | None:
        """That the certificate does not hold; None if it does."""
        return (
            None
            if self.ok
            else NotCertifiedError(f"The certificate does not hold. What failed: {'; '.join(self.failed)}.")
        )

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - its table is narrow
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        for name, verdict in self.verdicts.items():
            if self.levels is not None:
                yield Text(f"level {name}, alpha {self.levels.by_name[name].alpha:g}", style="bold")
            yield _table(verdict)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `verify --json`; with levels the checks are those of the default level."""
        each = {
            name: {"ok": one.ok, "checks": [check._asdict() for check in one.checks]}
            for name, one in self.verdicts.items()
        }
        if self.levels is None:
            return each[""]
        return {
            "ok": self.ok,
            "checks": each[self.levels.default]["checks"],
            "default": self.levels.default,
            "levels": each,
        }


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

    On questions that the policy was not made from, it counts the misses and says whether they refute the promise. Every
    level of a policy with levels is checked.

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
    place = Path(directory)
    try:
        held = policy_directory(place)
        several = read_levels(place)
    except ConfigError as error:
        return VerificationResult({"": not_whole(error)})
    opened = read_reviewed(
        LogAsked(log, where, matcher, models=models), ReviewOptions.of(reviews, label_rate), _kind(held) or "", tell
    )
    tell_pooled(opened.tables, tell)
    each = {"": held} if several is None else several.policies
    verdicts = {name: _verdict(one, opened, settings) for name, one in each.items()}
    return VerificationResult(verdicts, None if several is None else several.levels)


def _kind(held: HeldPolicy) -> str | None:
    return held.artifact.certificates[0].kind if held.artifact.certificates else None


def _verdict(held: HeldPolicy, log: Log, settings: CascadeConfig | None) -> Verdict:
    verdict = verify_held(held, tables_for(log, _kind(held), held.artifact), config=settings)
    return verdict if settings is None else Verdict((*verdict.checks, prices_check(log, settings)))


def prices_check(log: Log, config: CascadeConfig) -> Check:
    """Check that the log's costs were computed at the prices of the configuration."""
    found = other_prices(log, config.prices())
    if found:
        said = f"the log was costed at other prices than the configuration: {'; '.join(found)}"
        return Check("prices", ok=False, said=said)
    return Check("prices", ok=True, said="every call of the log costs the same at the configured prices")


def _table(verdict: Verdict) -> Table:
    """Return the checks as a table."""
    marks = {True: Text("ok", style="green"), False: Text("no", style="bold red")}
    rows = [[plain_text(one.name), marks[one.ok], Text(plain_text(one.said))] for one in verdict.checks]
    return table(("check", "", "found"), rows, left=3, wrap=3)
