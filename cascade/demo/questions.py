"""The demonstration on short questions: learns a policy from a log, serves it with real models, and compares.

1. A policy for a ladder (the base, then the guide) is fitted and certified on the log that ships with the package.
2. For comparison, it shows the figures of all ways to answer on the log's questions, including the guide as a judge.
3. The models answer other questions under that policy. The base alone, the guide alone and a ladder with a threshold
   set by hand answer them too. Many of their calls are the same: a `Memo` makes each call once, and each way is
   charged for all of its calls.
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
from typing import TYPE_CHECKING, Any

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
"""Nats per token of the base's reply, set on the log and not on live questions (`benchmarks/ladder_threshold.py`)."""
JUDGING = 0.5
"""The guide's uncertainty in nats from which rounds of base and guide go on."""
PROMISE = Guarantee("regret", 0.15, 0.1)
"""The promise of the fitted ladder, chosen on the log before any live question (`design/demo-log.md`)."""
PICKED = (
    f"Alpha {PROMISE.alpha:g} was picked by looking at this very log. The certificate does not count that "
    "choice; the questions asked below had no part in it."
)
"""The caveat about the demo's certificate."""
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
    return [
        DemoQuestion(
            row["question_id"],
            row["split"],
            row["kind"],
            Question(row["question"], row["context"] or None),
            tuple(row["answers"]),
        )
        for row in shipped("demo_questions.jsonl", split)
    ]


def shipped(name: str, split: str | None) -> list[dict[str, Any]]:
    """Return the rows of a demo set that ships with the package; of one split, where one is named."""
    lines = resources.files("cascade.data").joinpath(name).read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return [row for row in rows if split is None or row["split"] == split]


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
    """The answers to one question, by the name of the way to answer, the leading one first."""

    asked: DemoQuestion
    answers: Mapping[str, Answer]

    def right(self, way: str) -> bool:
        """Whether a way's answer is right."""
        return is_right(self.asked, self.answers[way])


def is_right(asked: DemoQuestion, answer: Answer) -> bool:
    """Whether the answer served is right; no answer never is."""
    return answer.text is not None and exact_match(answer.text, asked.answers)


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one way to answer: means over questions, and their number."""

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
    """Return the figures of each way to answer on the log's questions that the policy was not fitted on.

    The fitted ladder comes first. These questions set its threshold, so its row is not a test; the live questions are.
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
def served(
    config: CascadeConfig, fitted: Fitted | None, provider: Provider, *others: CascadeConfig
) -> Iterator[list[Orchestrator]]:
    """Make an orchestrator of the ladder, under the fitted policy if there is one, and one of each other configuration.

    The fitted policy's directory is deleted at the end.
    """
    from cascade.policies.artifact import write

    ladder, providers = ladder_config(config), {config.provider.kind: provider}
    with ExitStack() as stack:
        if fitted is not None:
            folder = stack.enter_context(TemporaryDirectory(prefix="cascade-demo-"))
            write(folder, fitted.artifact)
            ladder = ladder.model_copy(update={"policy": DirectoryConfig(kind="directory", path=folder)})
        each = (Orchestrator.from_config(one, providers=providers) for one in (ladder, *others))
        yield [stack.enter_context(one) for one in each]


@contextmanager
def ways(config: CascadeConfig, fitted: Fitted | None, provider: Provider) -> Iterator[dict[str, Orchestrator]]:
    """Make an orchestrator for each way to answer; the first is the fitted ladder if there is one."""
    others = {HAND_SET: ladder_config(config)} if fitted is not None else {}
    others |= {BASE_ALONE: alone(config, "base"), GUIDE_ALONE: alone(config, "guide")}
    with served(config, fitted, provider, *others.values()) as made:
        yield dict(zip([HAND_SET if fitted is None else FITTED, *others], made, strict=True))


def run_demo(
    asking: Mapping[str, Orchestrator],
    questions: Iterable[DemoQuestion],
    led: Callable[[DemoQuestion, Answer], None] = lambda asked, answer: None,  # noqa: ARG005 - names are the interface
) -> Iterator[Outcome]:
    """Ask each question in every way, one after another, as they finish.

    Args:
        asking: an orchestrator for each way, by name (`ways`).
        questions: the questions.
        led: called with the first way's answer before the others are asked.
    """
    for asked in questions:
        answers: dict[str, Answer] = {}
        for way, orchestrator in asking.items():
            answers[way] = orchestrator.ask(asked.question)
            if len(answers) == 1:
                led(asked, answers[way])
        yield Outcome(asked, answers)


def ladder_config(config: CascadeConfig) -> CascadeConfig:
    """Return a configuration with a ladder of its base and guide, and a threshold set by hand."""
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
    """Return how often the fitted ladder was wrong and the guide alone right; `PROMISE` limits this share."""
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
