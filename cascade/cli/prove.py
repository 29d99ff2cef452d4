"""`cascade prove`: what a log says that a cascade would save. It makes no model calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.methods import METHODS, method_named, method_written
from cascade.api.output import plain
from cascade.api.proving import FAST, MANY, prove
from cascade.cli.options import AsJson, LabelRate, Matched, Models, Reference, Reviews, Seed, Where
from cascade.cli.output import notes, print_result, say
from cascade.cli.progress import Shown
from cascade.evaluation.baselines import ALL, GUIDE
from cascade.training.choice.portfolio import AUTO
from cascade.training.networks.trainer import BARE

_METHODS_SAID = ", ".join(method_written(one) for one in METHODS if one not in BARE)
Logs = Annotated[
    list[str],
    typer.Argument(help="Logs (.jsonl, .parquet, a store's URL), demo, demo-ladder, demo-requests, or simulated:NAME."),
]
Kinds = Annotated[
    str | None,
    typer.Option(
        "--guarantee",
        help="The kind of guarantee: coverage, solvable, regret, error, agreement, … By "
        "default regret where the guide alone is on record, and the texts wherever votes decide; else coverage.",
    ),
]
Alphas = Annotated[
    list[float] | None,
    typer.Option(
        "--alpha",
        help="The share of questions that may break the promise. By default 0.05 for regret and error, else 0.1. "
        "Repeatable: the first is the headline.",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        help="The guarantee holds with probability 1 - delta over calibrations. By default 0.1 for regret and error.",
    ),
]
Tried = Annotated[
    str | None,
    typer.Option(
        "--policy",
        callback=method_named,
        help=f"The kind of policy: {_METHODS_SAID}. By default {AUTO}, all but networks, up to {MANY:,} "
        f"questions; beyond, {FAST}.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        help=f"What you pay today: {GUIDE} (a ladder's last model), or {ALL} steps. By default the guide where on "
        "record.",
    ),
]


def prove_logs(
    logs: Logs,
    guarantee: Kinds = None,
    alpha: Alphas = None,
    delta: Delta = None,
    against: Against = None,
    splits: Annotated[int, typer.Option("--splits", min=2, help="Number of random splits.")] = 20,
    policy: Tried = None,
    where: Where = None,
    matcher: Matched = None,
    reference: Reference = None,
    models: Models = None,
    reviews: Reviews = None,
    label_rate: LabelRate = None,
    seed: Seed = 0,
    report: Annotated[Path | None, typer.Option("--report", help="Also write the report as Markdown.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a cascade would save on your logs, with which guarantee, how sure that is, and why.

    No key is needed and no model is asked. Everything is fitted and certified anew on random splits of the questions,
    and judged on those left out.

    Example: cascade prove episodes.parquet --alpha 0.02 --alpha 0.05
    """
    with Shown() as shown:
        found = prove(
            logs,
            guarantee=guarantee,
            alpha=alpha,
            delta=delta,
            against=against,
            splits=splits,
            policy=policy,
            where=where,
            matcher=matcher,
            reference=reference,
            models=models,
            reviews=reviews,
            label_rate=label_rate,
            seed=seed,
            report=report,
            show=shown.tell,
            tell=say,
        )
    if report is not None:
        notes().print(f"written: {plain(str(report))}", soft_wrap=True)
    print_result(found, as_json=as_json)
