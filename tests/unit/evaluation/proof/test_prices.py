"""What would be saved at other prices and without prompt caches, and how each segment fares."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.api.output import markdown
from cascade.api.prove_page import Cascade, cascade_document, page
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.compare import compare
from cascade.evaluation.proof.proving import Plan, Proof, prove
from cascade.guarantees.base import Guarantee
from cascade.money import PriceTable
from cascade.types import Usage
from unit.evaluation.plain import row
from unit.evaluation.proof.test_proving import shared

CHEAP, DEAR = "gpt-4o-mini", "gpt-4o"
N = 200
READ, WROTE = 2_000, 100


def cost(model: str, cached: int) -> int:
    price = PriceTable.bundled().price(model)
    assert price is not None
    found = price.cost_nano_usd(Usage(READ, WROTE, cached))
    assert found is not None
    return found


def rows(cached: int, *, odd_price: int = 0) -> list[dict[str, Any]]:
    """Return a log in which the cheap model is right and sure on every other question; hard ones are half of "b"."""
    found = []
    for q in range(N):
        sure = q % 2 == 0
        for step, model in ((1, CHEAP), (2, DEAR)):
            given: dict[str, Any] = {
                "horizon": 2,
                "model": model,
                "source": model,
                "input_tokens": READ,
                "output_tokens": WROTE,
                "cached_input_tokens": cached if step == 2 else 0,
                "cost_nano_usd": cost(model, cached if step == 2 else 0) + odd_price,
                "signals": {"reply_mean_logprob": None if step == 2 else -0.1 if sure else -2.0},
                "segment": "b" if q >= N // 2 else "a",
                "group": f"q{q}",
            }
            found.append(row(f"q{q}", step, correct=step == 2 or sure, answer=f"{sure or step}", **given))
    return found


def proof(log: list[dict[str, Any]]) -> Proof:
    (table,) = tables_from_rows(log)
    return prove(table, Guarantee("regret", 0.1, 0.1), shared, Plan(splits=3))


@pytest.fixture(scope="module")
def cached() -> Proof:
    return proof(rows(1_800))


def test_the_bill_is_made_out_anew(cached: Proof) -> None:
    """Half of the questions ask both models, half the cheap one alone."""
    cheap, dear, plain = cost(CHEAP, 0), cost(DEAR, 1_800), cost(DEAR, 0)
    share = 1 - (cached.policy.length - 1)  # of the test questions that stop at the cheap model
    wanted = {
        "cheaper": 1 - (cheap + (1 - share) * 0.7 * dear) / (0.7 * dear),
        "dearer": 1 - (cheap + (1 - share) * 1.3 * dear) / (1.3 * dear),
        "base cheaper": 1 - (0.7 * cheap + (1 - share) * dear) / dear,
        "base dearer": 1 - (1.3 * cheap + (1 - share) * dear) / dear,
        "no cache": 1 - (cheap + (1 - share) * plain) / plain,
        "cold": 1 - (cheap + (1 - share) * plain) / dear,
    }
    assert dict(cached.other_prices) == pytest.approx(wanted, abs=1e-4)
    assert cached.policy.saving is not None
    assert wanted["cold"] < cached.policy.saving.mean < wanted["no cache"]


@pytest.mark.parametrize(
    "log", [rows(0), rows(1_800, odd_price=1)], ids=["nothing cached", "a price of the user's own"]
)
def test_nothing_is_said_of_caches_that_are_not_known(log: list[dict[str, Any]]) -> None:
    assert [one.name for one in proof(log).other_prices] == ["cheaper", "dearer", "base cheaper", "base dearer"]


def test_the_worst_segment_stands_first() -> None:
    log = rows(0)
    for one in log:  # in "b" the cheap model is sure and wrong on one question in ten
        if one["segment"] == "b" and one["step"] == 1 and int(one["episode_id"][1:]) % 20 == 0:
            one["correct"], one["answer"] = False, "wrong"
    found = proof(log)
    assert [one.name for one in found.segments] == ["b", "a"]
    worst, best = found.segments
    assert worst.questions == best.questions == N // 2
    assert worst.broken > best.broken == 0.0
    assert (worst.broken + best.broken) / 2 == pytest.approx(found.policy.broken, abs=0.01)


def test_the_page_says_it(cached: Proof) -> None:
    found = Cascade(("log",), "log", (cached,))
    said = markdown(page(found, 130))
    assert "At other prices:" in said
    assert "Prompt caches, as logged, are in these figures." in said
    assert "| b" in said
    document = cascade_document(found)["proofs"][0]
    assert set(document["other_prices"]) == {"cheaper", "dearer", "base cheaper", "base dearer", "no cache", "cold"}
    assert [one["name"] for one in document["segments"]] == ["a", "b"]


def test_compare_says_what_each_row_saves_at_other_prices() -> None:
    (table,) = tables_from_rows(rows(1_800))
    found = compare(table, count=2)
    cheap, dear, plain = cost(CHEAP, 0), cost(DEAR, 1_800), cost(DEAR, 0)
    asked = {row.policy: row.mean.avg_length - 1 for row in found.rows}  # the share that asks the dear model
    row = next(one for one in found.rows if one.other_prices and 0 < asked[one.policy] < 1)
    share = asked[row.policy]
    assert dict(row.other_prices) == pytest.approx(
        {
            "cheaper": 1 - (cheap + share * 0.7 * dear) / (0.7 * dear),
            "dearer": 1 - (cheap + share * 1.3 * dear) / (1.3 * dear),
            "base cheaper": 1 - (0.7 * cheap + share * dear) / dear,
            "base dearer": 1 - (1.3 * cheap + share * dear) / dear,
            "no cache": 1 - (cheap + share * plain) / plain,
            "cold": 1 - (cheap + share * plain) / dear,
        },
        abs=1e-4,
    )
    assert not found.row(found.reference).other_prices  # it is what is saved against
