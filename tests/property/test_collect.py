"""Random sets, stops, failures and caps: nothing is paid twice, nothing paid is lost, and the log does not care."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.collection import Collected, CollectSettings, collect, journal_of
from cascade.collection.collector import BASELINES
from cascade.config import CascadeConfig, load
from cascade.episodes.journal import Journal
from cascade.errors import AuthenticationError, BudgetExceededError
from cascade.logs.files import read_rows
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import request_digest
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Question, Request
from property.examples import times

MODELS = {
    "base": {"model": "small", "price": {"input": 0.1, "output": 0.4}, "max_tokens": 16},
    "guide": {"model": "large", "price": {"input": 1, "output": 4}, "max_tokens": 16},
}
WORDS = ("Danube", "Rhine", "Inn")


class CrashError(BaseException):
    """The process is gone."""


class Models:
    """Two models whose answers follow from what they are asked; every answered call is counted for good."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.left = 10**9
        self.failing: set[str] = set()
        self._lock = threading.Lock()
        self.provider = FakeProvider(self._answer, keep=0)

    def _answer(self, request: Request) -> Any:
        digest = request_digest(request)
        if request.question.text in self.failing:
            return AuthenticationError("no key")
        with self._lock:
            if not self.left:
                raise CrashError
            self.left -= 1
            self.paid[digest] += 1
        place = int(digest, 16)
        word = WORDS[place % len(WORDS)]
        text = {
            "judge": ("Yes", f"No, {word}", "Hm")[place // 7 % 3],
            "decide": ("1", "2", "3", "?")[place // 7 % 4],
            "exit": ("EXIT", "CONTINUE", "?")[place // 7 % 3],
        }.get(request.purpose, (f"Answer: {word}", f"Reasoning: so.\nAnswer: {word}", ":")[place // 7 % 3])
        return reply(text, input_tokens=sum(len(message.content) for message in request.messages) // 4)


def questions(numbers: Sequence[int]) -> list[AskedQuestion]:
    return [AskedQuestion(f"q{place}", Question(f"river {n}?"), ("Inn",)) for place, n in enumerate(numbers)]


CONFIGS = st.builds(
    lambda rounds, samples: load(
        {
            "models": MODELS,
            "provider": "fake",
            "strategy": {"rounds": rounds, "samples": samples},
        }
    ),
    st.integers(1, 3),
    st.integers(1, 3),
)
NUMBERS = st.lists(st.integers(0, 5), min_size=1, max_size=6)  # some twice: two equal questions of one set
WALK_SETS = st.lists(st.sampled_from(BASELINES), unique=True, max_size=3)
CONCURRENCY = st.sampled_from([1, 2, 8])


def run(
    log: Path, config: CascadeConfig, numbers: Sequence[int], walks: Sequence[str], models: Models, **options: Any
) -> Collected:
    settings = CollectSettings(**{"resume": True, "concurrency": 1, "baselines": walks, "matcher": "exact", **options})
    return collect(config, questions(numbers), log, settings, providers={"fake": models.provider})


def timeless(log: Path) -> list[dict[str, Any]]:
    """Return a log without what the clock says."""
    return [{**row, "created_at": None, "latency_ms": None} for row in read_rows(log)]


@pytest.fixture(scope="module")
def new_log() -> Iterator[Callable[[], Path]]:
    with tempfile.TemporaryDirectory() as folder:
        count = iter(range(10**6))
        yield lambda: Path(folder) / f"log{next(count)}.jsonl"


@times(0.5)
@given(CONFIGS, NUMBERS, WALK_SETS, CONCURRENCY, st.lists(st.integers(0, 12), max_size=4))
def test_stops_change_neither_what_is_paid_nor_the_log(
    new_log,
    config,
    numbers,
    walks,
    concurrency,
    stops,
):
    whole, log = new_log(), new_log()
    straight, models = Models(), Models()
    run(whole, config, numbers, walks, straight)
    for calls in stops:
        models.left = calls
        try:
            run(log, config, numbers, walks, models, concurrency=concurrency)
        except CrashError:
            assert not log.exists()
    models.left = 10**9
    done = run(log, config, numbers, walks, models, concurrency=concurrency)
    assert (done.failures, done.stopped, done.unused_calls) == ((), None, 0)
    assert timeless(log) == timeless(whole)
    assert models.paid == straight.paid
    assert set(models.paid.values()) <= {1}
    assert done.progress.spent_nano_usd == sum(
        {row["signals"]["replay"]["request"]: row["cost_nano_usd"] for row in read_rows(log)}.values()
    )
    assert not journal_of(log).exists()


@times(0.4)
@given(CONFIGS, st.lists(NUMBERS, min_size=2, max_size=4), WALK_SETS, st.sets(st.integers(0, 5), max_size=3))
def test_whatever_sets_follow_each_other_no_call_is_paid_twice(new_log, config, sets, walks, failing):
    log, models = new_log(), Models()
    models.failing = {f"river {n}?" for n in failing}
    for numbers in sets:
        done = run(log, config, numbers, walks, models, concurrency=4)
        failed = {name for name, _ in done.failures}
        assert failed == {f"q{place}" for place, n in enumerate(numbers) if n in failing}
        if done.rows:
            wanted = [f"q{place}" for place, n in enumerate(numbers) if n not in failing]
            assert list(dict.fromkeys(row["episode_id"] for row in read_rows(log))) == wanted
    models.failing = set()
    everything = sorted({n for numbers in sets for n in numbers})
    run(log, config, everything, walks, models)
    assert set(models.paid.values()) <= {1}
    fresh = new_log()
    run(fresh, config, everything, walks, Models())
    assert timeless(log) == timeless(fresh)


@times(0.4)
@given(CONFIGS, NUMBERS, WALK_SETS, CONCURRENCY, st.lists(st.floats(0.05, 1.5), min_size=1, max_size=3))
def test_no_cap_is_passed_over_all_runs_together(
    new_log,
    config,
    numbers,
    walks,
    concurrency,
    shares,
):
    whole, log, models = new_log(), new_log(), Models()
    total = run(whole, config, numbers, walks, Models()).progress.spent_nano_usd
    for share in sorted(shares):
        cap = max(1, int(total * share))
        before = models.paid.total()
        done = run(log, config, numbers, walks, models, concurrency=concurrency, max_cost_usd=cap / 1e9)
        assert done.progress.spent_nano_usd <= cap
        assert isinstance(done.stopped, BudgetExceededError | None)
        if done.stopped is None:
            assert done.progress.spent_nano_usd == total
        elif journal_of(log).exists():
            with Journal(journal_of(log)) as journal:
                assert journal.spent_nano_usd == done.progress.spent_nano_usd
                assert len([*journal]) == models.paid.total() >= before
    done = run(log, config, numbers, walks, models, max_cost_usd=100 * total / 1e9)
    assert (done.stopped, models.paid.total(), set(models.paid.values())) == (None, len(models.paid), {1})
    assert timeless(log) == timeless(whole)
