"""`cascade compare` and `cascade evaluate`: policies on a log, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.comparing import compare
from cascade.api.evaluating import evaluate
from cascade.api.output import plain
from cascade.cli.options import AsJson, Episodes, LabelRate, Matched, Models, Reviews, Seed, Where
from cascade.cli.output import notes, print_result, say

_NETWORKS = "Also train policy networks, CPO and CCPO, on each split: far slower than all else. Needs the extra train."
_STEPS = "Updates of each network; fewer are quicker."


def compare_log(
    episodes: Episodes,
    alpha: Annotated[float, typer.Option("--alpha", help="The share of questions that may be missed.")] = 0.1,
    splits: Annotated[int, typer.Option("--splits", min=1, help="Number of random splits.")] = 20,
    where: Where = None,
    matcher: Matched = None,
    models: Models = None,
    reviews: Reviews = None,
    label_rate: LabelRate = None,
    seed: Seed = 0,
    reference: Annotated[str | None, typer.Option("--reference", help="The row to compare with.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw cost against coverage: .svg, .png or .pdf.")] = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="Also print accuracy and cost after each step.")] = False,
    fit: Annotated[bool, typer.Option("--fit", help="Also fit a policy, as cascade fit does.")] = False,
    networks: Annotated[bool, typer.Option("--networks", help=_NETWORKS)] = False,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help=_STEPS)] = None,
    as_json: AsJson = False,
) -> None:
    """Compare policies and baselines on the same random splits of a log.

    Example: cascade compare episodes.parquet --alpha 0.1 --plot cost.svg
    """
    found = compare(
        episodes,
        alpha=alpha,
        splits=splits,
        reference=reference,
        fit=fit,
        networks=networks,
        steps=steps,
        rounds=rounds,
        plot=plot,
        where=where,
        matcher=matcher,
        models=models,
        reviews=reviews,
        label_rate=label_rate,
        seed=seed,
        tell=say,
    )
    if plot is not None:
        notes().print(f"drawn: {plain(str(plot))}", soft_wrap=True)
    print_result(found, as_json=as_json)


def evaluate_log(
    episodes: Episodes,
    policy: Annotated[str, typer.Option("--policy", help="A policy directory, a policy as YAML, or a configuration.")],
    where: Where = None,
    matcher: Matched = None,
    models: Models = None,
    reviews: Reviews = None,
    label_rate: LabelRate = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Evaluate one policy exactly on a log, with confidence intervals.

    Example: cascade evaluate episodes.parquet --policy "{kind: threshold, threshold: 0.3}"
    """
    found = evaluate(
        episodes,
        policy,
        where=where,
        matcher=matcher,
        models=models,
        reviews=reviews,
        label_rate=label_rate,
        seed=seed,
        tell=say,
    )
    print_result(found, as_json=as_json)
