"""Random learned policies, and random walks as a log has them and as they are seen live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.engine import decide
from cascade.errors import ConfigError
from cascade.policies.base import History, Observation
from cascade.policies.design import Array, Design, Reading
from cascade.policies.estimators import Constant, Linear, Logistic, Mean, Piecewise, Scorer, Signal, form_of
from cascade.policies.features import FeatureSet, offered
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.policies.trees import Trees
from cascade.policies.views import asked_numbers
from cascade.types import Call, Candidate, Question, Step, Usage
from unit.made import completion, request

PAIR, LADDER = ("base", "guide"), ("answer",)
KINDS = ("linear", "logistic", "trees", "signal", "piecewise", "constant", "mean")
SIGNALS = ("p_yes", "reply_mean_logprob", "reply_tokens")
NAMES = ("p_yes", "p_yes.least", "p_yes.change", "reply_mean_logprob", "reply_tokens.most", "votes", "distinct")
NAMES += ("answers_here", "tokens_so_far", "cost_so_far", "asked.words", "asked.digits")
WORDS = [
    "which",
    "river",
    "runs",
    "through",
    "Vienna",
    "42",
    "how",
    "many",
    "people",
    "live",
    "there",
    "in",
    "1999",
    "please",
]


def design(rng: np.random.Generator, d: int, *, foreseen: float = 0.6) -> Design:
    low = rng.normal(size=d) * 2 - 2
    indicators = np.flatnonzero(rng.random(d) < foreseen)
    pairs = rng.integers(0, d + indicators.size, size=(int(rng.integers(0, 2 * d + 1)), 2))
    scale = rng.random(d) * 3 + 0.01
    return Design(rng.normal(size=d), scale, low, low + rng.random(d) * 5, indicators, pairs)


def linear(rng: np.random.Generator, shared: Design) -> Linear:
    return Linear(shared, rng.normal(size=shared.columns), float(rng.normal()))


def logistic(rng: np.random.Generator, shared: Design) -> Logistic:
    return Logistic(linear(rng, shared), float(rng.random() * 2), float(rng.normal()))


def trees(rng: np.random.Generator, d: int, *, many: int = 12, leaves: int = 8, foreseen: float = 0.6) -> Trees:
    parts: dict[str, list[Any]] = {name: [] for name in ("feature", "threshold", "left", "right")}
    roots = []

    def grown() -> int:
        for name, value in (
            ("feature", int(rng.integers(d))),
            ("threshold", rng.normal()),
            ("left", -1),
            ("right", -1),
        ):
            parts[name].append(value)
        return len(parts["left"]) - 1

    for _ in range(many):
        roots.append(grown())
        ends = [roots[-1]]
        for _ in range(int(rng.integers(0, leaves))):  # 1 to `leaves` leaves
            node = ends.pop(int(rng.integers(len(ends))))
            parts["left"][node], parts["right"][node] = grown(), grown()
            ends += [parts["left"][node], parts["right"][node]]
    size = len(parts["left"])
    arrays = {name: np.array(values) for name, values in parts.items()}
    return Trees(
        **arrays,
        missing_left=rng.random(size) < 0.5,
        leaf=rng.normal(size=size),
        roots=np.array(roots),
        intercept=float(rng.normal()),
        foreseen=rng.random(d) < foreseen,
    )


def scorer(rng: np.random.Generator, kind: str, d: int, shared: Design | None = None) -> Scorer:
    """Return a scorer of d features; linear parts share a design, if one is given."""
    held = shared or design(rng, d)
    if kind == "linear":
        return linear(rng, held)
    if kind == "logistic":
        return logistic(rng, held)
    if kind == "trees":
        return trees(rng, d)
    if kind == "mean":
        return Mean((linear(rng, held), trees(rng, d)))
    if kind == "signal":
        return Signal(int(rng.integers(d)), float(rng.choice([-1.0, 1.0])))
    if kind == "piecewise":
        many = int(rng.integers(1, 9))
        knots = np.sort(rng.normal(size=many))
        return Piecewise(int(rng.integers(d)), knots, np.sort(rng.normal(size=many).round(1)))
    return Constant(float(rng.choice([math.inf, -math.inf, 0.5])))


def raw_rows(rng: np.random.Generator, n: int, d: int) -> Floats:
    """Return features of n rows: some missing, some at the edges of what a float64 is."""
    rows = rng.normal(size=(n, d)) * 3
    odd = rng.random((n, d))
    rows[odd < 0.15] = np.nan
    specials = np.array([math.inf, -math.inf, 0.0, -0.0, 1e308, -1e308, 5e-324])
    special = (odd > 0.15) & (odd < 0.2)
    rows[special] = rng.choice(specials, size=int(special.sum()))
    return rows


def policy(
    rng: np.random.Generator, sources: tuple[str, ...] = PAIR, horizon: int = 4, *, kind: str = "", judges: bool = True
) -> LearnedPolicy:
    """Return a policy with a rule a step, each of its own features; scorers of all kinds unless one is named."""
    rules = []
    for number in range(1, horizon + 1):
        features = FeatureSet(names(rng, sources, number), sources)
        d, shared = len(features.names), design(rng, len(features.names))

        def some(chance: float, kinds: tuple[str, ...], d: int = d, shared: Design = shared) -> Scorer | None:
            return scorer(rng, str(rng.choice(kinds)), d, shared) if rng.random() < chance else None

        onward = some(1.0, (kind,) if kind else KINDS) if number < horizon else None
        include = tuple([some(0.5, ("linear", "trees")) for _ in sources])
        sure = tuple([some(0.8 if judges else 0.0, ("logistic",)) for _ in sources])
        incumbent = some(0.8 if judges else 0.0, ("logistic",)) if number > 1 else None
        rules.append(StepRule(features, onward, include, sure, incumbent))
    return LearnedPolicy("net_benefit", tuple(rules), kappa=float(rng.normal() / 4))


def names(rng: np.random.Generator, sources: tuple[str, ...], number: int) -> tuple[str, ...]:
    known = [*NAMES, "p_yes.at1", *(f"confidence[{source}]" for source in sources)]
    known += [f"repeats[{source}]" for source in sources] if number > 1 else []
    known += ["same[base,guide]"] if sources == PAIR else []
    return tuple(str(name) for name in rng.permutation(known)[: int(rng.integers(2, 9))])


@dataclass(frozen=True, slots=True)
class Walks:
    """The same walks twice: as a log has them, and as steps."""

    history: History
    questions: tuple[Question, ...]
    steps: tuple[tuple[Step, ...], ...]
    horizon: int

    def observation(self, row: int, number: int, held: tuple[Step, ...] = ()) -> Observation:
        """Return what is seen after a step; `held` are decided steps before it."""
        steps = self.steps[row]
        return Observation(self.questions[row], (*(held or steps[: number - 1]), steps[number - 1]), self.horizon)


def walks(rng: np.random.Generator, n: int, sources: tuple[str, ...] = PAIR, horizon: int = 4) -> Walks:
    """Return n random walks: missing signals, missing candidates, unknown costs, records that end early."""
    questions = tuple([_question(rng) for _ in range(n)])
    many = rng.integers(1, horizon + 1, size=n)
    steps = tuple([tuple([_step(rng, t + 1, sources) for t in range(many[row])]) for row in range(n)])
    shape = (n, horizon)
    answer, sure = np.full((*shape, len(sources)), -1), np.full((*shape, len(sources)), np.nan)
    signals = {name: np.full(shape, np.nan) for name in SIGNALS}
    cost, tokens = np.full(shape, np.nan), np.full(shape, np.nan)
    for row, walked in enumerate(steps):
        for t, step in enumerate(walked):
            for candidate in step.candidates:
                at = 0 if sources == LADDER else sources.index(candidate.source)
                answer[row, t, at] = int(candidate.text.split()[-1])
                sure[row, t, at] = math.nan if candidate.confidence is None else candidate.confidence
            for name, value in step.signals.items():
                signals[name][row, t] = math.nan if value is None else value
            (call,) = step.calls
            cost[row, t] = math.nan if call.cost_nano_usd is None else call.cost_nano_usd
            assert call.completion is not None
            read, written = call.completion.usage[:2]
            tokens[row, t] = math.nan if read is None or written is None else read + written
    asked = [asked_numbers(question.text, question.context) for question in questions]
    history = History(
        sources=sources,
        answer=answer.astype(np.int64),
        texts_known=np.ones(n, dtype=np.bool_),
        confidence=sure,
        signals=signals,
        asked={name: np.array([one[name] for one in asked]) for name in asked[0]},
        cost=cost,
        tokens=tokens,
        steps=many.astype(np.int64),
        complete=many == horizon,
    )
    return Walks(history, questions, steps, horizon)


def _question(rng: np.random.Generator) -> Question:
    text = " ".join(rng.choice(WORDS, size=int(rng.integers(1, 12))))
    return Question(text, "a text to read from" if rng.random() < 0.3 else None)


def _step(rng: np.random.Generator, number: int, sources: tuple[str, ...]) -> Step:
    candidates = []
    for source in sources:
        if rng.random() < 0.85:
            sure = float(rng.random()) if rng.random() < 0.7 else None
            said = f"model{number}" if sources == LADDER else source
            candidates.append(Candidate(f"river {rng.integers(3)}", said, said, sure))
    values = {
        "p_yes": rng.random(),
        "reply_mean_logprob": -rng.exponential(),
        "reply_tokens": float(rng.integers(1, 99)),
    }
    signals: dict[str, float | None] = {name: float(v) if rng.random() < 0.75 else None for name, v in values.items()}
    if rng.random() < 0.3:
        signals.pop("reply_tokens")
    usage = Usage(int(rng.integers(500)), int(rng.integers(50)) if rng.random() < 0.9 else None)
    cost = int(rng.integers(10**6)) if rng.random() < 0.85 else None
    calls = (Call(request(), completion(usage=usage), cost, cost),)
    return Step(number, tuple(candidates), signals, calls=calls)


def decided(policy: LearnedPolicy, seen: Walks, row: int) -> tuple[Step, ...]:
    """Return a walk's steps, each with the decision that the engine makes of it."""
    done: tuple[Step, ...] = ()
    for number in range(1, len(seen.steps[row]) + 1):
        observation = seen.observation(row, number, done)
        done = (*done, observation.step._replace(decision=decide(policy, observation)))
    return done


def on_log(history: History, kind: str = "linear", seed: int = 0) -> LearnedPolicy:
    """Return a policy for a log's steps: features that the log has, scaled by it; weights by chance.

    Its scores for going on are about 0 at the median of each step, so that at kappa 0 walks are of all lengths.
    """
    rng = np.random.default_rng(seed)
    rules = []
    for number in range(1, history.horizon + 1):
        told = [name for name in offered(history, number) if not name.startswith("asked.")][:9]
        features = FeatureSet(
            tuple(dict.fromkeys((*told, "asked.words", "cost_so_far", "tokens_so_far"))), history.sources
        )
        raw = features.table(history, number)
        shared = scaled(raw)
        onward = None
        if number < history.horizon:
            onward = _centred(rng, kind, shared, raw)
        many = len(history.sources)
        sure = tuple([_chance(rng, shared) for _ in range(many)])
        include = (None,) * (many - 1) + (_line(rng, shared, 0.4),)
        rules.append(StepRule(features, onward, include, sure, _chance(rng, shared) if number > 1 else None))
    return LearnedPolicy("net_benefit", tuple(rules))


def scaled(raw: Floats) -> Design:
    """Return a design from a log's features, with an indicator for each that is missing anywhere."""
    with np.errstate(invalid="ignore"):
        low, high = np.nanquantile(raw, [0.01, 0.99], axis=0)
    centre, scale = np.nanmean(raw, axis=0), np.nanstd(raw, axis=0)
    squares = np.arange(raw.shape[1])[:, None].repeat(2, axis=1)
    missing = np.flatnonzero(np.isnan(raw).any(axis=0))
    return Design(centre, np.where(scale > 0, scale, 1.0), low, high, missing, squares)


def _line(rng: np.random.Generator, shared: Design, shift: float = 0.0) -> Linear:
    return Linear(shared, rng.normal(size=shared.columns) / math.sqrt(shared.columns), shift)


def _chance(rng: np.random.Generator, shared: Design) -> Logistic:
    return Logistic(_line(rng, shared), 1.0, 0.2)


def _centred(rng: np.random.Generator, kind: str, shared: Design, raw: Floats) -> Scorer:
    if kind == "trees":
        forest = trees(rng, shared.width, foreseen=1.0)
        seen = raw[rng.integers(raw.shape[0], size=forest.feature.size), forest.feature]
        forest = Trees(**forest.arrays() | {"threshold": np.where(np.isnan(seen), 0.0, seen)})
        return Trees(**forest.arrays() | {"intercept": forest.intercept - float(np.median(forest.values(raw)))})
    if kind == "signal":
        return Signal(0, -1.0)  # less than 1 everywhere: kappa is set by who plays it
    line = _line(rng, shared)
    return Linear(shared, line.weights, -float(np.median(line.values(raw))))


def from_arrays(kind: str, arrays: Mapping[str, Array], features: int) -> Scorer:
    """Return a scorer of d features from its arrays; raise ConfigError with every problem."""
    reading = Reading(arrays)
    read = form_of(kind).read(reading, features)
    problems = [*reading.problems, *(f"{name}: it has no such array" for name in reading.left())]
    if read is None or problems:
        raise ConfigError(problems)
    return read
