"""What `cascade review` says of reviews that were made, and of those that are to be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from cascade.api.output import spelled
from cascade.api.page import table
from cascade.cli.output import console, print_json
from cascade.review.plan import Plan
from cascade.review.report import agreements, tallies
from cascade.review.reviews import Reviews


def say_report(reviews: Reviews, *, as_json: bool) -> None:
    """Print what reviewers said and how far they agree."""
    each, both = tallies(reviews), agreements(reviews)
    if as_json:
        people = {"reviewers": [one._asdict() for one in each], "agreement": [one._asdict() for one in both]}
        print_json({"ask": reviews.terms.ask, "rate": reviews.terms.rate, **people})
        return
    out = console()
    if not each:
        out.print("Nothing was judged yet.")
        return
    verdicts = {"output": "cascade better", "reference": "reference better", "equal": "equal", "both_bad": "both bad"}
    rows = [
        [
            *(one.reviewer, one.judged, one.skipped, *(one.verdicts[name] for name in verdicts), one.lost),
            f"{one.first_better} / {one.second_better}",
        ]
        for one in each
    ]
    out.print(_table(["reviewer", "judged", "skipped", *verdicts.values(), "lost", "first / second better"], rows))
    if both:
        heads = ["reviewers", "pairs of both", "same verdict", "Cohen's κ", "same on loss", "Cohen's κ"]
        pairs = [
            [
                *(" and ".join(one.reviewers), one.pairs),
                *(one.equal, _kappa(one.kappa), one.equal_losses, _kappa(one.kappa_losses)),
            ]
            for one in both
        ]
        out.print(_table(heads, pairs))


def say_plan(plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print how many judgements a certificate needs."""
    if as_json:
        print_json({"plans": [one._asdict() for one in plans]})
        return
    heads = ["label rate", "judge everything", "only what differs", "along the path", "may be lost", "requests needed"]
    rows = [
        [
            *(f"{one.rate:g}", one.requests, f"{one.differing:.0f}"),
            "needs --policy" if one.along_path is None else f"at most {one.along_path:.0f}",
            "nothing is proven" if one.most_lost is None else one.most_lost,
            one.least,
        ]
        for one in plans
    ]
    console().print(_table(heads, rows))


def _kappa(kappa: float | None) -> str:
    return "undefined" if kappa is None else f"{kappa:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    return table(heads, [[Text(spelled(str(cell))) for cell in row] for row in rows])
