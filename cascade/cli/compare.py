"""`cascade compare` and `cascade evaluate`: policies on a log, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cascade.cli.logs import open_log, tables_for
from cascade.cli.options import AsJson, Episodes, Matched, Seed, Where
from cascade.cli.output import console, notes, plain, print_json
from cascade.cli.policies import given_policy
from cascade.cli.tables import compare_table, evaluation_notes, evaluation_table, legend, rounds_table
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.compare import Comparison, Row, compare
from cascade.evaluation.evaluate import Evaluation, evaluate
from cascade.evaluation.intervals import Interval
from cascade.evaluation.methods import Method, Portfolio

_NETWORKS = "Also train policy networks, CPO and CCPO, on each split: far slower than all else. Needs the extra train."
_STEPS = "Updates of each network; fewer are quicker."


def compare_log(
    episodes: Episodes,
    alpha: Annotated[float, typer.Option("--alpha", help="The share of questions that may be missed.")] = 0.1,
    splits: Annotated[int, typer.Option("--splits", min=1, help="How many random splits.")] = 20,
    where: Where = None,
    matcher: Matched = None,
    seed: Seed = 0,
    reference: Annotated[str | None, typer.Option("--reference", help="The row to compare with.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw cost against coverage: .svg, .png or .pdf.")] = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="Also print what each step brought.")] = False,
    fit: Annotated[bool, typer.Option("--fit", help="Also choose and fit a policy as cascade fit does.")] = False,
    networks: Annotated[bool, typer.Option("--networks", help=_NETWORKS)] = False,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help=_STEPS)] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every way to answer on the same splits of a log.

    Example: cascade compare episodes.parquet --alpha 0.1 --plot cost.svg
    """
    log = open_log(episodes, where or (), matcher)
    if plot is not None:
        _check_plot(log.tables, plot)
    others = [_others(one, fit=fit, networks=networks, steps=steps) for one in log.tables]
    found = [
        compare(one, alpha=alpha, count=splits, seed=seed, others=more, reference=reference)
        for one, more in zip(log.tables, others, strict=True)
    ]
    if plot is not None:
        _plot(found[0], plot)
    if as_json:
        _print([comparison_document(one) for one in found], {"alpha": alpha, "splits": splits})
        return
    out, evens = console(), log.break_evens()
    for table, one in zip(log.tables, found, strict=True):
        if rounds:
            out.print(rounds_table(table))
            out.print()
        out.print(compare_table(one, out.width))
        out.print(legend(one), style="dim")
        for said in one.left_out:
            out.print(plain(said), style="yellow")
        if one.dataset in evens:
            out.print(evens[one.dataset].describe())
        out.print()


def evaluate_log(
    episodes: Episodes,
    policy: Annotated[str, typer.Option("--policy", help="A policy directory, a policy as YAML, or a configuration.")],
    where: Where = None,
    matcher: Matched = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Say exactly what one policy does on a log, with intervals.

    Example: cascade evaluate episodes.parquet --policy "{kind: threshold, threshold: 0.3}"
    """
    given = given_policy(policy)
    deciding = given.deciding
    log = open_log(episodes, where or (), matcher)
    tables = tables_for(log, None, deciding)
    found = [evaluate(table, deciding, artifact=given.artifact, seed=seed) for table in tables]
    if as_json:
        _print([evaluation_document(one, policy) for one in found], {"policy": policy})
        return
    out = console()
    for one in found:
        out.print(evaluation_table(one))
        for said in evaluation_notes(one):
            out.print(plain(said), style="bold yellow")
        out.print()


def _others(table: EpisodeTable, *, fit: bool, networks: bool, steps: int | None) -> list[Method]:
    """Return the methods that are played only where they are asked for."""
    if steps is not None and not networks:
        raise UsageError("--steps says how long networks are trained; give --networks too.")
    found: list[Method] = [Portfolio()] if fit else []
    if networks:
        from cascade.evaluation.network_methods import network_methods
        from cascade.training.networks.config import CCPOConfig

        found += network_methods(table, CCPOConfig() if steps is None else CCPOConfig(steps=steps))
    return found


def _check_plot(tables: Sequence[EpisodeTable], path: Path) -> None:
    """Refuse a plot that cannot be drawn before anything is computed."""
    from cascade.evaluation.report.plots import check

    if len(tables) > 1:
        names = ", ".join(one.dataset for one in tables)
        raise UsageError(f"The log holds {len(tables)} data sets; draw one with --where dataset=NAME of: {names}")
    check(path, tables[0].dataset, cost_known=tables[0].cost_known)


def _plot(found: Comparison, path: Path) -> None:
    from cascade.evaluation.report.plots import plot

    plot(found, path)
    notes().print(f"drawn: {plain(str(path))}", soft_wrap=True)


def _print(documents: list[dict[str, Any]], shared: dict[str, Any]) -> None:
    """Print one data set as the document itself, several as a list of them."""
    print_json(documents[0] if len(documents) == 1 else {**shared, "datasets": documents})


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values: the contract of `compare --json`. Costs in USD per question."""
    train, calibration, test = found.sizes
    return {
        "dataset": found.dataset,
        "alpha": found.alpha,
        "n": found.n,
        "repeated": found.repeated,
        "horizon": found.horizon,
        "splits": found.splits,
        "seed": found.seed,
        "sizes": {"train": train, "calibration": calibration, "test": test},
        "groups": dict(zip(("train", "calibration", "test"), found.groups, strict=True)),
        "left_out": list(found.left_out),
        "unsolvable": found.unsolvable,
        "coverage_sd_expected": found.coverage_sd,
        "reference": found.reference,
        "rows": [_row_document(row) for row in found.rows],
    }


def _row_document(row: Row) -> dict[str, Any]:
    mean = asdict(row.mean)
    sd = dict.fromkeys(mean) if row.sd is None else asdict(row.sd)
    return {
        "policy": row.policy,
        **mean,
        **{f"{name.removesuffix('_usd')}_sd": value for name, value in sd.items()},
        "matched_cost_usd": row.matched_cost_usd,
        "matched_cost_sd": row.matched_cost_sd,
        "fit_seconds": row.fit_seconds,
        "questions": row.questions,
        "against_reference": {
            "cost_usd": _interval(row.cost_difference),
            "coverage": _interval(row.coverage_difference),
            "matched_cost_usd": _interval(row.matched_difference),
        },
    }


def _interval(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else {**found._asdict(), "more_than_chance": found.excludes_zero}


def evaluation_document(found: Evaluation, policy: str) -> dict[str, Any]:
    """Return an evaluation as plain values, in the form of a comparison of one row. Costs in USD per question.

    What only a comparison has is null: nothing is fitted, and there are no splits to have a standard deviation over.
    """
    mean = asdict(found.mean)
    row = {
        "policy": policy,
        "kappa": found.kappa if abs(found.kappa) != float("inf") else str(found.kappa),
        **mean,
        **{f"{name.removesuffix('_usd')}_sd": None for name in mean},
        "fit_seconds": None,
        "intervals": {name: list(bounds) for name, bounds in found.intervals.items()},
        "promise": None if found.promise is None else asdict(found.promise),
        "reference": found.reference,
        "times_reference": found.times_reference,
        "seen": None if found.seen is None else asdict(found.seen),
    }
    return {
        "dataset": found.dataset,
        "alpha": None,
        "n": found.n,
        "episodes": found.episodes,
        "horizon": found.horizon,
        "splits": None,
        "rows": [row],
    }
