"""A promise of regret: who certifies, which models of a ladder are asked, and what serves where nothing is saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from cascade.calibration.scores import sample_of
from cascade.calibration.verifying import verify
from cascade.conformal.arrays import StepArrays
from cascade.conformal.binomial import most_losses
from cascade.conformal.served import PathPoint
from cascade.episodes.schema import LAST_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.errors import ConfigError
from cascade.evaluation.evaluate import play_policy
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import ends_in_reference, reference_right
from cascade.guarantees.served_answer import Regret, every_threshold
from cascade.orchestrator import Orchestrator
from cascade.policies.artifact import write
from cascade.policies.base import Takes
from cascade.providers.fake import FakeProvider, reply
from cascade.training.dividing import REGRET_SHARE
from cascade.training.fitting import Fitted, fit_policy, named_score
from cascade.training.simple import plain_threshold
from cascade.types import Request

REGRET = Guarantee("regret", 0.05, 0.1)
MODELS = ("tiny", "small", "large", "huge")


def ladder(
    n: int,
    right: tuple[float, ...],
    cost: tuple[int, ...],
    *,
    seed: int = 0,
    scale: tuple[float, ...] = (),
    blind: tuple[int, ...] = (),
) -> EpisodeTable:
    """Return a log of a ladder: a question has a difficulty, and a model's log-prob tells how near it is to it.

    Args:
        n: questions.
        right: how often each model is right.
        cost: of each model's call, nano-USD.
        seed: draws them.
        scale: of each model's log-probs; 1 by default.
        blind: the models, from 0, whose log-probs say nothing.
    """
    rng, many = np.random.default_rng(seed), len(right)
    hard = rng.uniform(size=n)
    margin = np.array(right)[None, :] - hard[:, None] + rng.normal(scale=0.12, size=(n, many))
    correct = margin > 0
    sure = np.where(np.isin(np.arange(many), blind), rng.normal(size=(n, many)), margin)
    logprob = -np.log1p(np.exp(-6 * sure)) * np.array(scale or (1.0,) * many)
    # Right answers are the same; wrong ones are of two kinds, so that cheap models may agree on one.
    answer = np.where(correct, 0, 1 + rng.integers(2, size=(n, many)))
    first = np.array([[row.tolist().index(one) for one in row] for row in answer])
    paid, one = np.tile(np.array(cost, dtype=np.int64), (n, 1)), np.ones(n, dtype=np.int64)
    whole = np.ones(n, dtype=np.bool_)
    arrays = StepArrays(first[:, :, None], correct[:, :, None], paid, one * many, whole)
    last = Walk(whole, correct[:, -1], correct[:, -1], paid[:, -1], one, one, one)
    names = tuple(f"q{row}" for row in range(n))
    return EpisodeTable(
        "made",
        names,
        names,
        ("answer",),
        arrays,
        np.full(arrays.answer.shape, np.nan),
        {"reply_mean_logprob": logprob},
        {LAST_ONLY: last},
        texts_known=whole,
        models={name: (name,) for name in MODELS[-many:]},
        step_models=MODELS[-many:],
    )


def fit(table: EpisodeTable, guarantee: Guarantee = REGRET, **more: Any) -> Fitted:
    return fit_policy([table], guarantee, **more)


PAIR = {"right": (0.75, 0.9), "cost": (100, 1_000)}


@cache
def four() -> EpisodeTable:
    return ladder(600, (0.5, 0.7, 0.8, 0.9), (10, 40, 200, 1_000))


@cache
def wasteful() -> EpisodeTable:
    """Return the log of a ladder whose first and third model tell nothing and cost as much as the next."""
    return ladder(1_200, (0.3, 0.72, 0.74, 0.9), (100, 120, 900, 1_000), blind=(0, 2))


@cache
def fitted(made: Callable[[], EpisodeTable]) -> Fitted:
    return fit(made())


# --- who certifies


def test_where_nothing_is_learned_every_question_certifies_at_the_exact_threshold() -> None:
    """0.5.0 set 70 % aside to learn from. The oracle goes along all thresholds with scipy's binomial."""
    table = ladder(800, **PAIR)
    found = fit(table)
    assert (found.sizes.training, found.sizes.calibration) == (0, 800)
    doubt = -table.signals["reply_mean_logprob"][:, 0]
    lost = table.arrays.correct[:, 1, 0] & ~table.arrays.correct[:, 0, 0]
    most = np.flatnonzero(binom.cdf(np.arange(801), 800, 0.05) <= 0.1)[-1]
    certified = -np.inf
    for kappa in np.sort(doubt):  # kept is what is less doubtful than kappa
        if lost[doubt < kappa].sum() > most:
            break
        certified = kappa
    (certificate,) = found.artifact.certificates
    assert (certificate.kappa, certificate.n) == (certified, 800)


# --- a learned policy beside the named score


def telling(n: int, *, tells: bool = True, seed: int = 0) -> EpisodeTable:
    """Return a log of a pair whose log-probs say nothing; how long a request is tells how hard it is, or nothing too."""
    table, rng = ladder(n, **PAIR, seed=seed, blind=(0,)), np.random.default_rng([seed, 1])
    hard = np.random.default_rng(seed).uniform(size=n)  # as `ladder` draws it
    characters = hard + rng.normal(scale=0.1, size=n) if tells else rng.normal(size=n)
    return replace(table, asked={"characters": characters})


@cache
def learned() -> Fitted:
    return fit(telling(800))


def test_a_learned_policy_is_tested_at_what_the_named_score_leaves_of_delta_and_taken_where_it_is_cheaper() -> None:
    found = learned()
    assert found.policy.method == "purchases"
    assert found.sizes == (800, 240, 560)
    (certificate,) = found.artifact.certificates
    assert certificate.delta == 0.1
    assert found.artifact.asked == replace(REGRET, tested_before=800)
    assert any("tested first, on 800 questions" in one for one in certificate.assumptions)
    most = np.flatnonzero(binom.cdf(np.arange(801), 800, 0.05) <= 0.1)[-1]
    level = 0.1 - binom.cdf(most, 800, 0.05)
    sample = sample_of(telling(800).take(np.isin(telling(800).questions, found.artifact.questions)), found.policy)
    lost = [int(Regret().served(sample).at(one).loss.sum()) for one in every_threshold(sample.levels)]
    passed = binom.cdf(lost, 560, 0.05) <= level
    last = int(passed.argmin()) - 1 if not passed.all() else len(lost) - 1
    assert certificate.kappa == every_threshold(sample.levels)[last].kappa
    (named,) = [one for one in found.choice.judged if one.name == "threshold on reply_mean_logprob"]
    assert not named.chosen
    assert named.why.startswith("certified at ")


def test_verify_knows_at_which_level_the_threshold_was_tested(tmp_path: Path) -> None:
    artifact = learned().artifact
    write(tmp_path / "made", artifact)
    assert verify(tmp_path / "made", [telling(800)]).ok
    write(tmp_path / "all of delta", replace(artifact, asked=REGRET))
    verdict = verify(tmp_path / "all of delta", [telling(800)])
    assert [check.name for check in verdict.checks if not check.ok] == ["threshold"]


def test_a_named_score_that_is_right_stays_at_its_own_threshold() -> None:
    """To test another policy beside it takes nothing from it: the first test spends what it spent alone."""
    table = ladder(800, **PAIR)
    both, alone = fit(table), fit(table, method="threshold")
    assert both.artifact.certificates == alone.artifact.certificates
    assert any(note.startswith("purchases was tested too, on 560 questions: ") for note in both.notes)
    assert not any(note.startswith("purchases") for note in alone.notes)


@pytest.mark.parametrize("n", [40, 60])
def test_too_few_questions_for_a_second_test_leave_the_first_alone(n: int) -> None:
    found = fit(ladder(n, **PAIR))
    assert [one.method for one in found.choice.judged if one.method == "purchases"] == []


def test_where_neither_of_the_two_tells_anything_their_promise_is_kept() -> None:
    """Both thresholds are luck, and the luckier is served. `tests/long` has the same over a thousand logs."""
    world, broken = telling(5_000, tells=False, seed=99), []
    for seed in range(20):
        found = fit(telling(300, tells=False, seed=seed))
        served = play_policy(world, found.artifact.calibrated(found.policy)).right
        broken.append(float(((1 - served) * reference_right(world)).mean()) > 0.05)
    assert np.mean(broken) <= 0.1 + 3 * (0.1 * 0.9 / 20) ** 0.5


def test_a_large_log_of_a_pair_is_learned_from_and_a_small_ladder_is_not() -> None:
    assert fit(ladder(2_400, **PAIR)).sizes.training > 0
    assert named_score(ladder(100, (0.5, 0.7, 0.9), (10, 100, 1_000)), REGRET) is not None
    assert named_score(ladder(600, (0.5, 0.7, 0.9), (10, 100, 1_000)), REGRET) is None


def test_a_pair_without_a_signal_is_judged_by_the_length_of_its_answers() -> None:
    bare = replace(ladder(300, **PAIR), signals={}, tokens=np.ones((300, 2)))
    named = named_score(bare, REGRET)
    assert named is not None
    assert named.name == "threshold on tokens_so_far"
    assert named_score(replace(bare, tokens=np.full((300, 2), np.nan)), REGRET) is None


def test_seven_tenths_certify_and_the_others_never_do() -> None:
    found = fitted(four)
    assert round(found.sizes.calibration / four().n, 2) == REGRET_SHARE
    assert not set(found.artifact.questions) & set(found.artifact.seen.all)
    same = fit(four().take(np.random.default_rng(1).permutation(four().n)))
    assert same.artifact.policy_sha256 == found.artifact.policy_sha256


@pytest.mark.parametrize("seed", range(3))
def test_a_share_that_allows_no_loss_is_not_taken_for_one_that_allows_alpha(seed: int) -> None:
    """75 questions certify 5 % only if none is lost; `fit` compared that share at a loss of 5 %, and took it."""
    table = ladder(300, **PAIR, seed=seed)
    unknown = replace(table, signals={"of_no_known_kind": table.signals["reply_mean_logprob"]})
    found = fit(unknown)
    assert most_losses(found.sizes.calibration, 0.05, 0.1)
    assert (found.calibrated.realised.cost_nano_usd or 1_000) < 0.8 * 1_000


def test_what_the_certifying_questions_hold_changes_no_policy() -> None:
    """The share, the steps, the scores: all come from questions that certify nothing."""
    table, found = four(), fitted(four)
    certify = np.isin(np.array(table.questions), np.array(found.artifact.questions))
    flipped = np.where(certify[:, None, None], ~table.arrays.correct, table.arrays.correct)
    arrays = replace(table.arrays, correct=flipped)
    last = replace(table.walks[LAST_ONLY], right=flipped[:, -1, 0], covered=flipped[:, -1, 0])
    other = fit(replace(table, arrays=arrays, walks={LAST_ONLY: last}))
    if other.policy.method != "reference":
        assert other.artifact.files == found.artifact.files


# --- ladders


def test_running_every_step_of_a_ladder_has_no_regret() -> None:
    """0.5.0 served what most models gave: 7 to 8 % regret on real ladders of five, so that 5 % was refused."""
    table = ladder(600, (0.3, 0.4, 0.5, 0.9), (10, 20, 40, 1_000))
    found = fit(table, calibration_share=0.5)
    if found.policy.takes is None:
        sample = sample_of(table, found.policy)
        strictest = Regret().served(sample).at(every_threshold(sample.levels)[0])
        assert not strictest.loss.any()
    assert found.refused is None


def test_the_references_own_text_is_served_though_another_text_counts_as_the_same_answer() -> None:
    """Texts that differ in a blank or a capital count as one answer, and one of them alone may be right."""
    table = ladder(400, **PAIR)
    same = table.arrays.answer.copy()
    same[:, 1] = same[:, 0]
    table = replace(table, arrays=replace(table.arrays, answer=same))
    policy = plain_threshold(table, "reply_mean_logprob", -1.0, Regret())
    sample = sample_of(table, policy)
    assert not Regret().served(sample).at(every_threshold(sample.levels)[0]).loss.any()


def test_models_that_cost_more_than_they_save_are_left_out() -> None:
    found = fitted(wasteful)
    assert found.policy.takes is not None
    assert found.policy.takes.steps[-1] == 4
    assert 3 not in found.policy.takes.steps
    whole = fit_policy([wasteful()], REGRET, method="depth")
    assert found.calibrated.realised.cost_nano_usd < whole.calibrated.realised.cost_nano_usd


@pytest.mark.parametrize("steps", [(1, 3), (2, 3), (3,), (1, 2, 3)])
def test_a_log_of_some_steps_is_the_log_that_these_would_have_made(steps: tuple[int, ...]) -> None:
    """Every number, against the log made from the same draws with the other models left out."""
    rng = np.random.default_rng(3)
    table = ladder(50, (0.4, 0.6, 0.9), (10, 100, 1_000))
    cut = rng.integers(1, 4, size=50)
    arrays = table.arrays
    held = np.arange(3) < cut[:, None]
    arrays = StepArrays(
        np.where(held[:, :, None], arrays.answer, -1),
        arrays.correct & held[:, :, None],
        np.where(held, arrays.cost, 0),
        cut,
        cut == 3,
    )
    only = arrays.only(steps)
    for row in range(50):
        kept = [step - 1 for step in steps if step <= cut[row]]
        assert only.steps[row] == max(len(kept), 1)
        assert only.complete[row] == (len(kept) == len(steps))
        assert only.cost[row, : len(kept)].tolist() == arrays.cost[row, kept].tolist()
        was, now = arrays.answer[row, kept, 0], only.answer[row, : len(kept), 0]
        assert (was[:, None] == was).tolist() == (now[:, None] == now).tolist()
        assert (now < len(steps)).all()


def test_agreement_with_earlier_answers_counts_those_that_remain() -> None:
    answer = np.array([[[0], [1], [0]]])
    arrays = StepArrays(answer, answer == 0, np.ones((1, 3), dtype=np.int64), np.array([3]), np.array([True]))
    table = ladder(1, (0.4, 0.6, 0.9), (10, 100, 1_000))
    signals = {"agrees_with_earlier": np.array([[np.nan, 0.0, 0.5]])}
    some = replace(table, arrays=arrays, signals=signals).only((1, 3))
    assert some.signals["agrees_with_earlier"].tolist()[0][1] == 1.0


def test_a_small_ladder_serves_its_last_answer_and_tests_every_threshold() -> None:
    """Nothing is learned from 80 questions, and the policy still ranks the newest answer first."""
    table = ladder(80, (0.3, 0.4, 0.5, 0.9), (10, 20, 40, 1_000))
    found = fit(table, Guarantee("regret", 0.1, 0.1))
    assert (found.sizes.training, found.sizes.calibration) == (0, 80)
    if found.policy.takes is None:
        sample = sample_of(table, found.policy)
        assert Regret().strict_first(sample.table, REGRET)
        assert not Regret().served(sample).at(every_threshold(sample.levels)[0]).loss.any()


def test_questions_without_the_references_answer_are_said_wherever_the_promise_is() -> None:
    """They are no part of the promise, and may be the hard ones: a certificate that does not say so is misread."""
    table = ladder(400, **PAIR)
    known = np.arange(400) >= 82
    walk = replace(table.walks[LAST_ONLY], known=known)
    found = fit(replace(table, walks={LAST_ONLY: walk}))
    said = "82 questions of the log are left out, because the log lacks the reference's answer there"
    assert found.sizes.calibration == 318
    assert any(note.startswith(said) for note in found.notes)
    assert any(one.startswith(said) for one in found.artifact.certificates[0].assumptions)


def test_a_reference_that_costs_nothing_is_no_error() -> None:
    """Local models have no price."""
    free = fit(ladder(200, (0.75, 0.9), (0, 0)))
    assert free.artifact.certificates


# --- the reference alone


def test_where_nothing_cheaper_is_certified_the_reference_serves(tmp_path: Path) -> None:
    """0.5.0 ended with 3, although to ask the guide alone has regret 0."""
    useless = ladder(400, (0.05, 0.9), (900, 1_000), blind=(0,))
    found = fit(useless)
    assert found.policy.takes == Takes(reference=True)
    assert any(note.startswith("no saving certified") for note in found.notes)
    assert found.calibrated.realised.cost_nano_usd == 1_000
    (certificate,) = found.artifact.certificates
    assert certificate.kind == "regret"
    write(tmp_path, found.artifact)
    verdict = verify(tmp_path, [useless])
    assert verdict.ok, verdict


def test_too_few_questions_say_how_many_would_do() -> None:
    found = fit(ladder(20, **PAIR))
    assert found.policy.method == "reference"
    assert found.refused is not None
    assert found.refused.needed_n is not None


def live(
    found: Fitted, folder: Path, script: Any, models: tuple[str, ...], **more: Any
) -> tuple[Orchestrator, FakeProvider]:
    write(folder, found.artifact)
    provider = FakeProvider(script)
    config = {
        "models": {name: name for name in models},
        "strategy": {"kind": "ladder", "models": list(models)},
        "provider": "fake",
        "policy": str(folder),
        **more,
    }
    return Orchestrator.from_config(config, providers={"fake": provider}), provider


def test_the_reference_alone_is_asked_live(tmp_path: Path) -> None:
    found = fit(ladder(400, (0.05, 0.9), (900, 1_000), blind=(0,)))
    asked: list[str] = []

    def script(request: Request) -> Any:
        asked.append(request.model)
        return reply(f"Answer: {request.model}")

    audited = {"audit": {"probability": 1, "seed": 1}, "required": True}
    orchestrator, _ = live(found, tmp_path, script, ("large", "huge"), guarantee=audited)
    with orchestrator:
        answer = orchestrator.ask("which?")
        assert (answer.text, asked) == ("huge", ["huge"])
        assert answer.certificate is not None
        told = orchestrator.record_outcome(answer, "another")
        assert (told.missed, told.counted) == (False, True)


def test_a_ladder_without_some_models_asks_the_others_live(tmp_path: Path) -> None:
    """Live = offline: a question stops where its log-prob says, and the model left out is never asked."""
    table, found = wasteful(), fitted(wasteful)
    takes = found.policy.takes
    assert takes is not None
    sample = sample_of(table, found.policy)
    (certificate,) = found.artifact.certificates
    left_out = {name for step, name in enumerate(MODELS, 1) if step not in takes.steps}
    for row in range(25):
        asked: list[str] = []

        def script(request: Request, row: int = row, asked: list[str] = asked) -> Any:
            asked.append(request.model)
            at = MODELS.index(request.model)
            logprob = float(table.signals["reply_mean_logprob"][row, at])
            return reply(f"{table.arrays.answer[row, at, 0]}", logprobs=[logprob])

        orchestrator, _ = live(found, tmp_path, script, MODELS)
        with orchestrator:
            answer = orchestrator.ask("which?")
        assert not left_out & set(asked)
        stops = sample.scores.next[row] < certificate.kappa
        expected = int(np.flatnonzero(stops)[0]) + 1 if stops.any() else len(takes.steps)
        assert len(asked) == expected
        assert answer.certificate is not None, answer.warnings


def test_a_policy_of_some_steps_is_refused_by_another_ladder(tmp_path: Path) -> None:
    found = fitted(wasteful)
    with pytest.raises(ConfigError, match=r"policy\.takes: the policy takes steps .* of a ladder of 4 models"):
        live(found, tmp_path, {}, MODELS[-2:])
    assert read_policy(tmp_path).policy.takes == found.policy.takes  # type: ignore[attr-defined]


# --- the promise


def broken_of(
    right: tuple[float, ...], cost: tuple[int, ...], scale: tuple[float, ...], seeds: range
) -> tuple[int, int]:
    """Return how many of the certified logs of 250 questions break an alpha of 8 % on 20,000 others, and their number."""
    fresh = ladder(20_000, right, cost, seed=10**6, scale=scale)
    broken = trials = 0
    for seed in seeds:
        table = ladder(250, right, cost, seed=seed, scale=scale)
        found = fit(table, Guarantee("regret", 0.08, 0.1), seed=seed)
        sample = sample_of(fresh, found.policy)
        (certificate,) = found.artifact.certificates
        if found.policy.method != "reference":
            assert Regret().strict_first(sample.table, REGRET)
            lost = Regret().served(sample).at(PathPoint(certificate.kappa)).loss
            broken, trials = broken + int(lost.mean() > 0.08), trials + 1
    return broken, trials


@pytest.mark.long
@pytest.mark.parametrize(
    "world",
    [
        ((0.75, 0.9), (100, 1_000), (1.0, 1.0)),
        ((0.55, 0.75, 0.9), (20, 150, 1_000), (1.0, 3.0, 1.0)),
        ((0.3, 0.72, 0.74, 0.9), (100, 120, 900, 1_000), (1.0, 0.3, 2.0, 1.0)),
    ],
)
def test_the_promise_holds_with_the_whole_fit_in_each_calibration(world: Any) -> None:
    """With delta .1 at most 10 % + 3 standard errors of the certified policies have a risk above alpha.

    Shares and steps are chosen anew each time, and certify nothing.
    """
    broken, trials = broken_of(*world, range(1_000, 1_200))
    assert trials > 100
    assert broken <= 0.1 * trials + 3 * np.sqrt(trials * 0.09)


def test_a_log_ends_in_the_reference_where_the_last_answer_is_the_references() -> None:
    table = ladder(30, **PAIR)
    assert ends_in_reference(table)
    guide = {"guide only": table.walks[LAST_ONLY]}
    assert ends_in_reference(replace(table, walks=guide))
    other = replace(table.walks[LAST_ONLY], right=~table.walks[LAST_ONLY].right)
    assert not ends_in_reference(replace(table, walks={"guide only": other}))
    assert not ends_in_reference(replace(table, walks={}))
