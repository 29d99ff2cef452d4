"""`cascade monitor`: whether audited questions still bear a certificate out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.monitoring import monitor
from cascade.cli.options import AsJson, Episodes, Matched, Models, Where
from cascade.cli.output import print_result, say
from cascade.errors import NotCertifiedError

Directory = Annotated[Path, typer.Argument(help="A policy directory with its certificates.")]


def monitor_log(
    directory: Directory,
    episodes: Episodes,
    level: Annotated[float, typer.Option("--level", help="The probability that a false alarm is ever raised.")] = 0.05,
    where: Where = None,
    matcher: Matched = None,
    models: Models = None,
    as_json: AsJson = False,
) -> None:
    """Go through audited questions in the order they were asked, and report whether the guarantee still holds.

    An audit runs every step, so that it is one for each level of a policy with levels; they share --level.

    Example: cascade monitor policy audits.jsonl
    """
    found = monitor(directory, episodes, level=level, where=where, matcher=matcher, models=models, tell=say)
    print_result(found, as_json=as_json)
    if found.alarmed:
        raise NotCertifiedError(
            f"{found.alarmed} of {found.watched} certificates no longer hold by these audits. Serve with "
            f"another policy, and calibrate on newer questions: cascade calibrate EPISODES --policy {directory}"
        )
