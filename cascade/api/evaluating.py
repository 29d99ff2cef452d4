"""`evaluate`: the exact figures of one policy on a log, with intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.logs import Files, LogAsked, LogGiven, Models, ReviewOptions, Where
from cascade.api.output import Result, Tell, plain_text, warn
from cascade.api.policies import PolicyAsked, given_policy
from cascade.api.tables import evaluation_notes, evaluation_table
from cascade.api.tables_of_logs import read_judged, tables_for
from cascade.evaluation import evaluate as evaluating
from cascade.evaluation.evaluate import Evaluation


@dataclass(frozen=True, slots=True)
class EvaluationResult(Result):
    """The figures of a policy on each data set of a log.

    Attributes:
        policy: the name by which the policy was given.
        datasets: an evaluation for each data set of the log.
    """

    policy: str
    datasets: tuple[Evaluation, ...]

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - its table is narrow
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        for one in self.datasets:
            yield evaluation_table(one)
            yield from (Text(plain_text(said), style="bold yellow") for said in evaluation_notes(one))
            yield ""

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `evaluate --json`. Costs in USD per question."""
        return {"policy": self.policy, "datasets": [evaluation_document(one, self.policy) for one in self.datasets]}


def evaluate(
    log: LogGiven,
    policy: PolicyAsked,
    *,
    where: Where = None,
    matcher: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    seed: int = 0,
    tell: Tell = warn,
) -> EvaluationResult:
    """Evaluate one policy exactly on a log, with confidence intervals.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        policy: a policy directory, a policy's settings as in cascade.yaml, or a configuration.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. Figures are of the questions drawn
            for review; a differing output that nobody judged counts as wrong. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        seed: seed of the random draws.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or policy.
        ConfigError: the policy cannot be read.

    >>> found = evaluate("demo", {"kind": "threshold", "threshold": 0.3})
    >>> found.datasets[0].n
    244
    """
    given = given_policy(policy)
    deciding = given.deciding
    held = given.artifact
    kind = held.certificates[0].kind if held is not None and held.certificates else None
    opened = read_judged(
        LogAsked(log, where, matcher, models=models), ReviewOptions.of(reviews, label_rate), kind, tell
    )
    tables = tables_for(opened, kind, None if matcher else held)
    found = tuple(evaluating.evaluate(table, deciding, artifact=given.artifact, seed=seed) for table in tables)
    return EvaluationResult(policy if isinstance(policy, str) else json.dumps(policy), found)


def evaluation_document(found: Evaluation, policy: str) -> dict[str, Any]:
    """Return an evaluation as plain values, in the form of a comparison of one row. Costs in USD per question.

    Fields that only a comparison has are null: nothing is fitted, and there are no splits for a standard deviation.
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
