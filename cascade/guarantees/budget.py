"""`budget`: the mean cost of a question is at most the budget; coverage is as high as the budget allows."""

from __future__ import annotations

import math

from cascade.conformal.risk import calibrate_budget, cost_levels
from cascade.guarantees.base import Guarantee, many_questions
from cascade.guarantees.kept_answers import KeptAnswers
from cascade.guarantees.questions import Found, Path, Scored, everywhere
from cascade.money import dollars
from cascade.types import Certificate


class Budget(KeptAnswers):
    """Conformal risk control keeps the mean cost within the budget; policies are compared by their misses."""

    name = "budget"
    speaks_of = "money"
    event = None
    worst = "cost"
    by_segment = False

    def calibrate(self, sample: Scored, guarantee: Guarantee, path: Path | None) -> list[Found]:
        """Return the lowest threshold whose mean cost stays within the budget."""
        del path
        budget, most = guarantee.budget_nano_usd, guarantee.most_nano_usd
        assert budget is not None  # noqa: S101 - `Guarantee` has checked both
        assert most is not None  # noqa: S101
        table, n = sample.table, sample.table.n
        costs = cost_levels(table.arrays, sample.levels, most, cost_known=table.cost_known)
        result = calibrate_budget(costs, budget, most, delta=guarantee.delta)
        if result.certified:
            return [Found(None, everywhere(n), n, result.kappa)]
        each = f"{result.total_nano_usd / n / 1e9:.6g} USD each at the cheapest threshold"
        said = f"{n} calibration questions cost {each}"
        return [Found(None, everywhere(n), n, math.nan, needed_n=result.needed_n, refused=said)]

    def describe(self, certificate: Certificate) -> str:
        """Return the promise in a sentence."""
        most = dollars(certificate.budget_nano_usd)
        return f"On average over {many_questions(certificate)}, a question costs at most {most}."
