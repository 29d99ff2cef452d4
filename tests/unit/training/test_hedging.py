"""When to begin the reference's call early: the accounting, by hand; the best of all rules; and its file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade import fit
from cascade.api.fit_report import PolicyFit
from cascade.calibration.scores import _steps
from cascade.episodes.seconds import clocked, seconds_of
from cascade.errors import ConfigError, UsageError
from cascade.evaluation.logs import open_log
from cascade.policies.artifact import HEDGE_FILE, PolicyArtifact, write
from cascade.policies.base import History, Observation
from cascade.policies.estimators import Constant
from cascade.policies.features import FeatureSet
from cascade.policies.hedging import Hedge, HedgeRule, loads
from cascade.policies.reading import read
from cascade.policies.threshold import ThresholdPolicy
from cascade.strategies.base import NOTHING_BOUGHT
from cascade.training.hedging import NEVER, Walks, always, decided, figures, fit_hedge, held_out, played, walks_of
from cascade.types import Question

NOTHING = FeatureSet((), ("answer",))


def random_walks(draw: np.random.Generator, n: int, horizon: int, *, skips: bool) -> Walks:
    """Draw walks without any number to learn from."""
    depth = draw.integers(1, horizon + 1, n)
    paid = np.arange(horizon) < depth[:, None]
    if skips:
        paid &= draw.random((n, horizon)) < 0.7
        paid[:, -1] = depth == horizon
        paid[~paid.any(axis=1), -1] = True
    shape = (n, horizon)
    history = History(
        ("answer",),
        np.zeros((*shape, 1), dtype=np.int64),
        np.ones(n, dtype=np.bool_),
        np.full((*shape, 1), np.nan),
        {},
        {},
        np.full(shape, np.nan),
        np.full(shape, np.nan),
        np.full(n, horizon),
        np.ones(n, dtype=np.bool_),
    )
    money = draw.integers(1, 10_000_000, shape)
    return Walks(history, paid, draw.exponential(2.0, shape).round(3), money, np.arange(n))


def by_hand(walks: Walks, row: int, beside: int) -> tuple[float, int]:
    """Play one question, call after call, by a clock."""
    last = walks.paid.shape[1] - 1
    clock, spent, begun_at = 0.0, 0, None
    for column in range(last + 1):
        if not walks.paid[row, column]:
            continue
        if column == beside:
            begun_at = clock
        spent += int(walks.money[row, column])
        if column < last or begun_at is None:
            clock += walks.seconds[row, column]
        else:
            clock = max(clock, begun_at + walks.seconds[row, column])
    if begun_at is not None and not walks.paid[row, last]:
        spent += int(walks.money[row, last])
    return clock, spent


@pytest.mark.parametrize("skips", [False, True])
def test_time_and_money_are_those_of_a_play_by_hand(skips: bool) -> None:
    draw = np.random.default_rng(7)
    for _ in range(200):
        walks = random_walks(draw, 6, int(draw.integers(2, 6)), skips=skips)
        open_to = [[NEVER, *np.flatnonzero(row[:-1])] for row in walks.paid]
        beside = np.array([draw.choice(columns) for columns in open_to])
        found = played(walks, beside)
        wanted = [by_hand(walks, row, at) for row, at in enumerate(beside.tolist())]
        assert found.money.tolist() == [money for _, money in wanted]
        assert found.seconds == pytest.approx([seconds for seconds, _ in wanted], abs=1e-9)
        assert found.begun.tolist() == (beside != NEVER).tolist()


@pytest.mark.parametrize("skips", [False, True])
def test_without_numbers_the_rules_are_the_best_of_all(skips: bool) -> None:
    draw, price = np.random.default_rng(11), 0.001
    for _ in range(60):
        walks = random_walks(draw, 20, int(draw.integers(2, 5)), skips=skips)
        states = list(walks.states())
        if len(states) > 7:
            continue

        def total(begins: tuple[bool, ...], walks: Walks = walks, states: list[Any] = states) -> float:
            rules = [
                HedgeRule(state, NOTHING, Constant(1.0 if one else -1.0))
                for state, one in zip(states, begins, strict=True)
            ]
            took = played(walks, decided(Hedge(walks.paid.shape[1], ("answer",), price, tuple(rules)), walks))
            return float(took.money.sum() + price * 1e9 * took.seconds.sum())

        took = played(walks, decided(fit_hedge(walks, price), walks))
        ours = float(took.money.sum() + price * 1e9 * took.seconds.sum())
        best = min(total(begins) for begins in itertools.product([False, True], repeat=len(states)))
        assert ours == pytest.approx(best, rel=1e-9)


def demo(threshold: float = 0.2) -> tuple[Walks, Any, ThresholdPolicy]:
    """Return walks of a hand-set policy on the shipped log."""
    log, policy = open_log("demo-ladder"), ThresholdPolicy(threshold, when="reply_logprob")
    (table,) = log.tables
    walks = walks_of(table, clocked(table, seconds_of(log.rows())), policy, {None: threshold})
    assert walks is not None
    return walks, log, policy


def test_walks_are_the_policy_s_at_its_threshold() -> None:
    walks, log, policy = demo()
    (table,) = log.tables
    doubt = -table.signals["reply_mean_logprob"][walks.rows, 0]
    assert np.array_equal(walks.paid[:, 1], ~(doubt < policy.kappa))
    assert walks.paid[:, 0].all()
    assert 0 < walks.paid[:, 1].mean() < 1
    assert np.array_equal(walks.money, table.arrays.cost[walks.rows])
    taken = seconds_of(log.rows())
    assert walks.seconds[3, 1] == pytest.approx(taken[table.ids[walks.rows[3]], None, 2], abs=1e-9)


def test_a_hedge_decides_on_a_log_as_it_does_live() -> None:
    walks, log, _ = demo()
    (table,) = log.tables
    hedge = fit_hedge(walks, 0.0001)
    assert any(rule.features.names for rule in hedge.rules)
    beside = decided(hedge, walks)
    asked = {row["episode_id"]: Question(row["question"], row["context"]) for row in log.rows()}
    for at in range(walks.n):
        row = int(walks.rows[at])
        question, steps = asked[table.ids[row]], _steps(table, row)
        live = NEVER
        for many in range(int(walks.paid[at, :-1].sum())):
            seen = Observation(question, steps[:many] or (NOTHING_BOUGHT,), 2)
            if live == NEVER and hedge.begins(seen):
                live = many
        assert live == beside[at]


def test_what_hedging_brings_lies_within_always_and_never() -> None:
    walks, _, _ = demo()
    brings = held_out(walks, np.arange(walks.n) % 5, 1e-5, np.ones(walks.n, dtype=np.bool_))
    assert brings.always.seconds <= brings.hedged.seconds <= brings.sequential.seconds
    assert brings.sequential.cost_usd <= brings.hedged.cost_usd <= brings.always.cost_usd
    every = figures(walks, always(walks))
    assert (every.hedged, every.begun) == (every.always, 1.0)
    assert every.unused == pytest.approx(1 - walks.paid[:, -1].mean())


def test_a_seconds_price_of_nearly_nothing_begins_nothing_and_a_high_one_all() -> None:
    walks, _, _ = demo()
    assert (decided(fit_hedge(walks, 1e-12), walks) == NEVER).mean() > 0.95
    assert (decided(fit_hedge(walks, 1e3), walks) == 0).mean() > 0.95


def test_a_number_that_was_never_missing_begins_nothing_where_it_is() -> None:
    walks, _, _ = demo()
    worth = next(rule.worth for rule in fit_hedge(walks, 1e3).rules if rule.features.names)
    many = worth.needs(
        len(next(rule for rule in fit_hedge(walks, 1e3).rules if rule.features.names).features.names)
    ).size
    unknown = FeatureSet(tuple([f"nobody_gives_{number}" for number in range(many)]), ("answer",))
    hedge = Hedge(2, ("answer",), 1e3, (HedgeRule((), unknown, worth),))
    asked = Observation(Question("?"), (NOTHING_BOUGHT,), 2)
    assert worth.value([np.nan] * many) == np.inf
    assert not hedge.begins(asked)
    assert not hedge.begins(asked._replace(horizon=3)), "another strategy"


# --- the file ---


def test_a_hedge_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    walks, _, _ = demo()
    made = fit_hedge(walks, 0.0001)
    data = made.dumps()
    again = loads(data, "here")
    assert again.dumps() == data
    assert np.array_equal(decided(again, walks), decided(made, walks))
    settings = {"kind": "threshold", "when": "reply_logprob", "threshold": 0.2}
    write(tmp_path, PolicyArtifact(settings, files={HEDGE_FILE: data}))
    held = read(tmp_path)
    assert held.hedge == data
    assert held.policy_sha256 == PolicyArtifact(settings).policy_sha256, "no certificate names it"
    write(tmp_path, held)
    assert read(tmp_path).hedge == data
    write(tmp_path, PolicyArtifact(settings), files={})
    assert read(tmp_path).hedge is None, "another fit has its own, or none"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 2}, "a newer release of cascade wrote it"),
        ({"schema_version": 0}, "schema_version: it is 0, and this release reads 1"),
        ({"usd_a_second": 5.0}, "sha256: it does not match the rest"),
        ({"colour": 1}, "colour: there is no such field"),
        ({"rules": [{"bought": [1]}]}, "sha256"),
    ],
)
def test_a_file_that_was_changed_is_refused(change: dict[str, Any], said: str) -> None:
    walks, _, _ = demo()
    document = json.loads(fit_hedge(walks, 0.0001).dumps()) | change
    with pytest.raises(ConfigError, match=said):
        loads(json.dumps(document).encode(), "here")


def test_rules_for_no_state_are_refused() -> None:
    for bought in ((2,), (0,), (1, 1)):
        with pytest.raises(UsageError, match="one rule for each set of steps"):
            Hedge(2, ("answer",), 1.0, (HedgeRule(bought, NOTHING, Constant(1.0)),))


# --- the whole fit ---


def rows(n: int = 400) -> list[dict[str, Any]]:
    """Return a log of two models: long questions need the second one, and are known by their length."""
    draw, made = np.random.default_rng(3), []
    for number in range(n):
        hard = number % 2 == 0
        text = f"Question {number}? " + ("It is long. " * 20 if hard else "")
        for step, model in enumerate(("small", "large"), 1):
            right = step == 2 or not hard
            made.append(
                {
                    "episode_id": f"q{number}",
                    "question": text,
                    "step": step,
                    "candidate": 0,
                    "source": model,
                    "model": model,
                    "answer": "yes" if right else "no",
                    "correct": right,
                    "horizon": 2,
                    "signals": {"reply_mean_logprob": -float(draw.uniform(0.5, 1.0) if hard else draw.uniform(0, 0.1))},
                    "cost_nano_usd": 10_000 if step == 1 else 1_000_000,
                    "latency_ms": float(draw.uniform(900, 1_100)),
                    "input_tokens": 10,
                    "output_tokens": 10,
                }
            )
    return made


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), "utf-8")
    return path


def fitted(log: Path, price: float | None, told: list[str] | None = None, output: Path | None = None) -> PolicyFit:
    options: dict[str, Any] = {"guarantee": "regret", "alpha": 0.1, "delta": 0.1, "policy": "threshold"}
    tell = (lambda _: None) if told is None else told.append
    found = fit(log, **options, seconds_price_usd=price, output=output, tell=tell)
    assert isinstance(found, PolicyFit)
    return found


def test_a_fit_with_a_price_of_a_second_keeps_a_hedge_that_pays(logged: Path, tmp_path: Path) -> None:
    told: list[str] = []
    found = fitted(logged, 0.0005, told, tmp_path / "policy")
    data = read(tmp_path / "policy").hedge
    assert data is not None
    hedge = loads(data, "here")
    hard, easy = Question("Question 0? " + "It is long. " * 20), Question("Question 1?")
    assert hedge.begins(Observation(hard, (NOTHING_BOUGHT,), 2))
    assert not hedge.begins(Observation(easy, (NOTHING_BOUGHT,), 2))
    shown = hedge.held_out
    assert 0.4 < shown["begun"] < 0.6
    assert shown["unused"] < 0.12
    assert shown["hedged"]["seconds"] < shown["one after the other"]["seconds"] - 0.3
    assert shown["hedged"]["cost_usd"] == pytest.approx(shown["one after the other"]["cost_usd"], rel=0.25)
    said = " ".join(told)
    assert "that it was not fitted on" in said
    assert "The hedge is kept in the policy directory" in said
    assert (tmp_path / "policy" / HEDGE_FILE).exists()
    plain = fitted(logged, None)
    assert plain.fitted.artifact.hedge is None
    assert found.certificates[0].kappa == plain.certificates[0].kappa


def test_a_hedge_that_costs_more_than_it_saves_is_not_kept(logged: Path) -> None:
    told: list[str] = []
    assert fitted(logged, 1e-9, told).fitted.artifact.hedge is None
    assert "a hedge costs more than it saves, so none is kept" in " ".join(told)
