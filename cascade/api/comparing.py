"""`compare`: compares policies and baselines on the same random splits of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.logs import Files, LogAsked, LogGiven, Models, ReviewOptions, Where, read_judged
from cascade.api.output import Result, Tell, plain_text, warn
from cascade.api.policies import PolicyAsked, given_policy
from cascade.api.tables import compare_table, legend, rounds_table
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation import compare as comparing
from cascade.evaluation.compare import Comparison, Row
from cascade.evaluation.methods import Given, Method, Portfolio
from cascade.evaluation.splits import Interval


@dataclass(frozen=True, slots=True)
class ComparisonResult(Result):
    """Policies compared on a log.

    Attributes:
        alpha: the share of questions that may be missed.
        splits: how many random splits.
        datasets: the comparison for each data set of the log.
        tables: the questions of each data set, in the same order.
        rounds: whether the summary also shows accuracy and cost by step.
    """

    alpha: float
    splits: int
    datasets: tuple[Comparison, ...]
    tables: tuple[EpisodeTable, ...]
    rounds: bool = False

    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        for table, one in zip(self.tables, self.datasets, strict=True):
            if self.rounds:
                yield from (rounds_table(table), "")
            yield compare_table(one, width)
            yield Text.from_markup(legend(one, width), style="dim")
            yield from (Text(plain_text(said), style="yellow") for said in one.left_out)
            yield ""

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `compare --json`. Costs in USD per question."""
        found = [comparison_document(one) for one in self.datasets]
        return {"alpha": self.alpha, "splits": self.splits, "datasets": found}

    def plot(self, path: str | Path) -> None:
        """Draw cost against coverage into a .svg, .png or .pdf file.

        Raises:
            UsageError: the log has several data sets or no costs, or the file cannot be written.
            MissingExtraError: matplotlib is not installed.
        """
        from cascade.evaluation.plots import plot

        _check_plot(self.tables, Path(path))
        plot(self.datasets[0], Path(path))


def compare(
    log: LogGiven,
    *,
    alpha: float = 0.1,
    splits: int = 20,
    reference: str | None = None,
    policy: PolicyAsked | Sequence[PolicyAsked] | None = None,
    fit: bool = False,
    networks: bool = False,
    steps: int | None = None,
    rounds: bool = False,
    plot: str | Path | None = None,
    where: Where = None,
    matcher: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    seed: int = 0,
    tell: Tell = warn,
) -> ComparisonResult:
    """Compare policies and baselines on the same random splits of a log.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        alpha: the share of questions that may be missed.
        splits: number of random splits.
        reference: the row to compare with. By default what is paid today, as in `prove`.
        policy: also compare this policy, given by its settings as in cascade.yaml, with its threshold calibrated. Use
            this for a policy of your own. Repeatable.
        fit: also fit a policy, as `cascade fit` does.
        networks: also train policy networks, CPO and CCPO, on each split: by far the slowest option. Needs the extra
            train.
        steps: updates of each network; fewer are quicker.
        rounds: also print accuracy and cost after each step.
        plot: draw cost against coverage: .svg, .png or .pdf.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. Figures are of the questions drawn
            for review; a differing output that nobody judged counts as wrong. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        seed: seed of the random draws.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: the call is wrong, or the log lacks what it needs.

    >>> found = compare("demo", splits=2)
    >>> found.datasets[0].n
    244
    """
    opened = read_judged(
        LogAsked(log, where, matcher, models=models), ReviewOptions.of(reviews, label_rate), None, tell
    )
    if plot is not None:
        _check_plot(opened.tables, Path(plot))
    given = list(_given(policy))
    others = [[*given, *_others(one, fit=fit, networks=networks, steps=steps)] for one in opened.tables]
    found = tuple(
        comparing.compare(one, alpha=alpha, count=splits, seed=seed, others=more, reference=reference)
        for one, more in zip(opened.tables, others, strict=True)
    )
    result = ComparisonResult(alpha, splits, found, opened.tables, rounds)
    if plot is not None:
        result.plot(plot)
    return result


def _given(asked: PolicyAsked | Sequence[PolicyAsked] | None) -> Iterator[Given]:
    """Yield a row of the comparison for each policy named by --policy.

    Raises:
        UsageError: one is a policy directory or a configuration, which may have learned from these questions; or
            two of one kind are given.
    """
    several = [asked] if isinstance(asked, str | PathLike | Mapping) else asked or []
    kinds = set[str]()
    for one in several:
        found = given_policy(one)
        if found.held is not None or found.config is not None:
            raise UsageError(
                f"{one}: compare takes a policy by its settings, such as {{kind: threshold, keep: both}}. A policy "
                "directory may be fitted on these questions: evaluate it on others (cascade evaluate), or use --fit."
            )
        row = Given(found.bare, found.section.kind)
        if row.kind in kinds:
            raise UsageError(f"--policy gives two policies of kind {row.kind}; a table has one row for each kind.")
        kinds.add(row.kind)
        yield row


def _others(table: EpisodeTable, *, fit: bool, networks: bool, steps: int | None) -> list[Method]:
    """Return the methods that are compared only on request."""
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
    from cascade.evaluation.plots import check

    if len(tables) > 1:
        names = ", ".join(one.dataset for one in tables)
        raise UsageError(
            f"--plot draws one data set, and the log has {len(tables)}; choose one with --where dataset=NAME: {names}"
        )
    check(path, tables[0].dataset, cost_known=tables[0].cost_known)


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values. Costs in USD per question."""
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
        "worst_segment": None if row.worst is None else dict(zip(("segment", "coverage"), row.worst, strict=True)),
        "against_reference": {
            "cost_usd": _interval(row.cost_difference),
            "coverage": _interval(row.coverage_difference),
            "matched_cost_usd": _interval(row.matched_difference),
        },
    }


def _interval(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else {**found._asdict(), "more_than_chance": found.excludes_zero}
