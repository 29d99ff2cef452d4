"""`cascade verify`: a certificate checked against a log, without trusting the file."""

from __future__ import annotations

from cascade.api.verifying import verify
from cascade.cli.monitor import Directory
from cascade.cli.options import AsJson, Configured, Episodes, LabelRate, Matched, Models, Reviews, Where
from cascade.cli.output import print_result, say
from cascade.errors import NotCertifiedError


def verify_log(
    directory: Directory,
    episodes: Episodes,
    config: Configured = None,
    where: Where = None,
    matcher: Matched = None,
    models: Models = None,
    reviews: Reviews = None,
    label_rate: LabelRate = None,
    as_json: AsJson = False,
) -> None:
    """Check a policy's certificates on a log: hashes, dates, models, and that the same data give the same threshold.

    On questions that it was not made from, it counts the misses and says whether they refute the promise.

    Of a policy with levels every level is checked.

    Example: cascade verify policy episodes.parquet
    """
    found = verify(
        directory,
        episodes,
        config=config,
        where=where,
        matcher=matcher,
        models=models,
        reviews=reviews,
        label_rate=label_rate,
        tell=say,
    )
    print_result(found, as_json=as_json)
    if not found.ok:
        raise NotCertifiedError(f"The certificate does not hold: {', '.join(found.failed)}.")
