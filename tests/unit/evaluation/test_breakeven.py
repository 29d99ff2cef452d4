"""When judging pays: totals, prices read out of the log itself, and the words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from cascade.episodes.schema import COLUMNS
from cascade.evaluation.breakeven import BreakEven, break_even, break_evens

Row = dict[str, Any]
INPUT, OUTPUT = 150, 600  # nano-USD a token: $0.15 and $0.60 per million


def break_even_of(rows: Iterable[Mapping[str, Any]]) -> BreakEven | None:
    """Return the break-even of the one data set of these rows."""
    return next(iter(break_evens(rows).values()), None)


def call(episode: str, purpose: str, tokens: tuple[int, int], **columns: Any) -> Row:
    blank: Row = dict.fromkeys(COLUMNS)
    given = {"episode_id": episode, "step": 1, "signals": {"p_yes": 0.5, "replay": {"purpose": purpose}}}
    cost = tokens[0] * INPUT + tokens[1] * OUTPUT
    counted = {"input_tokens": tokens[0], "output_tokens": tokens[1], "cost_nano_usd": cost}
    return blank | given | counted | columns


def question(episode: str, rng: np.random.Generator) -> list[Row]:
    """Return a question's rows: the base at a tenth of the price, the verdict, the guide by itself."""
    base, judge, alone = ((int(rng.integers(50, 400)), int(rng.integers(1, 80))) for _ in range(3))
    return [
        call(episode, "answer", base, cost_nano_usd=(base[0] * INPUT + base[1] * OUTPUT) // 10),
        call(episode, "judge", judge),
        call(episode, "answer", alone, walk="guide only"),
    ]


def log(n: int = 30, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [row for k in range(n) for row in question(f"q{k}", rng)]


def of(rows: list[Row]) -> BreakEven:
    found = break_even_of(rows)
    assert found is not None
    return found


def test_the_totals_are_the_means_of_the_log() -> None:
    rows = log()
    found = of(rows)
    for got, chosen in (
        (found.base_usd, rows[::3]),
        (found.judging_usd, rows[1::3]),
        (found.outright_usd, rows[2::3]),
    ):
        assert got == Decimal(sum(row["cost_nano_usd"] for row in chosen)) / 10**9 / 30
    assert found.guide_tokens == sum(row["output_tokens"] for row in rows[2::3]) / 30


@pytest.mark.parametrize("seed", range(5))
def test_prices_are_recovered_from_token_counts(seed: int) -> None:
    """The two costs meet where the guide's own answers, at the log's price of a token, would cost as much as judging."""
    rows = log(seed=seed)
    found = of(rows)
    assert found.guide_tokens_needed is not None
    reading = sum(row["input_tokens"] for row in rows[2::3]) / 30 * INPUT
    judged = float(found.base_usd + found.judging_usd) * 1e9
    wanted = (judged - reading) / OUTPUT
    assert found.guide_tokens_needed == pytest.approx(max(0.0, wanted), rel=1e-6, abs=1e-6)


def test_with_cached_tokens_there_is_no_one_price_and_no_length() -> None:
    rows = log()
    for row in rows[2::6]:
        row["cached_input_tokens"] = row["input_tokens"]
        row["cost_nano_usd"] = row["input_tokens"] * INPUT // 10 + row["output_tokens"] * OUTPUT
    found = of(rows)
    assert found.guide_tokens_needed is None
    assert "tokens long" not in found.describe()
    assert "however short" not in found.describe()


def test_calls_of_one_length_do_not_tell_the_price() -> None:
    rows = [call("q", "answer", (10, 2)), call("q", "judge", (100, 10)), call("q", "answer", (100, 10))]
    rows[2]["walk"] = "guide only"
    assert of(rows).guide_tokens_needed is None


def test_costs_that_fall_with_the_tokens_tell_no_price() -> None:
    rows = log()
    for row in rows:
        row["cost_nano_usd"] = 9_000 * row["input_tokens"] - row["output_tokens"]
    assert of(rows).guide_tokens_needed is None


def test_all_calls_of_a_walk_and_of_a_verdict_are_added_up() -> None:
    rows = log(3)
    more = [rows[1] | {"episode_id": "q0"}, rows[2] | {"episode_id": "q0"}]
    one, other = of(rows), of([*rows, *more])
    assert other.judging_usd == one.judging_usd + Decimal(rows[1]["cost_nano_usd"]) / 10**9 / 3
    assert other.outright_usd == one.outright_usd + Decimal(rows[2]["cost_nano_usd"]) / 10**9 / 3
    assert other.guide_tokens == pytest.approx(one.guide_tokens + rows[2]["output_tokens"] / 3)


def test_only_questions_with_both_and_only_the_first_step_count() -> None:
    rows = log(5)
    noise = [call("q0", "judge", (9, 9), step=2), call("x", "answer", (9, 9)), call("q0", "decide", (9, 9))]
    lonely = [call("y", "answer", (9, 9), walk="guide only"), call("q1", "judge", (9, 9), walk="LLM-exit, guide")]
    assert (of([*rows, *noise, *lonely]).judging_usd, of([*rows, *noise, *lonely]).outright_usd) == (
        of(rows).judging_usd,
        of(rows).outright_usd,
    )


@pytest.mark.parametrize("missing", ["cost_nano_usd", "input_tokens", "output_tokens"])
def test_what_is_not_known_gives_no_break_even(missing: str) -> None:
    rows = log(5)
    rows[4][missing] = None
    assert break_even_of(rows) is None


def test_a_log_without_verdicts_or_without_the_guide_alone_has_none() -> None:
    rows = log(5)
    assert break_even_of([row for k, row in enumerate(rows) if k % 3 != 1]) is None
    assert break_even_of([row for k, row in enumerate(rows) if k % 3 != 2]) is None
    assert break_even_of([]) is None
    assert break_even_of([row | {"signals": None} for row in rows]) is None


# --- the words ---


def test_dear_judging_saves_nothing() -> None:
    found = break_even(100, 900, 500, guide_tokens=20, count=1, per_token=10.0)
    assert found.share_needed is None
    assert found.guide_tokens_needed == pytest.approx(70)
    assert found.describe() == (
        "Judging costs MORE than asking the guide outright: one answer of the base and its verdict cost $0.000001, the "
        "guide's own answer $0.000000, so on answers this short no threshold can be cheaper than guide only. The two "
        "meet where the guide's own answers are 70 tokens long; here they are 20."
    )


def test_cheap_judging_saves_from_a_share_on() -> None:
    found = break_even(100_000, 200_000, 1_000_000, guide_tokens=1_000, count=10, per_token=90.0)
    assert found.share_needed == pytest.approx(0.3)
    assert "less than asking" in found.describe()
    assert "once more than 30% of the base's answers are kept" in found.describe()


def test_judging_that_is_cheaper_than_reading_the_question_needs_no_length() -> None:
    found = break_even(1, 1, 1_000_000, guide_tokens=10, count=1, per_token=5.0)
    assert found.guide_tokens_needed == 0.0
    assert found.describe().endswith(
        "That holds however short the guide's own answers are: reading the question alone costs it more."
    )
    assert "0 tokens long" not in found.describe()


def test_equal_costs_are_no_saving() -> None:
    found = break_even(400, 600, 1_000, guide_tokens=50, count=1, per_token=2.0)
    assert (found.share_needed, found.guide_tokens_needed) == (None, 50.0)


@pytest.mark.parametrize("price", [None, 0.0])
def test_without_a_price_of_a_token_there_is_no_length(price: float | None) -> None:
    assert break_even(1, 1, 9, guide_tokens=5, count=1, per_token=price).guide_tokens_needed is None
