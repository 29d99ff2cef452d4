"""`fit` on drawn logs: what is certified, at which level, and what it costs; the parts that it is made of."""

from __future__ import annotations

import importlib
import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, ClassVar

import numpy as np
import pytest

import cascade
from cascade.conformal.binomial import lower_tail, most_losses
from cascade.conformal.certify import certify, evenly, most_units, path_of, spent
from cascade.conformal.path import UNITS, Jumps, Scores, Walks, along, strict_to_lenient, walks
from cascade.conformal.promise import Error, Kind, Promise, Regret
from cascade.episodes.rows import Facts
from cascade.errors import ConfigError, NotCertifiedError, UsageError
from cascade.fitting import attempts
from cascade.fitting.attempts import FIRST, count, place_of
from cascade.fitting.certificates import certified_for, policy_directory
from cascade.fitting.divide import divided, drawn, merged, once, unseen, usable
from cascade.fitting.fit import Fit, FitSettings, Saving, fit, thresholds
from cascade.fitting.menu import simple_members
from cascade.identity import hash_of
from cascade.policies.base import Observation
from cascade.policies.directory import Requests
from cascade.policies.live import LivePolicy
from cascade.policies.policy import Depth, Policy, Random, ReferenceOnly, Threshold, ranked
from cascade.reports.evaluation import evaluation
from cascade.reports.fit import fit_report
from cascade.studies.methods import Fitted, Router, Served
from cascade.studies.study import oracle_cost, study
from cascade.table import COST, Baseline, Floats, Log, Node, Reference
from cascade.types import Call, Completion, Question, Request, Step, Usage
from unit.fitting.random_logs import random_log

REGRET = Promise("regret", 0.05, 0.9)
IMPOSSIBLE = [{"policy": policy} for policy in (None, {"kind": "learned", "x": 0}, {"kind": "ccpo", "steps": 0})]
IMPOSSIBLE += [{"levels": levels} for levels in ({"": 0.1, "low": 0.2}, "low=0.2,low=0.1", "=0.1,high=0.05")]
IMPOSSIBLE += [*({"expires_days": days} for days in (-1, 10**9, "7"))]
IMPOSSIBLE += [{"policy": {"kind": "uala", "threshold": 0.3}}, *({"seed": seed} for seed in ("a", None, 1.5))]


def drawn_log(n: int, seed: int = 0, *, models: int = 2, atoms: int | None = None, alike: float = 0.0) -> Log:
    """Return a ladder whose self-check tells how likely each answer is right; `alike`: the share of groups of three."""
    rng = np.random.default_rng([11, seed])
    sure = rng.random((n, models))
    sure = sure if atoms is None else np.ceil(sure * atoms) / atoms
    right = (rng.random((n, models)) < 0.6 + 0.39 * sure).astype(float)
    price = 50 * 20 ** np.arange(models)
    cost = np.broadcast_to(price, (n, models)) * rng.integers(1, 4, (n, models))
    groups = [f"g{row // 3}" if rng.random() < alike else f"q{row}" for row in range(n)]
    return Log(
        name="drawn",
        nodes=tuple([Node(f"model {at}", at, reads=()) for at in range(models)]),
        ids=tuple([f"{seed}-{row}" for row in range(n)]),
        groups=tuple(groups),
        answer=np.where(right == 1, 0, 1 + np.arange(models)).astype(np.int64),
        right=right,
        cost_nano_usd=cost.astype(np.int64),
        bought=np.ones((n, models), dtype=np.bool_),
        complete=np.ones(n, dtype=np.bool_),
        confidence=np.full((n, models), np.nan),
        signals={"self_check": sure},
        reference=Reference(right[:, -1], cost[:, -1].astype(np.int64), is_last=True),
    )


def test_a_loss_of_ones_own_that_is_unknown_counts_as_lost_and_one_of_another_range_or_shape_is_refused():
    log = drawn_log(40)
    right = np.where(np.arange(40)[:, None] < 30, np.nan, log.right)

    class Own(Kind):
        name, kept_when, lost_when = "own", "it is kept", "it is lost"
        returned: ClassVar[Any] = 1.0 - right

        def loss(self, log: Log) -> np.ndarray:
            return self.returned

    assert Own().losses(log)[:30].all()
    assert (Own().losses(log)[30:] == 1 - log.right[30:]).all()
    assert Own().at_stop(Depth().walks(log))[:30].all()
    for wrong, what in (
        (right[:, 0], r"\(40,\)"),
        (right[:, :1], r"\(40, 1\)"),
        (right * 0 - 2, "-2"),
        (right + 3, "4"),
    ):
        Own.returned = wrong
        with pytest.raises(UsageError, match=what):
            Own().losses(log)


def test_without_all_costs_of_a_request_it_is_said_whose_are_unknown_and_no_attempt_is_counted(tmp_path):
    log = drawn_log(200, models=3)
    costs = log.cost_nano_usd.copy()
    costs[:, 1] = -1
    unpriced = log.reference._replace(cost_nano_usd=costs[:, 1])
    for unknown, named in (
        (replace(log, cost_nano_usd=costs), "model 1"),
        (replace(log, reference=unpriced), "reference"),
    ):
        with pytest.raises(NotCertifiedError, match=named):
            fit(unknown, REGRET, attempts=tmp_path / "count.jsonl")
        assert not [*tmp_path.iterdir()]
        studied = study(unknown, REGRET, [Fitted()], splits=2)
        assert (studied.verdict, studied.row("cascade fit").refused) == ("unknown", 2)
    costs[50:] = log.cost_nano_usd[50:]
    done = fit(replace(log, cost_nano_usd=costs), REGRET)
    assert (done.saving.requests, done.requests) == (150, 200)
    assert any("50 requests" in line for line in fit_report(done).lines)


def test_the_certified_policy_costs_less_and_keeps_its_promise_on_fresh_requests():
    done = fit(drawn_log(2_000), REGRET)
    assert done.saves
    assert done.saving.cost_share is not None
    assert done.saving.interval[0] < done.saving.cost_share < 1
    assert 0.02 < served_loss(done, drawn_log(20_000, 1), REGRET) < 0.05


def served_loss(done: Fit, log: Log, promise: Promise) -> float:
    """Return the share of a log's requests that are lost where a fit serves them."""
    walked = done.policy.walks(log)
    stop = walked.stop(done.certified[""].kappa)
    return float(promise.rules.at_stop(walked)[np.arange(log.n), stop].mean())


def test_the_interval_of_what_is_saved_covers_it_where_the_cheapest_of_many_members_is_served_or_few_groups_pay_most():
    """Said: 90 %. One normal interval of the served member covered .68, and of groups of unlike sizes .71."""
    rng, alone = np.random.default_rng(3), np.full(300, 1e6)
    alike = rng.lognormal(0, 0.5, (400, 5, 300)) * 2e5
    savings = [Saving(each[each.sum(axis=1).argmin()], alone, 300, 5) for each in alike]
    truth = [0.2 * math.exp(0.125)] * 400
    assert np.mean([low <= at <= high for (low, high), at in zip(intervals(savings), truth, strict=True)]) > 0.87
    sizes = np.where(rng.random((400, 100)) < 0.02, 400.0, 1.0)
    savings = [Saving(size * rng.random(100), size, int(size.sum())) for size in sizes if size.max() > 1]
    assert np.mean([low <= 0.5 <= high for low, high in intervals(savings)]) > 0.8
    few = [Saving(0.05 + (rng.random(30) < 0.02), np.ones(30), 30) for _ in range(400)]  # of 30 requests .6 go on
    assert np.mean([low <= 0.07 <= high for low, high in intervals(few)]) > 0.9


def intervals(savings: list[Saving]) -> list[tuple[float, float]]:
    return [saving.interval for saving in savings if saving.interval is not None]


def test_a_fit_says_how_many_members_its_saving_is_the_cheapest_of_and_few_groups_have_no_interval():
    done = fit(drawn_log(400, models=4, atoms=4), Promise("regret", 0.2, 0.9))
    low, high = done.saving.interval or (1.0, 0.0)
    assert done.saving.choices == sum(member.certified is not None for member in done.tested) > 1
    assert high - (done.saving.cost_share or 0.0) > (done.saving.cost_share or 0.0) - low > 0
    five = fit(drawn_log(5), Promise("coverage", 0.5), FitSettings(policy="threshold"))
    assert five.saving.cost_share is not None
    assert "interval" in fit_report(five).lines[1]
    assert fit_report(five).document["cost_share_interval"] == [None, None]


def test_certificates_are_broken_in_at_most_delta_of_fits():
    """Whole fits with menus, ties and attempts; the regret at each certified point is that of 40,000 fresh requests."""
    fresh, broken, many = drawn_log(40_000, 10**6, models=3, atoms=6), 0, 150
    for seed in range(many):
        done = fit(drawn_log(250, seed, models=3, atoms=6), REGRET)
        broken += bool(done.certified) and served_loss(done, fresh, REGRET) > 0.05
    assert broken / many <= 0.1 + 3 * (0.1 * 0.9 / many) ** 0.5


def test_a_score_that_is_rounded_otherwise_when_it_is_served_decides_alike():
    log = drawn_log(500, atoms=5)
    done = fit(log, REGRET)
    rounded = replace(log, signals={"self_check": log.signals["self_check"].astype(np.float32).astype(np.float64)})
    kappa = done.certified[""].kappa
    assert done.policy.walks(log).stop(kappa).tolist() == done.policy.walks(rounded).stop(kappa).tolist()


def test_every_threshold_up_to_the_one_served_passes_also_where_the_risk_is_not_monotone():
    """What the proof needs of a threshold between two scores (design/path.md)."""
    promise, rises = Promise("regret", 0.3, 0.9), 0
    for seed in range(20):
        log = random_log(seed, n=80, whole=True)
        walked = Threshold("reply_mean_logprob", -1.0).walks(log)
        path, jumps = path_of(walked, promise, None), promise.rules.jumps(walked)
        certified = certify(path, promise)
        stricter = path.kappas[path.kappas < certified.kappa][1:]
        between = (stricter[1:] + stricter[:-1]) / 2
        kappas = np.sort(np.concatenate([stricter, between, [certified.kappa]]))
        assert jumps.total(kappas).max() <= most_units(log.n, promise, 0.1)
        rises += bool((np.diff(path.loss) < 0).any())
    assert rises > 10


def test_ties_are_broken_by_what_the_log_has_and_never_reorder_scores():
    log = drawn_log(400, atoms=3)
    members = [member.make() for member in simple_members(log)]
    assert [(type(each), getattr(each, "tie", None)) for each in members] == [(Threshold, COST)]
    score, tie = np.array([0.2, 0.2, 0.1, np.nan]), np.array([5.0, 900.0, np.nan, 1.0])
    ranks = ranked(score, tie)
    assert ranks[2] < ranks[0] < ranks[1]
    assert np.isnan(ranks[3])


def test_a_menu_holds_each_pair_of_a_ladder_and_the_whole():
    members = simple_members(drawn_log(50, models=4))
    assert [member.make().nodes for member in members] == [(0, 3), (1, 3), (2, 3), None]
    assert sum(member.share for member in members) == pytest.approx(1.0)


def judged_log(n: int, **signals: float) -> Log:
    """Return a ladder of two models whose first answer a judge reads; a signal is known where its value is not NaN."""
    log, judge = drawn_log(n, models=3), np.array([False, True, False])
    nodes = log.nodes[0], Node("judge", 1, reads=(0,)), log.nodes[2]
    sure = log.signals["self_check"][:, :1]
    shown = {"p_yes": np.where(judge, sure, np.nan), "reply_mean_logprob": np.where(judge, np.nan, np.log(sure))}
    shown["gate"] = shown["p_yes"]
    chosen = {name: shown[name] * scale for name, scale in signals.items()}
    answer, right = (np.where(judge, missing, values) for missing, values in ((-1, log.answer), (np.nan, log.right)))
    return replace(log, nodes=nodes, signals=chosen, answer=answer, right=right)


@pytest.mark.parametrize(
    ("signals", "plans"),
    [
        (["p_yes"], [("p_yes", None, 0.8), (None, (0, 2), 0.2)]),
        (["reply_mean_logprob"], [("reply_mean_logprob", (0, 2), 0.5), ("reply_mean_logprob", None, 0.5)]),
        (["p_yes", "reply_mean_logprob"], [("reply_mean_logprob", (0, 2), 0.5), ("p_yes", None, 0.5)]),
        (["gate", "reply_mean_logprob"], [("reply_mean_logprob", (0, 2), 0.5), ("gate", None, 0.5)]),
        ([], [(None, (0, 2), 1.0)]),
    ],
)
def test_each_plan_of_a_menu_reads_the_score_that_its_own_nodes_have(signals, plans):
    members = simple_members(judged_log(40, **dict.fromkeys(signals, 1.0)), chance=True)
    policies = [(member.make(), member.share) for member in members]
    assert [
        (getattr(policy, "signal", None), policy.nodes, pytest.approx(share)) for policy, share in policies
    ] == plans


def test_a_judge_beside_log_probs_takes_no_saving_away():
    both, alone = judged_log(900, p_yes=0.0, reply_mean_logprob=1.0), judged_log(900, reply_mean_logprob=1.0)
    costs = [fit(log, REGRET).saving.cost_share for log in (both, alone.only((0, 2)))]
    assert costs[0] == pytest.approx(costs[1], abs=0.03)


def test_the_levels_of_a_menu_never_sum_to_more_than_the_level_of_the_attempt(tmp_path):
    log = drawn_log(600, models=4)
    done = fit(log, REGRET, attempts=place_of(tmp_path / "log.jsonl"))
    assert done.attempt.level == FIRST * 0.1
    assert sum(spent(each.n, REGRET, each.level) for each in done.tested) <= done.attempt.level


def test_attempts_on_the_same_requests_spend_no_more_than_delta_and_only_the_same_fit_is_free(tmp_path):
    file, log = place_of(tmp_path / "log.jsonl"), drawn_log(300, models=3)
    fits = [fit(log, REGRET, FitSettings(seed=seed), attempts=file) for seed in (0, 1, 0, 2, 3, 4)]
    assert [each.attempt.number for each in fits] == [1, 2, 1, 3, 4, 5]
    assert fits[0].attempt.level == fits[2].attempt.level == FIRST * 0.1
    spends = [sum(spent(each.n, REGRET, each.level) for each in done.tested) for done in (*fits[:2], *fits[3:])]
    assert 0 < spends[1] < spends[0]
    assert sum(spends) <= 0.1
    fresh = fit(drawn_log(300, 5), REGRET, attempts=file)
    assert (fresh.attempt.number, fresh.attempt.level) == (1, FIRST * 0.1)


def test_fits_of_parts_leave_the_whole_what_the_most_used_request_has_left(tmp_path):
    """Two disjoint parts each spend nearly all of δ: their sum is no bound for a fit of both."""
    file, log = place_of(tmp_path / "log.jsonl"), drawn_log(600)
    parts = [fit(log.take(np.arange(at, at + 300)), REGRET, attempts=file) for at in (0, 300)]
    assert [part.attempt.number for part in parts] == [1, 1]
    whole = fit(log, REGRET, attempts=file)
    assert (whole.attempt.number, 0 < whole.attempt.share < 1) == (3, True)


def test_too_few_requests_to_prove_anything_spend_nothing(tmp_path):
    log = drawn_log(47)  # one request more each time, as the report asks for
    fits = [fit(log.take(np.arange(n)), REGRET, attempts=tmp_path / "file") for n in (45, 46, 47)]
    assert [done.attempt.level == FIRST * 0.1 for done in fits] == [True, True, False]


def test_no_fit_is_possible_where_a_request_has_nothing_left(tmp_path):
    count(tmp_path / "file", ["a", "b"], "x", lambda _share: 1.0)
    with pytest.raises(UsageError):
        count(tmp_path / "file", ["b", "c"], "y", float)


def test_another_draw_of_the_same_groups_is_another_attempt(tmp_path):
    log = replace(drawn_log(600), groups=tuple([f"g{row // 10}" for row in range(600)]))
    fits = [fit(log, REGRET, FitSettings(seed=seed), attempts=place_of(tmp_path / "log.jsonl")) for seed in range(4)]
    assert len({done.log.ids for done in fits}) == 4
    assert [done.attempt.number for done in fits] == [1, 2, 3, 4]


def test_a_fit_on_average_spends_its_share(tmp_path):
    file, log = place_of(tmp_path / "log.jsonl"), drawn_log(300)
    fit(log, Promise("coverage", 0.1), attempts=file)
    assert fit(log, Promise("coverage", 0.1, 0.9), attempts=file).attempt.share < 0.5


@dataclass(frozen=True)
class Scaled(Policy):
    """A policy of a user's, with a setting."""

    kind: ClassVar[str] = "scaled"
    scale: float = 1.0
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        return Scores(ranked(self.scale * (1 - sure(log))))


def sure(log: Log) -> Floats:
    """Return a signal, which a request that has bought nothing lacks."""
    return log.signals.get("self_check", np.full(log.answer.shape, np.nan))


class Bare(Scaled):
    def scores(self, log: Log) -> Scores:
        return log.signals["self_check"]  # type: ignore[return-value]


class Choosing(Scaled):
    served: ClassVar[Any] = 0

    def scores(self, log: Log) -> Scores:
        return Scores(ranked(1 - sure(log)), serve=np.full(log.answer.shape, self.served))


@pytest.mark.parametrize("served", [7, 1, -2, 0.0])
def test_a_policy_that_serves_what_is_no_node_or_is_not_bought_yet_is_refused(served, monkeypatch):
    monkeypatch.setattr(Choosing, "served", served)
    with pytest.raises(UsageError, match="serve"):
        fit(drawn_log(40), REGRET, FitSettings(policy=Choosing()))


def test_a_promise_without_its_sentence_or_with_outcomes_that_are_no_tuple_is_refused_by_all_its_problems():
    with pytest.raises(UsageError, match=r"name.*lost_when.*outcomes"):
        Promise("unit.fitting.test_fit:Wordless", 0.05, 0.9)


class Wordless(Kind):
    kept_when = "it is right"
    outcomes = "points"  # type: ignore[assignment]

    def loss(self, log: Log) -> Floats:
        return 1 - log.right


class Raising(Scaled):
    def scores(self, log: Log) -> Scores:
        raise KeyError("p_yes")


class Sized(Scaled):
    def scores(self, log: Log) -> Scores:
        assert log.n
        return super().scores(log)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (Bare(), "Scores"),
        (Raising(), "Raising.*KeyError.*test_fit.py, line"),
        (Scaled(nodes=(0, 7)), "scaled.*7"),
        ({"kind": "threshold", "signal": "self_chek"}, "sign: "),
        ({"kind": "threshold", "signal": "wisdom", "sign": 1}, "wisdom"),
        ({"kind": "threshold", "sign": 1}, "signal: "),
        ({"kind": "threshold", "signal": "self_check", "sing": 1}, "sing.*sign"),
        ({"kind": "threshold", "signal": "self_check", "sign": "high"}, "sign: "),
        ({"kind": "ccpo", "steps": -1, "layers": []}, "layers: .*steps: "),
        ({"kind": "uala"}, "p_yes"),
        ({"kind": "uala", "x": 0}, "setting x;"),
        ({"kind": "random", "seed": "x"}, "seed: "),
    ],
)
def test_a_policy_that_a_log_cannot_have_or_that_returns_no_scores_is_refused_and_no_attempt(policy, named, tmp_path):
    log, file = drawn_log(40), tmp_path / attempts.NAME
    for promise in (REGRET, Promise("coverage", 0.3)):
        with pytest.raises(UsageError, match=named):
            fit(log, promise, FitSettings(policy=policy), attempts=file)
    assert fit(log, REGRET, attempts=file).attempt.number == 1


class Ranks(Scaled):
    def scores(self, log: Log) -> Scores:
        return Scores(sure(log).argsort(0).argsort(0) / log.n)


class Foresees(Scaled):
    def scores(self, log: Log) -> Scores:
        return Scores((log.answer != log.answer[:, -1:]).astype(float))


class Ordering(Scaled):
    def scores(self, log: Log) -> Scores:
        later = np.where(sure(log)[:, -1:] > 0.5, np.array([[0, 2, 1]]), np.array([[0, 1, 2]]))
        return Scores(np.zeros(log.answer.shape), order=later)


class Serving(Scaled):
    def scores(self, log: Log) -> Scores:
        serve = np.where(sure(log)[:, -1:] > 0.5, np.arange(log.width), 0)
        return Scores(ranked(1 - sure(log)), serve=serve)


class Keeping(Scaled):
    def scores(self, log: Log) -> Scores:
        return Scores(ranked(1 - sure(log)), keep=sure(log) - np.nanmean(sure(log)))


class Drawing(Scaled):
    def scores(self, log: Log) -> Scores:
        return Scores(np.random.default_rng().random(log.answer.shape))


class Typo(Scaled):
    def scores(self, log: Log) -> Scores:
        return Scores(1 - log.signals["self_check"])  # live, a request has it after its first call


@pytest.mark.parametrize("policy", [Ranks, Foresees, Ordering, Serving, Keeping, Drawing, Typo, Raising])
def test_a_policy_that_scores_otherwise_live_is_refused_and_none_that_is_refused_counts(policy, tmp_path):
    """Said: 5 % at most. A rank within the log lost 31 % live: alone every request ranks first."""
    file, log, promise = place_of(tmp_path / "log.jsonl"), drawn_log(300, models=3), replace(REGRET, kind="error")
    for each in (REGRET, promise):
        with pytest.raises(UsageError):
            fit(log, each, FitSettings(policy=policy()), attempts=file)
    assert fit(log, REGRET, FitSettings(policy=Scaled()), attempts=file).attempt.number == 1


def test_a_loss_of_ones_own_that_raises_is_refused_with_its_class_and_line(monkeypatch):
    class Failing(Regret):
        def loss(self, log: Log) -> Floats:
            return self.missing  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(UsageError, match=r"Failing.*AttributeError.*test_fit.py, line \d"):
        Failing().losses(drawn_log(40))
    monkeypatch.setattr(Regret, "loss", lambda *_: {}["nothing"])
    with pytest.raises(KeyError):  # a fault of cascade's own code keeps its traceback
        Regret().losses(drawn_log(40))


def test_another_code_of_a_policy_is_another_attempt(tmp_path):
    """The same name and settings: a class that was edited, in a file or in a session."""
    file, log, numbers = place_of(tmp_path / "log.jsonl"), drawn_log(300), []
    for body in ("1 - sure(log)", "sure(log)", "sure(log)"):
        scope: dict[str, Any] = {**globals(), "__name__": "__main__"}
        exec(f"class Edited(Scaled):\n    def scores(self, log): return Scores(ranked({body}))", scope)  # noqa: S102
        numbers.append(fit(log, REGRET, FitSettings(policy=scope["Edited"]()), attempts=file).attempt.number)
    assert numbers == [1, 2, 2]


def test_another_constant_beside_the_class_of_a_policy_is_another_attempt(tmp_path, monkeypatch):
    file, log, module = place_of(tmp_path / "log.jsonl"), drawn_log(300), tmp_path / "beside.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    body = "from unit.fitting.test_fit import Scaled\n\n\nclass Beside(Scaled):\n    pass\n\n\nSCALE = "
    numbers = []
    for constant in ("1", "2"):
        module.write_text(body + constant)
        beside: Any = importlib.import_module("beside").Beside
        numbers.append(fit(log, REGRET, FitSettings(policy=beside()), attempts=file).attempt.number)
    monkeypatch.delitem(sys.modules, "beside")
    assert numbers == [1, 2]


def test_another_version_promise_or_view_of_the_log_is_another_attempt(tmp_path, monkeypatch):
    file, log, numbers = place_of(tmp_path / "log.jsonl"), drawn_log(300), []
    for fitted in (log, log, replace(log, hidden=frozenset({COST})), replace(log, features={"noise": log.right[:, 0]})):
        numbers.append(fit(fitted, REGRET, FitSettings(policy=Scaled()), attempts=file).attempt.number)
    monkeypatch.setattr(attempts, "__version__", "1.0.1")
    numbers.append(fit(log, REGRET, FitSettings(policy=Scaled()), attempts=file).attempt.number)
    monkeypatch.setattr(Regret, "__module__", "somebodys.own")  # a promise of a user's own, whose code counts
    numbers.append(fit(log, REGRET, FitSettings(policy=Scaled()), attempts=file).attempt.number)
    assert numbers == [1, 1, 2, 3, 4, 5]


def test_a_policy_of_another_setting_is_another_attempt_and_its_settings_are_written(tmp_path):
    file, log = place_of(tmp_path / "log.jsonl"), drawn_log(300)
    fits = [fit(log, REGRET, FitSettings(policy=Scaled(scale)), attempts=file) for scale in (1.0, 3.0, 1.0)]
    assert [done.attempt.number for done in fits] == [1, 2, 1]
    assert Scaled(3.0).settings() == {"scale": 3.0}
    assert Scaled.read(Scaled(3.0).settings(), {}) == Scaled(3.0)


class Peeking(Scaled):
    """A policy that would go on where the first answer is wrong."""

    def scores(self, log: Log) -> Scores:
        assert log.reference is None
        return Scores(ranked(1 - log.right))


def test_a_policy_never_sees_what_is_right():
    """Live nobody knows it. What is unknown goes on: nothing is saved by peeking."""
    walked = Peeking().walks(drawn_log(50))
    assert (walked.stop(0.5) == 1).all()


def test_a_policy_is_not_asked_about_no_requests():
    """Models of scikit-learn raise on an array without a row."""
    log = drawn_log(5)
    assert Raising().walks(log.take(np.zeros(0, np.int64))).reach.shape == (0, 2)
    own = Requests(certified=tuple([hash_of(name) for name in log.ids]))
    assert evaluation(log, REGRET, {"policy": Served(Sized())}, own).document["fresh_loss"] is None


def test_on_an_ordered_path_a_request_without_its_first_call_is_lost():
    log = drawn_log(8)
    bought = log.bought.copy()
    bought[:2] = False
    walked = Depth().walks(replace(log, bought=bought, complete=bought[:, 0]))
    assert along(walked, np.zeros((8, 2)), np.zeros(1)).loss.tolist() == [2 * UNITS]


def test_a_file_of_attempts_that_is_lost_or_damaged_is_no_first_attempt(tmp_path):
    assert count(None, ["a"], "x", float).number is None
    assert count(tmp_path / "no" / "folder", ["a"], "x", float).number is None
    (tmp_path / "file").write_text('{"fit": 1', "utf-8")
    with pytest.raises(ConfigError):
        count(tmp_path / "file", ["a"], "x", float)


@pytest.mark.parametrize(("graded", "losses", "share"), [(True, 10, 0.5), (False, 20, 1.0)])
def test_graded_losses_add_up_at_half_of_the_level_and_others_count_whole(graded, losses, share, monkeypatch):
    monkeypatch.setattr(Regret, "graded", graded)
    monkeypatch.setattr(Regret, "loss", lambda _, log: 0.5 * (log.right == 0))
    right = np.stack([np.arange(500) >= 20, np.ones(500, dtype=bool)], axis=1).astype(float)
    path = path_of(Depth().walks(replace(drawn_log(500), right=right)), REGRET, None)
    assert path.loss[-1] == losses * UNITS
    assert most_units(500, REGRET, 0.1) == most_losses(500, 0.05, 0.1 * share) * UNITS
    assert spent(500, REGRET, 0.1) == lower_tail(most_losses(500, 0.05, 0.1 * share), 500, 0.05) / share


class Graded(Kind):
    name, kept_when, lost_when = "unit.fitting.test_fit:Graded", "it is as good", "it is worse"
    graded, reference_keeps_it, needs, outcomes = True, True, ("reference",), ("score",)

    def loss(self, log: Log) -> Floats:
        return 1.0 - log.signals["score"]


class Believed(Kind):
    name, kept_when, lost_when = "unit.fitting.test_fit:Believed", "it is right", "it is wrong"
    reference_keeps_it, loses = True, 1.0

    def loss(self, log: Log) -> Floats:
        return np.where(log.right == 1, 0.0, self.loses)


@pytest.mark.parametrize("ladder", [True, False])
@pytest.mark.parametrize(("loses", "known", "refused"), [(1.0, 1, 1), (0.5, 1, 1), (1.0, 0, 0), (np.nan, 1, 0)])
def test_that_the_reference_keeps_a_promise_is_not_believed_against_its_own_loss(
    ladder, loses, known, refused, tmp_path, monkeypatch
):
    monkeypatch.setattr(Believed, "loses", loses)
    log, promise, file = drawn_log(300), Promise(Believed.name, 0.1, 0.9), tmp_path / attempts.NAME
    last = log.right[:, -1] if known else np.where(log.right[:, -1] == 1, 1.0, np.nan)
    right = np.stack([log.right[:, 0], last], axis=1)
    log = replace(log, right=right, reference=Reference(last, log.reference.cost_nano_usd, is_last=ladder))
    for verb in (lambda: fit(log, promise, attempts=file), lambda: study(log, promise, [Router()], splits=2)):
        with pytest.raises(UsageError) if refused else nullcontext():
            verb()
    assert fit(log, Promise("error", 0.4, 0.9), attempts=file).attempt.number == 2 - refused
    with pytest.raises(UsageError):
        fit(replace(log, reference=None), promise)


def test_no_policy_reads_what_a_graded_loss_is_made_of_and_the_reference_alone_loses_nothing():
    log, rng, promise = drawn_log(600, 3), np.random.default_rng(4), Promise(Graded.name, 0.1, 0.9)
    score = np.stack([np.clip(log.signals["self_check"][:, 0] + rng.random(600), 0, 1), np.ones(600)], axis=1)
    log = replace(log, signals={**log.signals, "score": score}, features={"words": log.signals["self_check"][:, 0]})
    done = fit(log, promise)
    assert ["score" in member.policy.reads for member in done.tested] == [False, False]
    assert (Graded.kept_when in fit_report(done).lines[0], Graded.lost_when in fit_report(done).lines[0]) == (
        True,
        False,
    )
    with pytest.raises(UsageError):
        fit(log, promise, FitSettings(policy=Threshold("score", -1.0)))
    proof = study(log, promise, [Router()], splits=2)
    assert (proof.rows[0].risk, proof.rows[1].refused, proof.bound) == (0.0, 0, None)
    table = evaluation(log, promise, {"policy": Served(ReferenceOnly())}, Requests()).tables[0]
    assert {"mean loss", "lost"} & {row[0] for row in table.rows} == {"mean loss"}
    assert evenly(np.linspace(0.0, 0.9, 200), 50)[0] == 0


@dataclass(frozen=True)
class Looking(Scaled):
    """A policy whose doubt is known where it sees a column."""

    column: str = COST

    def scores(self, log: Log) -> Scores:
        assert not log.baselines
        unknown = np.full(log.answer.shape, np.nan)
        cost = np.where(log.cost_nano_usd > 0, 0.5, unknown)
        return Scores(cost if self.column == COST else log.signals.get(self.column, unknown))


@pytest.mark.parametrize(
    ("promise", "column", "seen"),
    [
        (Promise(Graded.name, 0.1, 0.9), "score", False),
        (Promise(Graded.name, 0.1, 0.9), COST, True),
        (Promise("error", 0.4, 0.9), COST, False),
        (Promise("error", 0.4, 0.9), "score", True),
    ],
)
def test_a_policy_of_ones_own_sees_no_outcome_and_no_cost_that_is_hidden_neither_in_a_log_nor_live(
    promise, column, seen
):
    drawn, question = drawn_log(600), Question("Where?")
    walk = Baseline(*[drawn.right[:, 0] == 1] * 2, *[np.ones(600, dtype=np.int64)] * 4)
    score = np.where([True, False], drawn.right, 1.0)
    log = replace(drawn, signals={"score": score}, baselines={"own": walk})
    done = fit(log, promise, FitSettings(policy=Looking(column=column)))
    doubt = Looking(column=column).walks(usable(log, promise).log).reach[:, 1]
    assert (doubt < np.inf).all() == (doubt < np.inf).any() == seen
    shown = certified_for(done.log, done.log, Facts(("answer",), {}, (None, None), (None, None), None, {}))["shown"]
    assert [("score" in step["1"]["signals"]) for step in shown] == [promise.kind == "error"] * 2
    live = LivePolicy.of(policy_directory(done, log.nodes, date(2026, 1, 1)))
    sent = Request("model", (), "answer", "answer", 1, question, 9)
    step = Step(1, (), {"score": 0.9}, calls=(Call(sent, Completion("Inn", "stop", Usage(1, 9)), 50, 50),))
    rule = replace(live, rule=Looking(column=column))
    assert np.isnan(rule.scores(Observation(question, (step,), last=False)).next) != seen


@pytest.mark.parametrize(("columns", "named"), [(None, True), (frozenset({"reply_mean_logprob"}), False)])
def test_what_a_policy_that_does_not_say_what_it_reads_must_be_served_with_is_said(columns, named, monkeypatch):
    monkeypatch.setattr(Looking, "columns", columns)
    notices, settings = list[str](), FitSettings(policy=Looking(column="reply_mean_logprob"))
    fitted = cascade.fit("demo-ladder", Promise("error", 0.9, 0.9), settings, tell=notices.append)
    assert (fitted.done.policy.kind, any("answer_mean_logprob" in notice for notice in notices)) == ("scaled", named)


def test_segments_with_too_few_requests_get_no_certificate():
    log = drawn_log(900)
    log = replace(log, segments=tuple(["many"] * 860 + ["few"] * 30 + [""] * 10))
    done = fit(log, REGRET, FitSettings(by_segment=True))
    assert (set(done.certified), dict(done.too_small)) == ({"many"}, {"few": 30})
    few = np.array(log.segments) != "many"
    costs = done.policy.walks(log).cost.at(done.certified["many"].kappa)
    spent = np.where(few, log.reference.cost_nano_usd, costs).sum()  # the reference answers the few at once
    assert done.saving.cost_share == pytest.approx(spent / log.reference.cost_nano_usd.sum())
    assert np.isnan(thresholds(log, done.certified, by_segment=True, default="")).sum() == 40
    assert "860" in fit_report(done).lines[2]


def test_without_a_signal_a_random_choice_is_served_and_keeps_its_promise():
    done = fit(replace(drawn_log(600), signals={}), REGRET)
    assert (type(done.policy), done.saves) == (Random, True)
    assert 0.02 < served_loss(done, drawn_log(20_000, 1), REGRET) < 0.05


def test_where_nothing_is_proven_the_reference_alone_is_asked():
    done = fit(drawn_log(20), Promise("regret", 0.01, 0.9))
    assert (type(done.policy), dict(done.certified), done.saves) == (ReferenceOnly, {}, False)
    with pytest.raises(NotCertifiedError):
        fit(drawn_log(300), Promise("error", 0.01, 0.9))


@pytest.mark.parametrize("settings", [{"policy": "thresold"}, {"train_share": 1.5}, {"newest": 0.0}, *IMPOSSIBLE])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError):
        FitSettings(**settings)  # type: ignore[arg-type]


def test_the_newer_part_of_a_log_certifies_alone():
    log = drawn_log(400)
    done = fit(log, REGRET, FitSettings(newest=0.25))
    assert set(done.log.ids) <= set(log.ids[300:])


# --- division ---


def test_groups_are_never_divided_and_requests_count_once():
    log = drawn_log(300, alike=0.5)
    doubled = log.take(np.concatenate([np.arange(300), np.arange(30)]))
    assert once(doubled).tolist() == list(range(300))
    parts = divided(log, 0.3, 0)
    assert not set(parts.training.groups) & set(parts.calibration.groups)
    assert parts.training.n + parts.calibration.n == log.n
    single = drawn(log, 0)
    assert len(set(single.groups)) == single.n == len(set(log.groups))


def test_groups_that_share_a_request_are_one_group():
    log = replace(drawn_log(4), ids=("a", "b", "a", "c"), groups=("x", "y", "y", "z"))
    assert merged(log) == ("x", "x", "x", "z")
    assert unseen(log, (hash_of("b"),), ()).ids == ("a", "c")


def test_requests_without_the_reference_are_left_out_of_a_regret():
    log = drawn_log(50)
    right = log.reference.right.copy()
    right[:7] = np.nan
    lacking = replace(log, reference=log.reference._replace(right=right))
    ready = usable(lacking, REGRET)
    assert (ready.log.n, ready.unknown) == (43, 7)
    assert usable(lacking, replace(REGRET, kind="error")).unknown == 0


# --- the bound ---


def test_no_policy_costs_less_than_the_bound():
    """All 3^n ways to answer 6 requests of a ladder of three, by force."""
    for seed in range(5):
        log = drawn_log(6, seed, models=3)
        promise, costs = Promise("regret", 0.2, 0.9), []
        loss, cost = promise.rules.loss(log), log.cost_nano_usd
        for number in range(3**6):
            choice = np.array([number // 3**row % 3 for row in range(6)])
            if loss[np.arange(6), choice].sum() <= 0.2 * 6:
                costs.append(cost[np.arange(6), choice].sum() / 6)
        assert oracle_cost(log, promise) == pytest.approx(min(costs))


def test_a_study_prepares_on_one_side_and_counts_on_the_other():
    proof = study(drawn_log(600), REGRET, splits=6)
    row = proof.row("cascade fit")
    assert proof.rows[0].name == "reference alone"
    assert row.saving.mean == pytest.approx(1 - row.cost_share.mean)
    assert proof.bound < row.cost_share.mean < 1
    assert proof == study(drawn_log(600), REGRET, splits=6)
    assert study(drawn_log(600), REGRET, [Fitted()], splits=2, seed=-1).rows[1].refused == 0


@pytest.mark.parametrize(("confidence", "losses"), [(0.9, [0, 3, 14, 15, 2]), (None, [0, 3, 19, 20, 2])])
def test_the_last_point_before_the_first_that_fails_is_certified(confidence, losses):
    log = drawn_log(200)
    walked = walks(log, Scores(np.zeros((200, 2))))
    path = strict_to_lenient(walked, Promise("coverage", 0.1).rules.jumps(walked))
    path = replace(path, kappas=np.arange(5.0), loss=np.array(losses) << 30, cost_nano_usd=np.zeros(5, dtype=np.int64))
    certified = certify(path, Promise("coverage", 0.1, confidence))
    assert (float(certified.losses), certified.kappa) == (losses[2], 1.5)


# --- promises that an attack has broken ---


def test_on_an_ordered_path_the_point_that_was_tested_is_the_one_served():
    """Depths of a ladder whose third model is bad: between two tested thresholds lies one that stops there."""
    rng, n = np.random.default_rng(3), 1_000
    log = replace(drawn_log(n, models=4), signals={})
    right = (rng.random((n, 4)) < np.array([0.9, 0.97, 0.8, 0.99])).astype(float)
    log = replace(log, right=right, reference=None, cost_nano_usd=np.broadcast_to(np.array([1, 5, 20, 90]), (n, 4)))
    done = fit(log, Promise("error", 0.05, 0.9), FitSettings(policy="fixed"))
    stop = done.policy.walks(done.log).stop(done.certified[""].kappa)
    assert float(done.certified[""].losses) == (1 - done.log.right[np.arange(done.log.n), stop]).sum()


def test_a_record_ends_before_the_first_node_that_it_lacks():
    log = drawn_log(200, models=3)
    holes = log.bought.copy()
    holes[::2, 1] = False
    log = replace(log, bought=holes, answer=np.where(holes, log.answer, -1))
    walked = Threshold("self_check", -1.0).walks(log)
    assert (walked.reach[::2, 1:] == -np.inf).all()
    assert not walked.log.complete[::2].any()


def test_an_answer_that_nobody_judged_may_be_the_right_one():
    log = drawn_log(100)
    right = np.where(np.arange(2) == 1, np.nan, 0.0) * np.ones((100, 1))
    walked = Threshold("self_check", -1.0).walks(replace(log, right=right))
    assert (Promise("coverage", 0.1).rules.jumps(walked).at(np.inf) > 0).all()


def test_of_groups_one_request_each_certifies_and_all_of_them_are_counted_in_one_cost():
    log = drawn_log(600)
    log = replace(log, groups=tuple([f"g{row // 12 if row < 240 else row}" for row in range(600)]))
    done = fit(log, Promise("regret", 0.1, 0.9), FitSettings(policy="threshold"))
    assert (done.log.n, done.requests, done.saving.requests) == (380, 600, 600)
    assert 0 < done.lost < 0.2
    assert done.tested[0].cost == done.saving.cost_share == done.cost_shares[""]
    assert len(repr(done)) < 300


def test_another_rate_of_judging_than_promised_is_refused():
    log = replace(drawn_log(300), drawn=np.arange(300) % 5 == 0)
    with pytest.raises(UsageError):
        fit(log, Promise("preference", 0.1, 0.9))


# --- what a server may lack, and settings ---


def test_a_cost_breaks_ties_only_where_going_on_loses_nothing():
    log = drawn_log(400, models=3, atoms=3)
    assert [member.make().reads for member in simple_members(log)] == [("self_check",)] * 3
    assert [getattr(member.make(), "tie", None) for member in simple_members(log)] == [COST, COST, None]
    policy = fit(log.only((0, 2)), Promise("error", 0.4, 0.9)).policy
    assert (getattr(policy, "tie", ""), policy.reads) == (None, ("self_check",))
    lengths = replace(log, signals={**log.signals, "reply_tokens": np.ones(log.answer.shape)})
    assert simple_members(lengths)[0].make().reads == ("self_check", "reply_tokens")


@pytest.mark.parametrize("promise", [REGRET, Promise("error", 0.15, 0.9)])
def test_a_server_that_does_not_learn_costs_loses_no_more_than_was_promised(promise):
    fresh, broken, many = by_cost(20_000, 10**6), 0, 60
    blind = replace(fresh, cost_nano_usd=np.full(fresh.answer.shape, -1))
    for seed in range(many):
        try:
            done = fit(by_cost(500, seed), promise)
        except NotCertifiedError:
            continue
        broken += bool(done.certified) and served_loss(done, blind, promise) > promise.risk
    assert broken / many <= 0.1 + 3 * (0.1 * 0.9 / many) ** 0.5


def by_cost(n: int, seed: int) -> Log:
    """Return a pair whose second model is better where the first call was dear, and worse elsewhere."""
    log, rng = drawn_log(n, seed, atoms=1), np.random.default_rng([13, seed])
    dear = rng.random((n, 1)) < 0.5
    right = (rng.random((n, 2)) < np.where(dear, [0.6, 0.97], [0.9, 0.6])).astype(float)
    cost = np.where(dear, [90, 1_000], [30, 1_000]).astype(np.int64)
    answer = np.where(right == 1, 0, [1, 2]).astype(np.int64)
    reference = Reference(right[:, 1], cost[:, 1], is_last=True)
    return replace(log, right=right, answer=answer, cost_nano_usd=cost, reference=reference)


def test_a_known_signal_needs_no_sign():
    done = fit(drawn_log(300), REGRET, FitSettings(policy={"kind": "threshold", "signal": "self_check"}))
    assert done.tested[0].policy == Threshold("self_check", -1.0, COST)


@pytest.mark.parametrize(
    ("promise", "levels", "certified"),
    [
        (REGRET, "low=0.1,high=0.001", {"low", "high"}),
        (Promise("regret", 0.001, 0.9), "low=0.1,high=0.001", {"low", "high"}),
        (Promise("error", 0.3, 0.9), "low=0.3,high=0.001", {"low"}),
    ],
)
def test_a_level_at_which_nothing_is_proven_leaves_the_others(promise, levels, certified):
    done = fit(drawn_log(600), promise, FitSettings(levels=levels))
    assert isinstance(done.policy, Threshold)
    assert done.certified["low"].kappa > -np.inf
    if done.default not in done.certified:  # the reference is asked at once
        assert (done.saving.cost_share, done.lost) == (1.0, 0.0)
        assert not fit_report(done).document["saves"]
    directory = policy_directory(done, done.log.nodes, date(2026, 1, 1))
    assert set(directory.certificates) == certified
    with pytest.raises(NotCertifiedError):
        fit(drawn_log(600), Promise("error", 0.001, 0.9), FitSettings(levels="low=0.3,high=0.001"))


def test_each_segment_s_certificate_holds_for_its_own_requests():
    log = drawn_log(900)
    done = fit(
        replace(log, segments=tuple(["ab"[row % 2] for row in range(900)])), REGRET, FitSettings(by_segment=True)
    )
    directory = policy_directory(
        done, log.nodes, date(2026, 1, 1), made_for=lambda part: {"of": sorted(set(part.segments))}
    )
    assert {name: each.made_for["of"] for name, each in directory.certificates.items()} == {"a": ["a"], "b": ["b"]}


def test_a_certificate_says_that_it_speaks_of_groups_and_how_many_requests_are_left_out():
    """One request of each group certifies: of groups of unlike sizes a share of all requests is another one."""
    log, day = drawn_log(600, alike=1.0), date(2026, 1, 1)
    whole, alone = (fit(each, REGRET) for each in (log, drawn_log(600)))
    units = [next(iter(policy_directory(done, log.nodes, day).certificates.values())).unit for done in (whole, alone)]
    assert units == ["group", "request"]
    lacks = replace(log, reference=log.reference._replace(right=np.where(np.arange(600) < 77, np.nan, log.right[:, 1])))
    for left_out, wanted in ((fit(lacks, REGRET), "85"), (whole, " 8 ")):
        (certificate,) = policy_directory(left_out, log.nodes, day, unlabelled=8).certificates.values()
        assert sum(wanted in text for text in certificate.assumptions) == 1


class DoomedError(Error):
    """What it says of thresholds is no loss of the answer served."""

    name = "doom"

    def jumps(self, walks: Walks) -> Jumps:
        return Jumps(np.full(walks.log.n, UNITS), walks.reach[:, :0], np.zeros((walks.log.n, 0), dtype=np.int64))


def test_a_promise_with_jumps_of_its_own_is_not_certified_by_the_answer_served():
    with pytest.raises(UsageError):
        fit(drawn_log(400), Promise(f"{__name__}:DoomedError", 0.5, 0.9))
