"""Parameters of a simulated world, and four sets of them fitted to published tables.

`WORLDS` has data sets of a base model each, with GPT-4o as the guide: "hotpotqa/llama-2-7b", "hotpotqa/llama-3.2-3b",
"mmlu/llama-2-7b", "mmlu/llama-3.2-3b". `benchmarks/fit_worlds.py` prints what stands here, and the same four for a
second reading of the tables (`benchmarks/published/second_reading.py`); `design/simulation.md` says what the tables
determine, what is assumed, and what the two readings are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

LOW, MEDIUM, HIGH = 0.2, 0.45, 0.7
"""Three settings of `World.informativeness`. The tables do not say which is true: state the one used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The parameters of a simulated world. Shares and rates are from 0 to 1, tokens are means, prices are list prices.

    Attributes:
        name: what the table calls its data set.
        rounds: T, how many rounds every question takes.
        hopeless: share of questions on which no model is ever right.
        base_accuracy, guide_accuracy: how often a fresh answer of the base, a fresh correction of the guide, is right
            on the other questions.
        base_difficulty, guide_difficulty: share of the variance of being right that both models have in common.
        base_persistence, guide_persistence: share of it that is a model's own and lasts through the rounds.
        base_repeats: how often the base gives its last answer again.
        guide_repeats: how often the guide, asked again, has the same correction in mind as in the round before.
        base_adopts: how often it gives the answer that the guide suggested; after a yes that is its own.
        false_no, false_yes: how often the guide rejects a right answer, accepts a wrong one, on a question of average
            difficulty.
        verdict_difficulty: how fast both grow with difficulty, in probits per standard deviation.
        verdict_persistence: share of the variance of the verdict that is the question's own.
        informativeness: correlation of the guide's sureness (how far `p_yes` is from one half) with its being right and
            the question being easy; the base's log-probs and reply length have half of it. 0 = noise, 1 = no noise.
        wrong_answers: how many wrong answers a question has, 2 or more; 3 where it is multiple choice.
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
        exit_base_rounds, exit_guide_rounds: rounds that each model takes on average where it answers alone and decides
            when to stop.
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
    informativeness: float = MEDIUM
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


def worlds(fitted: Mapping[str, Mapping[str, float]], said: str) -> Mapping[str, World]:
    """Return the worlds of one reading, fitted values over the assumed ones."""
    found = {}
    for name, values in fitted.items():
        assumed = HOTPOTQA if name.startswith("hotpotqa") else MMLU
        found[name] = replace(assumed, name=f"{name} ({said})", **values)  # type: ignore[arg-type]  # all are floats
    return MappingProxyType(found)


WORLDS = worlds(_FIRST, "simulated")
"""First reading: after a yes the guide's answer is the base's, for Random too."""
