"""`cascade onboard`: what a new model would bring, from a few logged questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.onboarding import onboard
from cascade.cli.options import AsJson, Episodes, Matched, Seed
from cascade.cli.output import print_result, say


def onboard_model(
    model: Annotated[str, typer.Argument(help="The new model: its place or name under models in the configuration.")],
    episodes: Episodes,
    output: Annotated[Path, typer.Option("--output", "-o", help="The log of the probes: .jsonl or .parquet.")],
    probes: Annotated[int, typer.Option("--probes", min=2, help="How many of the log's questions are asked.")] = 100,
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration.")] = Path("cascade.yaml"),
    alpha: Annotated[float, typer.Option("--alpha", help="The most regret that is to be certified.")] = 0.05,
    delta: Annotated[float, typer.Option("--delta", help="It holds for all but this share of draws.")] = 0.1,
    matcher: Matched = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1000, help="Questions at a time.")] = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Ask a new model some of a log's questions, and say what it would save before the log's reference.

    The reference's answers are not paid again: they stand in the log. A table says what 50, 100 and 200 probes buy.

    Example: cascade onboard new-model episodes.parquet -o probes.jsonl --probes 200
    """
    found = onboard(
        model,
        episodes,
        output,
        probes=probes,
        config=config,
        alpha=alpha,
        delta=delta,
        matcher=matcher,
        concurrency=concurrency,
        seed=seed,
        tell=say,
    )
    print_result(found, as_json=as_json)
