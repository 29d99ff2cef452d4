"""Against the verdicts that published logs hold of their own answers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cascade.matching import Matcher, get_matcher

DATA = Path(__file__).parents[4] / "shared" / "data"


def judged(file: str, dataset: str) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the answers of a log that its source judged: answer, accepted answers, the source's verdict."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = DATA / f"{file}.parquet"
    if not path.exists():
        pytest.skip(f"the published logs are not here: ../shared/data/{path.name}")
    names = [f"{who}_{what}" for who in ("base", "guide") for what in ("answer", "correct")]
    for row in parquet.read_table(path, columns=["dataset", "gold", *names]).to_pylist():
        if row["dataset"] != dataset or row["gold"] in {None, ""}:
            continue
        for who in ("base", "guide"):
            answer, correct = row[f"{who}_answer"], row[f"{who}_correct"]
            if answer is not None and correct is not None:
                yield answer, [row["gold"]], bool(correct)


def agreement(matcher: Matcher, file: str, dataset: str) -> tuple[int, int, int, int]:
    """Return how many verdicts there are, how many agree, and how many more we call right and unknown."""
    known: dict[tuple[str, str], bool | None] = {}
    total = agree = more = unknown = 0
    for answer, gold, correct in judged(file, dataset):
        key = (answer, gold[0])
        if key not in known:
            known[key] = matcher.matches(answer, gold)
        total += 1
        agree += known[key] is correct
        more += known[key] is True and not correct
        unknown += known[key] is None
    return total, agree, more, unknown


def test_every_verdict_of_the_source_is_ours() -> None:
    wrong = [
        (name, file, dataset, total)
        for name, file, dataset, total in [
            ("label", "episodes_uala", "uala_mmlu", 1_140),
            ("label", "episodes_zell_mmlu", "zell_mmlu", 39_952),
            ("label", "episodes_mmlu_pro", "mmlu_pro", 141_331),
        ]
        if agreement(get_matcher(name), file, dataset) != (total, total, 0, 0)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("file", "dataset", "disputed", "more"),
    [
        ("episodes_zell_gsm8k", "zell_gsm8k", 18, 6),  # six rows whose answer is the accepted one, to the letter
        ("episodes_single_round", "zeroeval_gsm", 13, 12),
        ("episodes_single_round", "zeroeval_math_l5", 27, 0),
    ],
)
def test_numbers_differ_only_where_the_source_is_in_doubt(file: str, dataset: str, disputed: int, more: int) -> None:
    total, agree, ours, unknown = agreement(get_matcher("number"), file, dataset)
    assert total > 5_000
    assert total - agree <= disputed
    assert ours <= more
    assert unknown == 0


@pytest.mark.long
@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
def test_formulas_differ_only_where_the_source_is_in_doubt() -> None:
    total, agree, ours, unknown = agreement(get_matcher("math"), "episodes_single_round", "zeroeval_math_l5")
    assert total > 5_000
    assert total - agree <= 30
    assert ours == 0
    assert unknown <= 2
