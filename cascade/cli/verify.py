"""`cascade verify`: a certificate checked against a log, without trusting the file."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from cascade.calibration.verifying import Check, Verdict, not_whole, verify_held
from cascade.cli.certificates import plain_text
from cascade.cli.logs import open_log, other_prices, say_pooled, tables_for
from cascade.cli.monitor import Directory
from cascade.cli.options import AsJson, Configured, Episodes, Matched, Where
from cascade.cli.output import console, print_json
from cascade.cli.policies import policy_directory
from cascade.config import CascadeConfig, load
from cascade.errors import ConfigError, NotCertifiedError
from cascade.evaluation.logs import Log


def verify_log(
    directory: Directory,
    episodes: Episodes,
    config: Configured = None,
    where: Where = None,
    matcher: Matched = None,
    as_json: AsJson = False,
) -> None:
    """Check a policy's certificates on a log: hashes, dates, models, the same threshold from the same data.

    On questions that it was not made from, it counts the misses and says whether they refute the promise.

    Example: cascade verify policy episodes.parquet
    """
    settings = None if config is None else load(config)
    log = open_log(episodes, where or (), matcher)
    try:
        held = policy_directory(directory)
    except ConfigError as error:
        verdict = not_whole(error)
    else:
        kind = held.artifact.certificates[0].kind if held.artifact.certificates else None
        say_pooled(log.tables)
        verdict = verify_held(held, tables_for(log, kind, held.policy), config=settings)
        if settings is not None:
            verdict = Verdict((*verdict.checks, prices_check(log, settings)))
    if as_json:
        print_json(verdict_document(verdict))
    else:
        console().print(verdict_table(verdict))
    failed = [check.name for check in verdict.checks if not check.ok]
    if failed:
        raise NotCertifiedError(f"The certificate does not hold: {', '.join(dict.fromkeys(failed))}.")


def prices_check(log: Log, config: CascadeConfig) -> Check:
    """Return whether the log was costed at the prices of the configuration."""
    found = other_prices(log, config.prices())
    if found:
        said = f"the log was costed at other prices than the configuration: {'; '.join(found)}"
        return Check("prices", ok=False, said=said)
    return Check("prices", ok=True, said="no call of the log costs otherwise at the configured prices")


def verdict_table(verdict: Verdict) -> Table:
    """Return the checks as a table."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head in ("check", "", "found"):
        table.add_column(head)
    for check in verdict.checks:
        shown = Text("ok", style="green") if check.ok else Text("no", style="bold red")
        table.add_row(plain_text(check.name), shown, Text(plain_text(check.said)))
    return table


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return the checks as plain values: the contract of `verify --json`."""
    return {"ok": verdict.ok, "checks": [check._asdict() for check in verdict.checks]}
