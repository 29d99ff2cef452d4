"""Judgements in PostgreSQL: what one replica writes every other one reads, in the form of the file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from patience import at_once
from stores import postgres_url

from cascade.errors import UsageError
from cascade.review.reviews import Judgement, ReviewFile, Terms
from cascade.review.storage import ReviewTable, opened, place_for, reviews_at

TERMS = Terms("regret", "json")


def one(number: int, reviewer: str = "ann") -> Judgement:
    return Judgement(f"q{number}", "a", "b", "output", "both_bad", False, False, reviewer, "now \ud800 \x00")


def test_replicas_share_judgements_and_the_key(tmp_path: Path) -> None:
    with postgres_url() as url:
        assert place_for(url, ".reviews.jsonl") == url
        assert reviews_at(url) is None
        with opened(url, TERMS) as first, opened(url, TERMS) as other:
            assert isinstance(other, ReviewTable)
            assert first.reviews.terms == other.reviews.terms
            assert first.reviews.terms.key
            first.add(one(1))
            other.add(one(1)._replace(verdict="skipped"))
        held = reviews_at(url)
        assert held is not None
        assert [each.verdict for each in held.judgements] == ["skipped"]  # the later one of the same reviewer
        assert held.judgements[0].at == one(1).at
        with pytest.raises(UsageError, match="begun with ask regret, not preference"):
            opened(url, Terms("preference", "json"))
    path = tmp_path / "reviews.jsonl"
    assert reviews_at(path) is None
    with opened(path, TERMS) as file:
        assert isinstance(file, ReviewFile)
    assert reviews_at(path) is not None


def test_no_judgement_is_lost_between_replicas() -> None:
    with postgres_url() as url:
        with opened(url, TERMS):
            pass

        def write(reviewer: str) -> None:
            with opened(url, TERMS) as held:
                for number in range(10):
                    held.add(one(number, reviewer))

        at_once(*(partial(write, name) for name in ("ann", "bob", "cy")))
        found = reviews_at(url)
        assert found is not None
        assert len(found.judgements) == 30
