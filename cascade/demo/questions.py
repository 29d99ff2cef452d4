"""The demonstration: learn a policy from a log, then serve it with real models, beside the ways that it replaces.

1. A policy for a ladder (the base, then the guide) is fitted and certified on the log that ships with the package.
2. What the ways to answer did on the log's questions is shown beside it, the guide as a judge among them.
3. The models answer other questions under that policy. The base alone, the guide alone and a ladder with a threshold
   set by hand answer them too. Many of their calls are the same; a `Memo` makes each once, and each way pays for all of
   its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cascade.config import CascadeConfig, load
from cascade.episodes.schema import BASE_ONLY, GUIDE_ONLY
from cascade.guarantees.base import Guarantee
from cascade.matching import exact_match
from cascade.money import total_nano_usd, usd
from cascade.orchestrator import Orchestrator
from cascade.policies.config import DirectoryConfig
from cascade.policies.fixed import FixedConfig
from cascade.policies.threshold import ThresholdConfig
from cascade.providers.base import Provider
from cascade.strategies.ladder import LadderConfig
from cascade.types import Answer, Question

if TYPE_CHECKING:
    from cascade.training.fitting import Fitted

MADE_UP = "made up: local models have no price"
BASE_PRICE = {"input": 0.1, "output": 0.4, "note": MADE_UP}
GUIDE_PRICE = {"input": 1.0, "output": 4.0, "note": MADE_UP}
PAIR = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
TINY = ("smollm2-135m", "smollm2-135m")
ROUNDS = 4
BY_HAND = 0.16
"""Nats per token of the base's reply: read off the log, not off a live question (`benchmarks/ladder_threshold.py`)."""
JUDGING = 0.5
"""The guide's uncertainty in nats from which rounds of base and guide go on."""
PROMISE = Guarantee("regret", 0.15, 0.1)
"""What the fitted ladder promises: chosen on the log, before any live question (`design/demo-log.md`)."""
PICKED = (
    f"Alpha {PROMISE.alpha:g} was picked by looking at this very log. The certificate does not count that "
    "choice; the questions asked below had no part in it."
)
"""What the certificate of the demo leaves out, in words."""
FITTED, HAND_SET, BASE_ALONE, GUIDE_ALONE = "fitted ladder", "ladder, set by hand", "base alone", "guide alone"
JUDGED = f"guide judges, ≤ {ROUNDS} rounds"


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """One question of the demo set, with the answers that count as right."""

    question_id: str
    split: str
    kind: str
    question: Question
    answers: tuple[str, ...]


def demo_questions(split: str | None = None) -> list[DemoQuestion]:
    """Return the demo set: "log" is for logging and fitting, "live" for trying what was fitted."""
    lines = resources.files("cascade.data").joinpath("demo_questions.jsonl").read_text("utf-8").splitlines()
    read = [json.loads(line) for line in lines if line.strip()]
    return [
        DemoQuestion(row["question_id"], row["split"], row["kind"], _question(row), tuple(row["answers"]))
        for row in read
        if split is None or row["split"] == split
    ]


def _question(row: dict[str, str]) -> Question:
    return Question(row["question"], row["context"] or None)


def sample(questions: Sequence[DemoQuestion], count: int, seed: int) -> list[DemoQuestion]:
    """Draw questions, the kinds in the proportion that they have in the set, in an order that mixes them."""
    chance = random.Random(seed)
    shuffled = chance.sample(list(questions), len(questions))
    share = count / len(shuffled)
    by_kind: dict[str, list[DemoQuestion]] = {}
    for question in shuffled:
        by_kind.setdefault(question.kind, []).append(question)
    drawn = [question for group in by_kind.values() for question in group[: int(len(group) * share)]]
    rest = [question for question in shuffled if question not in drawn]
    drawn += rest[: count - len(drawn)]
    return chance.sample(drawn, len(drawn))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question done: what each way to answer brought, by its name, the one that leads first."""

    asked: DemoQuestion
    answers: Mapping[str, Answer]

    def right(self, way: str) -> bool:
        """Whether what a way served answers the question."""
        return is_right(self.asked, self.answers[way])


def is_right(asked: DemoQuestion, answer: Answer) -> bool:
    """Whether the answer served is right; no answer never is."""
    return answer.text is not None and exact_match(answer.text, asked.answers)


@dataclass(frozen=True, slots=True)
class Row:
    """What one way to answer did on some questions: means, and how many questions they are of."""

    way: str
    n: int
    right: float
    cost_usd: Decimal | None
    steps: float


# --- the log ---


def fit_ladder(config: CascadeConfig, seed: int = 0) -> Fitted:
    """Fit and certify a policy for the ladder of base and guide, on the log that ships with the package.

    Raises:
        NotCertifiedError: the log is too small for `PROMISE`.
    """
    from cascade.evaluation.logs import DEMO_LADDER, open_log  # these take long to import
    from cascade.training.fitting import fit_policy

    return fit_policy(open_log(DEMO_LADDER).tables, PROMISE, config=ladder_config(config), seed=seed)


def on_the_log(fitted: Fitted) -> list[Row]:
    """Return what each way to answer did on the log's questions that the policy was not fitted on.

    The fitted ladder comes first. Those questions set its threshold, so its row is no test; the live questions are one.
    """
    import numpy as np

    from cascade.evaluation.evaluate import play_policy
    from cascade.evaluation.logs import DEMO, DEMO_LADDER, open_log
    from cascade.evaluation.methods import means, played_walk
    from cascade.policies.threshold import ThresholdPolicy

    (ladder,), (rounds,) = open_log(DEMO_LADDER).tables, open_log(DEMO).tables
    made = set(fitted.training.ids)
    chosen = np.array([name not in made for name in ladder.ids])
    ladder = ladder.take(chosen)
    place = {name: number for number, name in enumerate(rounds.ids)}
    rounds = rounds.take(np.array([place[name] for name in ladder.ids]))
    played = [
        (FITTED, ladder, play_policy(ladder, fitted.artifact.calibrated(fitted.policy))),
        (BASE_ALONE, rounds, played_walk(rounds, rounds.walks[BASE_ONLY])),
        (GUIDE_ALONE, rounds, played_walk(rounds, rounds.walks[GUIDE_ONLY])),
        (JUDGED, rounds, play_policy(rounds, ThresholdPolicy(JUDGING))),
    ]
    found = [(way, means(table, did)) for way, table, did in played]
    return [
        Row(way, ladder.n, mean.accuracy, None if mean.cost_usd is None else Decimal(mean.cost_usd), mean.avg_length)
        for way, mean in found
    ]


# --- live ---


@contextmanager
def ways(config: CascadeConfig, fitted: Fitted | None, provider: Provider) -> Iterator[dict[str, Orchestrator]]:
    """Make an orchestrator for each way to answer; the first leads: the fitted ladder where there is one.

    The fitted policy's directory is gone at the end.
    """
    from cascade.policies.artifact import write

    with ExitStack() as stack:

        def made(config: CascadeConfig) -> Orchestrator:
            providers = {config.provider.kind: provider}
            return stack.enter_context(Orchestrator.from_config(config, providers=providers))

        found: dict[str, Orchestrator] = {}
        if fitted is not None:
            folder = stack.enter_context(TemporaryDirectory(prefix="cascade-demo-"))
            write(folder, fitted.artifact)
            served = DirectoryConfig(kind="directory", path=folder)
            found[FITTED] = made(ladder_config(config).model_copy(update={"policy": served}))
        found[HAND_SET] = made(ladder_config(config))
        found[BASE_ALONE], found[GUIDE_ALONE] = made(alone(config, "base")), made(alone(config, "guide"))
        yield found


def run_demo(
    asking: Mapping[str, Orchestrator],
    questions: Iterable[DemoQuestion],
    led: Callable[[DemoQuestion, Answer], None] = lambda asked, answer: None,  # noqa: ARG005 - names are the interface
) -> Iterator[Outcome]:
    """Ask each question in every way, one after another, as they finish.

    Args:
        asking: by the names of the ways (`ways`).
        questions: what is asked.
        led: told of the first way's answer before the others are asked.
    """
    for asked in questions:
        answers: dict[str, Answer] = {}
        for way, orchestrator in asking.items():
            answers[way] = orchestrator.ask(asked.question)
            if len(answers) == 1:
                led(asked, answers[way])
        yield Outcome(asked, answers)


def ladder_config(config: CascadeConfig) -> CascadeConfig:
    """Return a configuration with a ladder of its base and guide, and the threshold that was set by hand."""
    policy = ThresholdConfig(kind="threshold", when="reply_logprob", threshold=BY_HAND)
    return config.model_copy(update={"strategy": _ladder("base", "guide"), "policy": policy})


def alone(config: CascadeConfig, place: str) -> CascadeConfig:
    """Return a configuration in which one of the models answers everything."""
    return config.model_copy(update={"strategy": _ladder(place), "policy": FixedConfig(kind="fixed")})


def _ladder(*places: str) -> LadderConfig:
    return LadderConfig(kind="ladder", models=places)


def table(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return one row for each way to answer."""
    count = len(outcomes)
    rows = []
    for way in outcomes[0].answers if outcomes else ():
        answers = [one.answers[way] for one in outcomes]
        total = total_nano_usd(call.cost_nano_usd for answer in answers for call in answer.calls)
        right = sum(one.right(way) for one in outcomes) / count
        cost = None if total is None else usd(total) / count
        rows.append(Row(way, count, right, cost, sum(len(answer.steps) for answer in answers) / count))
    return rows


def regrets(outcomes: Sequence[Outcome]) -> int:
    """Return how often the fitted ladder was wrong where the guide alone is right: what `PROMISE` bounds."""
    return sum(one.right(GUIDE_ALONE) and not one.right(FITTED) for one in outcomes)


def demo_config(base: str, guide: str) -> CascadeConfig:
    """Return the configuration that the shipped log was made with: rounds of base and guide, every step logged.

    One model in both places has one price. `ladder_config` is what the demo serves.
    """
    return load(
        {
            "models": {
                "base": {"model": base, "price": BASE_PRICE, "max_tokens": 128},
                "guide": {"model": guide, "price": BASE_PRICE if base == guide else GUIDE_PRICE, "max_tokens": 128},
            },
            "strategy": {"kind": "base_guide", "rounds": ROUNDS},
            "policy": {"kind": "threshold", "threshold": JUDGING},
            "provider": "local",
            "traces": "off",
        }
    )
