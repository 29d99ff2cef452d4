"""A simulated world: questions whose whole truth is known, drawn from a model of a base, a guide and their rounds.

A question has a difficulty that base and guide share. Each model also has its own ability on a question, which is the
same in all rounds, and luck, which is drawn again in every round. The model is right if the sum passes a threshold (a
probit model). In later rounds the base adopts the guide's suggestion, repeats its answer or tries again. The guide's
verdict errs more on hard questions. After a "yes" the guide's answer is the base's; after a "no" it is a correction.

`WORLDS` has data sets of a base model each, with GPT-4o as the guide: "hotpotqa/llama-2-7b", "hotpotqa/llama-3.2-3b",
"mmlu/llama-2-7b", "mmlu/llama-3.2-3b", fitted to published tables; `design/paper.md` says what the tables determine,
what is assumed, and what they can and cannot match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cascade.money import PICO_PER_NANO, Price
from cascade.table import Baseline, Bools, Floats, Ints, Log, Node, Reference
from cascade.types import GUIDE_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The parameters of a simulated world. Shares and rates are from 0 to 1, tokens are means, prices are list prices.

    Attributes:
        name: the name of its data set in a table.
        rounds: T, how many rounds every question takes.
        hopeless: share of questions on which no model is ever right.
        base_accuracy, guide_accuracy: how often a fresh answer of the base, a fresh correction of the guide, is right
            on the other questions.
        base_difficulty, guide_difficulty: share of the variance of being right that both models have in common.
        base_persistence, guide_persistence: share of it that is a model's own and lasts through the rounds.
        base_repeats: how often the base gives its last answer again.
        guide_repeats: how often the guide, asked again, gives the same correction as in the round before.
        base_adopts: how often it gives the answer that the guide suggested; after a yes, this is its own answer.
        false_no, false_yes: how often the guide rejects a right answer, accepts a wrong one, on a question of average
            difficulty.
        verdict_difficulty: how fast both grow with difficulty, in probits per standard deviation.
        verdict_persistence: share of the variance of the verdict that is the question's own.
        informativeness: the tables do not determine it, so reports must name the one used: correlation of the guide's sureness (how far `p_yes` is from one half) with being right on an
            easy question; the base's log-probs and reply length have half of it. 0 = noise, 1 = no noise.
        wrong_answers: how many wrong answers a question has, 2 or more; 3 for multiple choice.
        wrong_zipf: how much the wrong answers differ in popularity: the k-th is chosen in proportion to k^−this.
        prompt_tokens: the fixed part of a prompt.
        question_tokens, question_spread: the question's tokens, and the standard deviation of their logarithm.
        shown_tokens, shown_growth: tokens of the base's reply that the guide is shown in round 1, and how many more in
            each later round.
        reply_tokens: tokens of the base's reply.
        answer_tokens: tokens of the guide's correction; a bare yes or no is one.
        base_price, guide_price: USD per million tokens, (input, output).
        alone_accuracy: how often the guide is right on a question that is not hopeless when it answers outright.
        alone_cost_usd: what one such answer costs.
        exit_base_rounds, exit_guide_rounds: the mean number of rounds if each model answers alone and decides when to
            stop.
    """

    name: str
    rounds: int = 4
    hopeless: float
    base_accuracy: float
    guide_accuracy: float
    base_difficulty: float = 0.35
    guide_difficulty: float = 0.15
    base_persistence: float = 0.25
    guide_persistence: float = 0.05
    base_repeats: float = 0.4
    base_adopts: float
    guide_repeats: float
    false_no: float
    false_yes: float
    verdict_difficulty: float = 0.3
    verdict_persistence: float = 0.3
    informativeness: float = 0.45
    wrong_answers: int
    wrong_zipf: float
    prompt_tokens: int
    question_tokens: float
    question_spread: float
    shown_tokens: float
    shown_growth: float
    reply_tokens: float
    answer_tokens: float
    base_price: tuple[float, float] = (0.0, 0.0)
    guide_price: tuple[float, float] = (2.5, 10.0)
    alone_accuracy: float
    alone_cost_usd: float
    exit_base_rounds: float
    exit_guide_rounds: float


HOTPOTQA = World(
    name="hotpotqa",
    hopeless=0.05,
    base_accuracy=0.2,
    guide_accuracy=0.8,
    base_adopts=0.1,
    guide_repeats=0.5,
    false_no=0.08,
    false_yes=0.05,
    wrong_answers=12,
    wrong_zipf=1.0,
    prompt_tokens=53,
    question_tokens=20.2,
    question_spread=0.32,
    shown_tokens=4.0,
    shown_growth=1.0,
    reply_tokens=120.0,
    answer_tokens=3.9,
    alone_accuracy=0.7,
    alone_cost_usd=0.0173,
    exit_base_rounds=2.55,
    exit_guide_rounds=2.39,
)
"""Where the fit of the HotpotQA worlds starts, and what it leaves as it is.

Counted with the cl100k vocabulary: 46 tokens of the printed prompt of the guide and 7 of a chat message's frame; 20.2
of a question and 3.9 of a gold answer (500 questions). From the tables: GPT-4o answering alone costs 827.0 cents in
2.39 rounds of 200 questions. Assumed: the length of a reply, the pool of wrong answers, the verdict's error rates.
"""
MMLU = replace(
    HOTPOTQA,
    name="mmlu",
    hopeless=0.01,
    wrong_answers=3,
    wrong_zipf=0.7,
    question_tokens=89.7,
    question_spread=0.606,
    shown_tokens=2.0,
    shown_growth=15.0,
    reply_tokens=150.0,
    answer_tokens=1.0,
    alone_cost_usd=0.003763,
    exit_guide_rounds=1.39,
)
"""The same for MMLU: 89.7 tokens of a question with its four choices, one of an answer (570 questions); 104.6 cents."""

_FIRST: Mapping[str, Mapping[str, float]] = {
    "hotpotqa/llama-2-7b": {
        "exit_base_rounds": 2.55,
        "base_adopts": 0.1,
        "hopeless": 0.05,
        "base_accuracy": 0.152,
        "guide_accuracy": 0.747,
        "guide_repeats": 0.629,
        "alone_accuracy": 0.738,
        "shown_tokens": 3.3,
        "shown_growth": 1.0,
    },
    "hotpotqa/llama-3.2-3b": {
        "exit_base_rounds": 4.0,
        "base_adopts": 0.1,
        "hopeless": 0.05,
        "base_accuracy": 0.224,
        "guide_accuracy": 0.742,
        "guide_repeats": 0.617,
        "alone_accuracy": 0.741,
        "shown_tokens": 1.5,
        "shown_growth": 1.0,
    },
    "mmlu/llama-2-7b": {
        "exit_base_rounds": 3.14,
        "base_adopts": 0.1,
        "hopeless": 0.01,
        "base_accuracy": 0.0829,
        "guide_accuracy": 0.754,
        "guide_repeats": 0.858,
        "alone_accuracy": 0.922,
        "shown_tokens": 1.21,
        "shown_growth": 37.1,
        "false_no": 0.499,
    },
    "mmlu/llama-3.2-3b": {
        "exit_base_rounds": 3.97,
        "base_adopts": 0.1,
        "hopeless": 0.01,
        "base_accuracy": 0.111,
        "guide_accuracy": 0.615,
        "guide_repeats": 0.73,
        "alone_accuracy": 0.915,
        "shown_tokens": 4.23,
        "shown_growth": 16.1,
    },
}


WORLDS = MappingProxyType(
    {
        name: replace(HOTPOTQA if name.startswith("hotpotqa") else MMLU, name=f"{name} (simulated)", **values)  # type: ignore[arg-type]
        for name, values in _FIRST.items()
    }
)
"""Fitted values over the assumed ones. First reading: after a yes the guide's answer is the base's, for Random too."""

SOURCES = ("base", "guide")
RIGHT = 0
"""The right answer's number while a question is made; wrong ones are 1, 2, … The table renumbers them."""
_TOKEN_SPREAD = 0.3
"""Standard deviation of the logarithm of a reply's length; 0.32 is measured for HotpotQA's questions."""
_NORMAL = NormalDist()


class _Normals(NamedTuple):
    """Standard normal draws. The first five hold for a question: (n,); the others for one round: (T, n)."""

    difficulty: Floats
    question_tokens: Floats
    base_own: Floats
    guide_own: Floats
    verdict_own: Floats
    base: Floats
    guide: Floats
    verdict: Floats
    base_alone: Floats
    guide_alone: Floats
    sureness: Floats
    logprob: Floats
    answer_logprob: Floats
    reply: Floats
    mass: Floats
    shown: Floats
    corrected: Floats


class _Uniforms(NamedTuple):
    """Draws from [0, 1). The first holds for a question: (n,); the others for one round: (T, n)."""

    hopeless: Floats
    turn: Floats
    guide_turn: Floats
    base_wrong: Floats
    guide_wrong: Floats
    alone_turn: Floats
    base_alone_wrong: Floats
    guide_alone_wrong: Floats
    base_goes_on: Floats
    guide_goes_on: Floats


class _Draws(NamedTuple):
    """All random draws of a world. Their number and order do not depend on its parameters.

    So two worlds under one seed share their draws, and their figures differ only because of the parameters.
    """

    normal: _Normals
    uniform: _Uniforms


class _Rounds(NamedTuple):
    """The models' outputs: answers as int64 (T, n), `RIGHT` or a wrong answer's number; verdicts as bool (T, n)."""

    base: Ints
    guide: Ints
    says_yes: Bools


def simulated_log(world: World, n: int, seed: int) -> Log:
    """Draw questions with all their rounds: a node for each call, what a round costs and shows at its last.

    The same world, n and seed give the same log, bit by bit. Answers are numbered in the order of their first
    appearance, so that a number does not reveal the truth. The reference is the guide alone; baselines are the models
    that decide when to stop. Signals of the real strategy that the log lacks are not simulated.
    """
    draws = _draw(world, n, seed)
    rounds = _play(world, draws)
    answers = np.stack([rounds.base.T, rounds.guide.T], axis=2)
    cost, tokens = _paid(world, draws, rounds)
    signals, shape = _signals(world, draws, rounds), (n, 2 * world.rounds)

    def at_last(values: Floats) -> Floats:
        spread = np.full(shape, np.nan)
        spread[:, 1::2] = values
        return spread

    paid = np.zeros(shape, dtype=np.int64)
    paid[:, 1::2] = cost
    ways = _walks(world, draws, rounds)
    alone = ways.pop(GUIDE_ONLY)
    ids = tuple([f"{seed}-{number}" for number in range(n)])
    return Log(
        world.name,
        tuple([Node(f"round {at + 1} {source}", at) for at in range(world.rounds) for source in SOURCES]),
        ids, ids, _renumber(answers).reshape(shape), (answers == RIGHT).reshape(shape).astype(np.float64), paid,
        np.ones(shape, dtype=np.bool_), np.ones(n, dtype=np.bool_), _confidence(signals).reshape(shape),
        signals={name: at_last(values) for name, values in {**signals, "reply_tokens": tokens}.items()},
        reference=Reference(alone.right, alone.cost_nano_usd, is_last=False),
        baselines=ways,
    )  # fmt: skip


def _draw(world: World, n: int, seed: int) -> _Draws:
    random = np.random.default_rng(seed)
    shape = (world.rounds, n)
    lasting = [random.standard_normal(n) for _ in range(5)]
    normals = _Normals(*lasting, *(random.standard_normal(shape) for _ in _Normals._fields[5:]))
    hopeless = random.random(n)
    return _Draws(normals, _Uniforms(hopeless, *(random.random(shape) for _ in _Uniforms._fields[1:])))


# --- which answers are right


def _play(world: World, draws: _Draws) -> _Rounds:
    """Play all rounds in order, since a round of the base depends on the one before."""
    base_right, guide_right, _ = _fresh_rights(world, draws)
    wrong = _WrongAnswers(world)
    in_mind = _lasting(draws.uniform.guide_wrong, draws.uniform.guide_turn < world.guide_repeats)
    base: list[Ints] = []
    guide: list[Ints] = []
    verdicts: list[Bools] = []
    for t in range(world.rounds):
        fresh = np.where(base_right[t], RIGHT, wrong.draw(draws.uniform.base_wrong[t]))
        answer = fresh if t == 0 else _again(world, draws.uniform.turn[t], fresh, base[-1], guide[-1])
        says_yes = _verdict(world, draws, t, answer == RIGHT)
        correction = wrong.draw(in_mind[t], excluded=answer)
        corrected = np.where(guide_right[t] & (answer != RIGHT), RIGHT, correction)
        base.append(answer)
        guide.append(np.where(says_yes, answer, corrected))
        verdicts.append(says_yes)
    return _Rounds(np.array(base), np.array(guide), np.array(verdicts))


def _again(world: World, turn: Floats, fresh: Ints, own: Ints, suggested: Ints) -> Ints:
    """Return the base's next answer: the suggested one, its own once more, or a fresh one."""
    adopted = np.where(turn < world.base_adopts, suggested, own)
    return np.where(turn < world.base_adopts + world.base_repeats, adopted, fresh)


def _fresh_rights(world: World, draws: _Draws) -> tuple[Bools, Bools, Bools]:
    """Return whether a fresh answer of the base, a correction of the guide and its outright answer are right."""
    normal = draws.normal
    hopeful = draws.uniform.hopeless >= world.hopeless
    base = _ability(normal.difficulty, normal.base_own, normal.base, world.base_difficulty, world.base_persistence)
    shares = world.guide_difficulty, world.guide_persistence
    luck = _lasting(normal.guide, draws.uniform.guide_turn < world.guide_repeats)
    guide = _ability(normal.difficulty, normal.guide_own, luck, *shares)
    alone = _ability(normal.difficulty, normal.guide_own, normal.guide_alone, *shares)
    return (
        (base > _threshold(world.base_accuracy)) & hopeful,
        (guide > _threshold(world.guide_accuracy)) & hopeful,
        (alone > _threshold(world.alone_accuracy)) & hopeful,
    )


def _lasting(fresh: Floats, repeats: Bools) -> Floats:
    """Return draws (T, n); a draw that repeats equals the draw of the round before."""
    drawn = [fresh[0]]
    for t in range(1, fresh.shape[0]):
        drawn.append(np.where(repeats[t], drawn[-1], fresh[t]))
    return np.array(drawn)


def _ability(difficulty: Floats, own: Floats, luck: Floats, shared: float, persistent: float) -> Floats:
    """Return a standard normal variable (T, n): difficulty, the lasting part, and the round's own luck."""
    fresh = max(0.0, 1.0 - shared - persistent)
    return np.asarray(fresh**0.5 * luck - shared**0.5 * difficulty + persistent**0.5 * own)


def _threshold(share: float) -> float:
    """Return the value that a standard normal variable exceeds with this probability."""
    return _NORMAL.inv_cdf(1.0 - share)


def _verdict(world: World, draws: _Draws, t: int, right: Bools) -> Bools:
    """Return whether the guide says yes: an inclination to agree against a bar that is lower for a right answer."""
    lasting = world.verdict_persistence
    inclination = lasting**0.5 * draws.normal.verdict_own + (1.0 - lasting) ** 0.5 * draws.normal.verdict[t]
    harder = world.verdict_difficulty * draws.normal.difficulty
    bar_if_right = _NORMAL.inv_cdf(world.false_no) + harder
    bar_if_wrong = -_NORMAL.inv_cdf(world.false_yes) - harder
    return np.asarray(inclination > np.where(right, bar_if_right, bar_if_wrong))


class _WrongAnswers:
    """The wrong answers of a question, 1..K, the k-th chosen in proportion to k^−zipf by base and guide alike.

    So the models often share the tempting wrong answers, as real models do.
    """

    def __init__(self, world: World) -> None:
        weights = np.arange(1, world.wrong_answers + 1, dtype=np.float64) ** -world.wrong_zipf
        self.ends = np.cumsum(weights / weights.sum())

    def draw(self, uniform: Floats, excluded: Ints | None = None) -> Ints:
        """Return a wrong answer for each uniform draw, none that is `excluded` (`RIGHT` excludes nothing)."""
        at = uniform
        if excluded is not None:
            ends = np.concatenate([[0.0, 0.0], self.ends])  # of no wrong answer, of the right one, of wrong 1, 2, …
            start, weight = ends[excluded], ends[excluded + 1] - ends[excluded]
            at = uniform * (1.0 - weight)
            at = np.where(at >= start, at + weight, at)
        return np.minimum(np.searchsorted(self.ends, at, side="right") + 1, self.ends.size).astype(np.int64)


def _renumber(answers: Ints) -> Ints:
    """Number each question's answers 0, 1, … in the order of their first appearance. int64 (n, T, m) both."""
    flat = answers.reshape(answers.shape[0], -1)
    width = flat.shape[1]
    first = np.argmax(flat[:, :, None] == flat[:, None, :], axis=2)  # where each place's answer was first given
    new = first == np.arange(width)
    return np.asarray(np.take_along_axis(np.cumsum(new, axis=1) - 1, first, axis=1).reshape(answers.shape))


# --- costs


def _paid(world: World, draws: _Draws, rounds: _Rounds) -> tuple[Ints, Floats]:
    """Return (n, T) the cost of each round, nano-USD rounded up once a round, and the tokens in and out."""
    question = _tokens(world.question_tokens, world.question_spread, draws.normal.question_tokens)
    number = np.arange(world.rounds, dtype=np.float64)[:, None]
    shown = _tokens(world.shown_tokens + number * world.shown_growth, _TOKEN_SPREAD, draws.normal.shown)
    corrected = _tokens(world.answer_tokens, _TOKEN_SPREAD, draws.normal.corrected)
    verdict = 1 + np.where(rounds.says_yes, 0, corrected)
    reply = _replies(world, draws)
    history = np.cumsum(reply + verdict, axis=0) - reply - verdict  # the base's context has every earlier round
    prompts = world.prompt_tokens + question + history, world.prompt_tokens + question + shown
    base, guide = _price(world.base_price), _price(world.guide_price)
    pico = prompts[0] * base.input + reply * base.output + prompts[1] * guide.input + verdict * guide.output
    tokens = prompts[0] + reply + prompts[1] + verdict
    return np.asarray((-(-pico // PICO_PER_NANO)).T, dtype=np.int64), np.ascontiguousarray(tokens.T, dtype=np.float64)


def _tokens(mean: float | Floats, spread: float, normal: Floats) -> Ints:
    """Return log-normal token counts of this mean, at least 1."""
    drawn = np.rint(mean * np.exp(spread * normal - spread**2 / 2))
    return np.asarray(np.maximum(drawn, 1), dtype=np.int64)


def _replies(world: World, draws: _Draws) -> Ints:
    """Return the tokens of the base's replies, (T, n): longer on hard questions."""
    known = world.informativeness / 2
    mixed = known * draws.normal.difficulty + (1.0 - known**2) ** 0.5 * draws.normal.reply
    return _tokens(world.reply_tokens, _TOKEN_SPREAD, mixed)


def _price(usd_per_million: tuple[float, float]) -> Price:
    return Price.per_million(input=usd_per_million[0], output=usd_per_million[1])


# --- signals


def _signals(world: World, draws: _Draws, rounds: _Rounds) -> dict[str, Floats]:
    """Return the signals, (n, T) each, under the names of the base-guide strategy."""
    normal, rho = draws.normal, world.informativeness
    sure = _informed(rho, rounds.guide == RIGHT, normal.difficulty, normal.sureness)
    odds = np.exp(
        0.9 + 0.5 * sure
    )  # |logit p_yes|: 2.5 in the median, so p is .92 or .08; 1.1 and 5.5 at the 5 % tails
    base_right = rounds.base == RIGHT
    known = _informed(rho / 2, base_right, normal.difficulty, normal.answer_logprob)
    fluent = _informed(rho / 2, base_right, normal.difficulty, normal.logprob)
    by_round = {
        "p_yes": 1.0 / (1.0 + np.exp(np.where(rounds.says_yes, -odds, odds))),
        "verdict_mass": 1.0 - np.minimum(0.5, np.exp(normal.mass - 5.0)),
        "reply_tokens": _replies(world, draws),
        "reply_mean_logprob": -np.exp(-1.0 - 0.4 * fluent),
        "answer_mean_logprob": -np.exp(-1.5 - 0.7 * known),
        "agrees_with_earlier": _agreement(rounds.base),
        "guide_agrees": rounds.guide == rounds.base,
    }
    return {name: np.ascontiguousarray(values.T, dtype=np.float64) for name, values in by_round.items()}


def _informed(rho: float, right: Bools, difficulty: Floats, noise: Floats) -> Floats:
    """Return a number whose correlation with being right on an easy question is about rho."""
    truth = 0.5**0.5 * (np.where(right, 1.0, -1.0) - difficulty)
    return np.asarray(rho * truth + (1.0 - rho**2) ** 0.5 * noise)


def _agreement(base: Ints) -> Floats:
    """Return the share of the base's earlier answers that are the same, (T, n); NaN in round 1."""
    shares = [np.full(base.shape[1], np.nan)]
    shares += [(base[:t] == base[t]).mean(axis=0) for t in range(1, base.shape[0])]
    return np.array(shares)


def _confidence(signals: Mapping[str, Floats]) -> Floats:
    """Return (n, T, 2): P(yes) for the base's answer, and for the guide's if it is the same, else P(no)."""
    p_yes = signals["p_yes"]
    return np.stack([p_yes, np.where(signals["guide_agrees"] == 1.0, p_yes, 1.0 - p_yes)], axis=2)


# --- other methods


def _walks(world: World, draws: _Draws, rounds: _Rounds) -> dict[str, Baseline]:
    """Return the guide alone, and each model answering alone until it decides to stop."""
    wrong, uniform = _WrongAnswers(world), draws.uniform
    _, _, guide_right = _fresh_rights(world, draws)
    guide = np.where(guide_right, RIGHT, wrong.draw(uniform.guide_alone_wrong))
    base = _base_alone(world, draws, rounds.base[0])
    spread = _tokens(world.question_tokens, world.question_spread, draws.normal.question_tokens) / world.question_tokens
    guide_cost = np.tile(np.rint(world.alone_cost_usd * 1e9 * spread).astype(np.int64), (world.rounds, 1))
    once = np.ones(guide.shape[1], dtype=np.int64)
    return {
        GUIDE_ONLY: _walk(guide, once, guide_cost),
        "LLM-exit, guide": _walk(guide, _exits(world.exit_guide_rounds, uniform.guide_goes_on), guide_cost),
        "LLM-exit, base": _walk(base, _exits(world.exit_base_rounds, uniform.base_goes_on), _base_cost(world, draws)),
    }


def _base_cost(world: World, draws: _Draws) -> Ints:
    """Return the cost of each answer of the base alone, nano-USD, int64 (T, n): its context has the earlier ones."""
    question = _tokens(world.question_tokens, world.question_spread, draws.normal.question_tokens)
    reply, price = _replies(world, draws), _price(world.base_price)
    pico = (world.prompt_tokens + question + np.cumsum(reply, axis=0) - reply) * price.input + reply * price.output
    return np.asarray(-(-pico // PICO_PER_NANO), dtype=np.int64)


def _base_alone(world: World, draws: _Draws, first: Ints) -> Ints:
    """Return the base's answers without a guide, (T, n): the first is the one that a guide would have judged."""
    normal, uniform = draws.normal, draws.uniform
    ability = _ability(
        normal.difficulty, normal.base_own, normal.base_alone, world.base_difficulty, world.base_persistence
    )
    right = (ability > _threshold(world.base_accuracy)) & (uniform.hopeless >= world.hopeless)
    fresh = np.where(right, RIGHT, _WrongAnswers(world).draw(uniform.base_alone_wrong))
    answers = [first]
    for t in range(1, world.rounds):
        answers.append(np.where(uniform.alone_turn[t] < world.base_repeats, answers[-1], fresh[t]))
    return np.array(answers)


def _exits(mean_rounds: float, goes_on: Floats) -> Ints:
    """Return how many rounds each question takes if the odds of going on are the same after every round."""
    onward = np.cumprod(goes_on[:-1] < _going_on(mean_rounds, goes_on.shape[0]), axis=0)
    return np.asarray(1 + onward.sum(axis=0), dtype=np.int64)


def _going_on(mean_rounds: float, horizon: int) -> float:
    """Return the q with 1 + q + q² + … + q^(T−1) = mean_rounds, by bisection.

    >>> round(_going_on(1.75, 2), 6), _going_on(4.0, 4)
    (0.75, 1.0)
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = sum(middle**k for k in range(horizon)) < mean_rounds
        low, high = (middle, high) if below else (low, middle)
    return high


def _walk(answers: Ints, length: Ints, cost: Ints) -> Baseline:
    """Return the outcome of keeping the first `length` answers of (T, n), at (T, n) nano-USD; the last is served."""
    horizon, n = answers.shape
    within = np.arange(horizon)[:, None] < length
    return Baseline(
        known=np.ones(n, dtype=np.bool_),
        covered=np.asarray((within & (answers == RIGHT)).any(axis=0)),
        right=(answers[length - 1, np.arange(n)] == RIGHT).astype(np.float64),
        cost_nano_usd=(within * cost).sum(axis=0),
        length=length,
        size=length.copy(),
    )
