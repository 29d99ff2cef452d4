"""The demonstration: real models on the questions that ship with the package, and an honest table of what it cost.

Each question is walked through the cascade, and asked of the guide outright. Base only, both answers of round 1, and
the ladder (the base, then the guide where the base's own log-prob is low) are made of the same calls, to the letter, so
those are not made twice; each row is charged for every call that it uses.

In the end a policy for that ladder is fitted on the log that ships with the package, on other questions, certified, and
served as any policy directory is, on the same questions as the rest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cascade.config import CascadeConfig, load
from cascade.conformal.guarantee import Guarantee
from cascade.episodes.matching import exact_match
from cascade.episodes.schema import BASE_ONLY, GUIDE_ONLY
from cascade.evaluation.breakeven import BreakEven, break_even
from cascade.evaluation.logs import DEMO_LADDER, open_log
from cascade.money import Price, total_nano_usd, usd
from cascade.orchestrator import Orchestrator
from cascade.policies.base import Observation
from cascade.policies.threshold import ThresholdPolicy
from cascade.providers.base import Provider
from cascade.sections import DirectoryConfig, FixedConfig, LadderConfig
from cascade.types import Answer, Call, Question

if TYPE_CHECKING:
    from cascade.training.fitting import Fitted

MADE_UP = "made up: local models have no price"
BASE_PRICE = {"input": 0.1, "output": 0.4, "note": MADE_UP}
GUIDE_PRICE = {"input": 1.0, "output": 4.0, "note": MADE_UP}
PAIR = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
TINY = ("smollm2-135m", "smollm2-135m")
ROUNDS = 4
THRESHOLD = 0.5
LADDER_POLICY = ThresholdPolicy(0.16, when="reply_logprob")
"""Nats per token of the reply; read off the log split (`benchmarks/ladder_threshold.py`), on no live question."""
PROMISE = Guarantee("regret", 0.15, 0.1)
"""What the fitted ladder promises: chosen on the log, before any live question (`design/demo-log.md`)."""
PICKED = (
    f"Alpha {PROMISE.alpha:g} was picked by looking at this very log: of four values the least that saved money "
    "however the log was divided. The certificate does not count that choice; the questions asked here had no part in "
    "it."
)
"""What the certificate of the demo leaves out, in words."""
FITTED = "fitted ladder"


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
    """One question done: the walk through the cascade, the guide's own answer, and what was right."""

    asked: DemoQuestion
    walked: Answer
    outright: Answer

    def right(self, text: str | None) -> bool:
        """Whether a text answers the question."""
        return text is not None and exact_match(text, self.asked.answers)

    @property
    def base_answer(self) -> str | None:
        """The base's answer of the first round."""
        return next((c.text for c in self.walked.steps[0].candidates if c.source == "base"), None)

    @property
    def climbs(self) -> bool:
        """Whether a ladder goes on from the base to the guide: the base's answer is missing or unsure of itself."""
        first = self.walked.steps[0]
        scores = LADDER_POLICY.scores(Observation(self.asked.question, (first,), horizon=2))
        return self.base_answer is None or scores.next >= LADDER_POLICY.kappa

    @property
    def base_calls(self) -> tuple[Call, ...]:
        """The calls that base only would have made."""
        return tuple(call for call in self.walked.steps[0].calls if call.request.purpose == "answer")


@dataclass(frozen=True, slots=True)
class Row:
    """One way to answer, over all questions. `accuracy` is of the answer served, `coverage` of the answers kept."""

    policy: str
    accuracy: float
    coverage: float
    cost_usd: Decimal | None
    rounds: float
    answers: float


def run_demo(config: CascadeConfig, provider: Provider, questions: Iterable[DemoQuestion]) -> Iterator[Outcome]:
    """Walk questions through the cascade and ask the guide outright, one after another, as they finish."""
    kind = config.provider.kind
    alone = ladder_config(config, "guide")
    cascade = Orchestrator.from_config(config, providers={kind: provider})
    guide = Orchestrator.from_config(alone, providers={kind: provider})
    for asked in questions:
        yield Outcome(asked, cascade.ask(asked.question), guide.ask(asked.question))


def ladder_config(config: CascadeConfig, *rungs: str) -> CascadeConfig:
    """Return a configuration with a ladder of some of its models, every step of which is taken."""
    ladder = LadderConfig(kind="ladder", models=rungs)
    return config.model_copy(update={"strategy": ladder, "policy": FixedConfig(kind="fixed", depth=len(rungs))})


def fit_ladder(config: CascadeConfig, seed: int = 0) -> Fitted:
    """Fit and certify a policy for the ladder of base and guide, on the log that ships with the package.

    Raises:
        NotCertifiedError: the log is too small for `PROMISE`.
    """
    from cascade.training.fitting import fit_policy  # it takes long to import, and only the end of a demo needs it

    return fit_policy(open_log(DEMO_LADDER).tables, PROMISE, config=ladder_config(config, "base", "guide"), seed=seed)


def serve_fitted(
    config: CascadeConfig, fitted: Fitted, provider: Provider, outcomes: Sequence[Outcome]
) -> list[Answer]:
    """Write a fitted ladder's policy directory, serve it, and ask it the same questions; a `Memo` makes no call again.

    The directory is gone afterwards.
    """
    from cascade.policies.artifact import write

    ladder = ladder_config(config, "base", "guide")
    with TemporaryDirectory(prefix="cascade-demo-") as folder:
        write(folder, fitted.artifact)
        served = ladder.model_copy(update={"policy": DirectoryConfig(kind="directory", path=folder)})
        with Orchestrator.from_config(served, providers={config.provider.kind: provider}) as orchestrator:
            return [orchestrator.ask(outcome.asked.question) for outcome in outcomes]


def regrets(outcomes: Sequence[Outcome], fitted: Sequence[Answer]) -> int:
    """Return how many questions were answered wrong that the guide alone answers right: what `PROMISE` bounds."""
    return sum(
        o.right(o.outright.text) and not o.right(answer.text) for o, answer in zip(outcomes, fitted, strict=True)
    )


def demo_config(base: str, guide: str) -> CascadeConfig:
    """Return the demo's configuration; one model in both places has one price."""
    return load(
        {
            "models": {
                "base": {"model": base, "price": BASE_PRICE, "max_tokens": 128},
                "guide": {"model": guide, "price": BASE_PRICE if base == guide else GUIDE_PRICE, "max_tokens": 128},
            },
            "strategy": {"kind": "base_guide", "rounds": ROUNDS},
            "policy": {"kind": "threshold", "threshold": THRESHOLD},
            "provider": "local",
            "traces": "off",
        }
    )


def table(outcomes: Sequence[Outcome], fitted: Sequence[Answer] = ()) -> list[Row]:
    """Return one row for each way to answer; `fitted` are the fitted ladder's answers, if it was run."""
    count = len(outcomes)

    def row(
        policy: str, served: list[bool], covered: list[bool], calls: list[tuple[Call, ...]], rounds: int, answers: int
    ) -> Row:
        total = total_nano_usd(call.cost_nano_usd for made in calls for call in made)
        cost = None if total is None else usd(total) / count
        return Row(policy, sum(served) / count, sum(covered) / count, cost, rounds / count, answers / count)

    base = [o.right(o.base_answer) for o in outcomes]
    outright = [o.right(o.outright.text) for o in outcomes]
    walked = [o.right(o.walked.text) for o in outcomes]
    first = [[c.text for c in o.walked.steps[0].candidates] for o in outcomes]
    either = [any(o.right(text) for text in texts) for o, texts in zip(outcomes, first, strict=True)]
    judged = [o.right(_judged(o)) for o in outcomes]
    kept = [any(o.right(text) for text in o.walked.answers) for o in outcomes]
    distinct = sum(len(set(texts)) for texts in first)
    steps = sum(len(o.walked.steps) for o in outcomes)
    sizes = sum(len(o.walked.answers) for o in outcomes)
    ladder = [o.right(o.outright.text if o.climbs else o.base_answer) for o in outcomes]
    climbed = [o.base_calls + (o.outright.calls if o.climbs else ()) for o in outcomes]
    up = sum(o.climbs for o in outcomes)
    one_round = [o.walked.steps[0].calls for o in outcomes]
    rows = [
        row(BASE_ONLY, base, base, [o.base_calls for o in outcomes], count, count),
        row(GUIDE_ONLY, outright, outright, [o.outright.calls for o in outcomes], count, count),
        row("ladder, log-prob", ladder, ladder, climbed, count + up, count),
        row(f"threshold, ≤ {ROUNDS} rounds", walked, kept, [o.walked.calls for o in outcomes], steps, sizes),
        row("both, round 1", judged, either, one_round, count, distinct),
    ]
    if fitted:
        pairs = list(zip(outcomes, fitted, strict=True))
        served = [o.right(answer.text) for o, answer in pairs]
        found = [any(o.right(text) for text in answer.answers) for o, answer in pairs]
        sizes, steps = (
            sum(len(part) for part in parts) for parts in ([a.answers for a in fitted], [a.steps for a in fitted])
        )
        rows.append(row(FITTED, served, found, [answer.calls for answer in fitted], steps, sizes))
    return rows


def _judged(outcome: Outcome) -> str | None:
    """Return the answer of round 1 that the guide's verdict favours."""
    best = max(outcome.walked.steps[0].candidates, key=lambda c: c.confidence or 0.0, default=None)
    return None if best is None else best.text


def break_even_of(outcomes: Sequence[Outcome], guide: Price) -> BreakEven | None:
    """Return the break-even of judging, from the first round's prices and lengths; None where a cost is unknown."""
    base = total_nano_usd(c.cost_nano_usd for o in outcomes for c in o.base_calls)
    judging = total_nano_usd(
        c.cost_nano_usd for o in outcomes for c in o.walked.steps[0].calls if c.request.purpose == "judge"
    )
    outright = total_nano_usd(c.cost_nano_usd for o in outcomes for c in o.outright.calls)
    lengths = [c.completion.usage.output_tokens if c.completion else None for o in outcomes for c in o.outright.calls]
    tokens = total_nano_usd(lengths)
    if base is None or judging is None or outright is None or tokens is None or not outcomes:
        return None
    return break_even(base, judging, outright, tokens, len(outcomes), guide.output / 1_000)
