"""`cascade verify`: a certificate checked against a log, without trusting the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
from cascade.factory import HeldPolicy, read_levels

if TYPE_CHECKING:
    from cascade.policies.levels import Levels


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

    Of a policy with levels every level is checked.

    Example: cascade verify policy episodes.parquet
    """
    settings = None if config is None else load(config)
    log = open_log(episodes, where or (), matcher)
    levels: Levels | None = None
    try:
        held = policy_directory(directory)
        several = read_levels(directory)
    except ConfigError as error:
        verdicts = {"": not_whole(error)}
    else:
        levels = None if several is None else several.levels
        say_pooled(log.tables)
        each = {"": held} if several is None else several.policies
        verdicts = {name: _verdict(one, log, settings) for name, one in each.items()}
    if as_json:
        print_json(_document(verdicts, levels))
    else:
        for name, verdict in verdicts.items():
            if levels is not None:
                console().print(f"level {name}, alpha {levels.by_name[name].alpha:g}", style="bold")
            console().print(verdict_table(verdict))
    failed = [_called(name, check) for name, one in verdicts.items() for check in one.checks if not check.ok]
    if failed:
        raise NotCertifiedError(f"The certificate does not hold: {', '.join(dict.fromkeys(failed))}.")


def _called(level: str, check: Check) -> str:
    return f"{check.name} of {level}" if level else check.name


def _verdict(held: HeldPolicy, log: Log, settings: CascadeConfig | None) -> Verdict:
    kind = held.artifact.certificates[0].kind if held.artifact.certificates else None
    verdict = verify_held(held, tables_for(log, kind, held.policy), config=settings)
    return verdict if settings is None else Verdict((*verdict.checks, prices_check(log, settings)))


def _document(verdicts: Mapping[str, Verdict], levels: Levels | None) -> dict[str, Any]:
    """Return a document of one verdict; with levels that of the default one, and of each by its name."""
    if levels is None:
        return verdict_document(verdicts[""])
    each = {name: verdict_document(one) for name, one in verdicts.items()}
    ok = all(one.ok for one in verdicts.values())
    return {"ok": ok, "checks": each[levels.default]["checks"], "default": levels.default, "levels": each}


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
