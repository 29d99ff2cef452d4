"""`onboard`: estimates from a few of a log's questions what a new model would save if asked before the reference."""

from __future__ import annotations

import math
import random
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cascade.api.collecting import collect
from cascade.api.logs import LogAsked, Where
from cascade.api.output import Result, Tell, warn
from cascade.api.tables_of_logs import read_log
from cascade.calibration.scores import play, reference_cost, sample_of
from cascade.checks import did_you_mean
from cascade.config import CascadeConfig, load
from cascade.conformal.arrays import Floats, Ints
from cascade.conformal.binomial import lower_bound, upper_bound
from cascade.episodes.files import read_rows, write_rows
from cascade.episodes.questions import AskedQuestion
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import Threshold
from cascade.strategies import config as strategies
from cascade.training.fitting import fit_policy
from cascade.types import Question

SIZES = (50, 100, 200)
_Row: TypeAlias = dict[str, Any]


class Bought(NamedTuple):
    """The figures after a number of probes.

    Attributes:
        probes: how many.
        right, low, high: the share of probes that the new model answers correctly, with an exact 95 % interval.
        expected: that share estimated for all questions of the log, with the probes weighted by how many of the old
            models were right.
        expected_error: the standard error of `expected`.
        cost: the cost of the new model before the reference, at the certified threshold and on these probes, as a share
            of the reference's cost; None if a price is unknown, 1 if nothing is certified.
        method: the method of the policy; None if nothing is certified.
        refused: why nothing is certified.
    """

    probes: int
    right: float
    low: float
    high: float
    expected: float
    expected_error: float
    cost: float | None
    method: str | None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class OnboardingResult(Result):
    """The figures of a new model on its probes.

    Attributes:
        model, reference: the new model, and the one that answers today.
        alpha, delta: the promise: regret of at most alpha, except in a share delta of draws of the probes.
        output: the log of the probes, both models' answers: `cascade fit` reads it.
        bought: the figures after the first 50, 100 and 200 probes, and after all of them.
    """

    model: str
    reference: str
    alpha: float
    delta: float
    output: Path
    bought: tuple[Bought, ...]

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - its table is narrow
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        yield Text(f"{self.model} before {self.reference}: regret at most {self.alpha:g}, delta {self.delta:g}")
        table = Table("probes", "right", "95 %", "expected on the log", "cost / reference", "decides")
        for one in self.bought:
            cost = "?" if one.cost is None else f"{one.cost:.3f}"
            expected = f"{one.expected:.3f} ± {one.expected_error:.3f}"
            interval = f"{one.low:.3f} to {one.high:.3f}"
            table.add_row(
                str(one.probes), f"{one.right:.3f}", interval, expected, cost, one.method or "nothing certified"
            )
        yield table
        if (refused := self.bought[-1].refused) is not None:
            yield Text(refused)
        yield Text(f"Both models' answers: {self.output}. To serve it:")
        asked = f"--promise regret --risk {self.alpha:g} --confidence {1 - self.delta:g}"
        yield Text(f"cascade fit {shlex.quote(str(self.output))} {asked} -o policy")

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `onboard --json`."""
        head = {"model": self.model, "reference": self.reference, "alpha": self.alpha, "delta": self.delta}
        return {**head, "output": str(self.output), "bought": [one._asdict() for one in self.bought]}


def onboard(
    model: str,
    log: str | Path,
    output: str | Path,
    *,
    probes: int = 100,
    config: str | Path | CascadeConfig = "cascade.yaml",
    alpha: float = 0.05,
    delta: float = 0.1,
    where: Where = None,
    matcher: str | None = None,
    concurrency: int = 8,
    seed: int = 0,
    tell: Tell = warn,
) -> OnboardingResult:
    """Ask a new model some of a log's questions, and estimate what it would save if asked before the log's reference.

    The reference's answers are taken from the log, not paid again. The certificate uses only the probes; the old
    models' answers are used only to extend the estimate to the whole log (`Bought.expected`). A table shows the figures
    after 50, 100 and 200 probes.

    Args:
        model: the new model: its key or its name under models in the configuration.
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        output: the log of the probes: .jsonl or .parquet. Questions recorded there are not asked again.
        probes: how many of the log's questions are asked.
        config: the configuration.
        alpha: the most regret that the certificate allows.
        delta: the share of draws of the probes for which the certificate may not hold.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        concurrency: how many questions run at once.
        seed: seed of the random draws. More probes with the same seed ask the same questions and some more.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: the model is not configured, or is the reference, or the log lacks gold answers or the reference's.
        ProviderError: the new model failed.
    """
    settings = config if isinstance(config, CascadeConfig) else load(Path(config))
    place = _place(settings, model)
    opened = read_log(LogAsked(str(log), where, matcher), tell)
    if len(opened.tables) > 1:
        raise UsageError(f"{log} holds {len(opened.tables)} data sets; choose one: --where dataset=NAME.")
    old, last = opened.tables[0], _reference(opened.rows())
    asked = _asked(last, probes, seed)
    name, reference = settings.models[place].model, str(last[asked[0].id]["model"])
    if name == reference:
        raise UsageError(f"{name} is the log's reference already: onboard a model that is to answer before it.")
    told = _answers(settings, place, asked, Path(output), matcher, concurrency, tell)
    rows = [
        row for one in asked if one.id in told for row in _pair(told[one.id], last[one.id], f"{name} > {reference}")
    ]
    write_rows(Path(output), rows)
    sizes = sorted({size for size in (*SIZES, len(told)) if size <= len(told)})
    bought = tuple([_bought(rows[: 2 * size], old, Guarantee("regret", alpha, delta), seed) for size in sizes])
    return OnboardingResult(name, reference, alpha, delta, Path(output), bought)


def _place(settings: CascadeConfig, model: str) -> str:
    for place, entry in settings.models.items():
        if model in {place, entry.model}:
            return place
    known = [*settings.models, *(entry.model for entry in settings.models.values())]
    raise UsageError(f"No model is called {model!r} under models{did_you_mean(model, known)}; give it an entry there.")


def _reference(rows: Iterable[Mapping[str, Any]]) -> dict[str, _Row]:
    """Return the reference's answer to each question: from the walk of the guide alone, or a ladder's last step."""
    steps, alone = dict[str, _Row](), dict[str, _Row]()
    for row in rows:
        if row["candidate"] is None or not row["gold"]:
            continue
        name = row["episode_id"]
        if row["walk"] == GUIDE_ONLY:
            alone[name] = dict(row)
        elif row["walk"] is None and row["step"] >= steps.get(name, row)["step"]:
            steps[name] = dict(row)
    found = alone or steps
    if not found:
        raise UsageError("The log has no question with a gold answer and the reference's answer beside it.")
    return found


def _asked(last: Mapping[str, _Row], probes: int, seed: int) -> list[AskedQuestion]:
    """Return the questions of the probes, in an order that the seed draws."""
    order = sorted(last)
    random.Random(seed).shuffle(order)
    found = []
    for name in order[:probes]:
        row = last[name]
        question = Question(row["question"], row["context"], segment=row["segment"])
        found.append(AskedQuestion(name, question, tuple(row["gold"]), row["group"], row["split"]))
    return found


def _answers(
    settings: CascadeConfig,
    place: str,
    asked: Sequence[AskedQuestion],
    output: Path,
    matcher: str | None,
    concurrency: int,
    tell: Tell,
) -> dict[str, list[_Row]]:
    """Ask the new model; return the rows of each question."""
    alone = strategies.WRITTEN.read({"kind": "ladder", "models": [place], "prompts": settings.strategy.prompts})
    asking = settings.model_copy(update={"strategy": alone})
    record = output.with_name(f"asked-{output.name}")
    done = collect(
        asked, record, config=asking, resume=True, concurrency=concurrency, walks=(), matcher=matcher, tell=tell
    )
    if done.error is not None:
        raise done.error
    found: dict[str, list[_Row]] = {}
    for row in read_rows(record):
        found.setdefault(row["episode_id"], []).append(dict(row))
    return found


def _pair(new: Sequence[_Row], reference: _Row, dataset: str) -> Iterator[_Row]:
    """Yield the rows of a question as a ladder of two models: the new model, then the reference."""
    same = {"horizon": 2, "walk": None, "dataset": dataset, "parents": None, "kept": None}
    for step, row in [*((1, row) for row in new), (2, reference)]:
        yield {**row, **same, "step": step, "source": row["model"]}


def _bought(rows: Sequence[_Row], old: EpisodeTable, asked: Guarantee, seed: int) -> Bought:
    """Return the figures of the probes."""
    (table,) = tables_from_rows(rows)
    right = table.arrays.correct[:, 0, 0].astype(np.float64)
    n, count = table.n, int(right.sum())
    low, high = lower_bound(count, n, 0.025), upper_bound(count, n, 0.025)
    expected, error = weighted(right, strata(table, old), strata(old, old))
    said = (n, count / n, low, high, expected, error)
    try:
        fitted = fit_policy([table], asked, seed=seed)
    except NotCertifiedError as refused:
        return Bought(*said, 1.0, None, str(refused))
    (held,) = fitted.artifact.certificates
    sample = sample_of(table, fitted.policy)
    played = play(sample.table, sample.scores, Threshold(held.kappa, held.keeps_everything, held.abstain_below))
    paid = reference_cost(table)
    cost = None if not paid else float(played.cost.mean()) / paid
    method = None if fitted.refused is not None else fitted.policy.method
    return Bought(*said, cost, method, None if fitted.refused is None else str(fitted.refused))


def strata(table: EpisodeTable, old: EpisodeTable) -> Ints:
    """Return how many of the old models before the last had each question right, int (n,); −1 for other questions."""
    counts = dict(zip(old.ids, old.arrays.correct[:, :-1, 0].sum(axis=1).tolist(), strict=True))
    return np.array([counts.get(name, -1) for name in table.ids], dtype=np.int64)


def weighted(right: Floats, probed: Ints, whole: Ints) -> tuple[float, float]:
    """Estimate a mean over the whole log from the probes of each stratum; return it with its standard error.

    A stratum with fewer than two probes counts with the mean of all, at the error of all.

    Args:
        right: for each probe whether it was right, 0..1, (n,).
        probed: the strata of the probes, (n,).
        whole: those of all questions, (N,).

    >>> mean, error = weighted(np.array([1.0, 1.0, 0.0, 0.0]), np.array([1, 1, 0, 0]), np.array([1, 1, 1, 0]))
    >>> mean, error
    (0.75, 0.0)
    """
    mean, spread, variance = 0.0, float(right.var(ddof=1)) if right.size > 1 else 0.25, 0.0
    for stratum in np.unique(whole):
        share, here = float((whole == stratum).mean()), right[probed == stratum]
        few = here.size < 2
        mean += share * float(right.mean() if few else here.mean())
        variance += share**2 * (spread / right.size if few else float(here.var(ddof=1)) / here.size)
    return mean, math.sqrt(variance)
