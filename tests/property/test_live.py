"""A policy served by the engine does at every threshold what it does on the log of the same walk, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from unit.builders import drive

from cascade.conformal.path import Scores, Walks, reaches, surest
from cascade.engine import RunPlan, RunTerms, run
from cascade.errors import UsageError
from cascade.matching import answer_key
from cascade.money import Price
from cascade.plans.base import NOTHING_BOUGHT, Walk, following
from cascade.policies.base import Observation, Selection
from cascade.policies.live import LivePolicy, layout_of, refuse_unlike_live, row_of
from cascade.policies.policy import Depth, NodePolicy, Policy, ReferenceOnly, Threshold
from cascade.table import Floats, Log, Node
from cascade.types import Answer, Call, Candidate, Completion, Question, Request, Step, Usage
from property.examples import EXAMPLES

QUESTION = Question("Which river runs through Vienna?", segment="law")
PRICE = Price.per_million(input="1", output="0")
NANO_A_TOKEN = 1_000
SIGNALS = (0.0, -0.0, 0.25, 0.5, 0.5000001, 1.0, np.nan, np.inf, -np.inf)
CONFIDENCES = (0.0, 0.25, 0.5, 0.75, np.nan)
TEXTS = ("Danube", "the danube", "Rhine", "rhine.", "Inn")


@dataclass(frozen=True)
class World:
    """One request whose every call is known: what the engine runs, and the log of a walk to the end."""

    plan_nodes: tuple[Node, ...]
    texts: tuple[str | None, ...]  # of each node
    tokens: tuple[int | None, ...]  # of each node's call
    signal: tuple[float, ...]  # of each step
    confidences: tuple[float, ...]  # of each node
    calls: bool = False  # whether the policy decides before each call
    step_names: tuple[str, ...] = ()

    @property
    def horizon(self) -> int:
        return len(layout_of(self.plan_nodes))

    @property
    def models(self) -> tuple[str, ...]:
        return ("model",)

    def only(self, selection: Selection) -> World:
        """Return the part of it that a policy takes, as a ladder does."""
        if selection.calls:
            return replace(self, calls=True)
        nodes = [self.horizon - 1] if selection.reference else [step - 1 for step in selection.steps]
        parts: Any = [tuple([column[at] for at in nodes]) for column in (self.texts, self.tokens, self.signal)]
        steps = tuple([node._replace(step=at) for at, node in enumerate(self.plan_nodes[at] for at in nodes)])
        texts, tokens, signal = parts
        return World(steps, texts, tokens, signal, tuple([self.confidences[at] for at in nodes]))

    def plan(self, question: Question) -> Walk:
        layout = layout_of(self.plan_nodes)
        number = following((yield NOTHING_BOUGHT), 0, self.horizon) if self.calls else 1
        while number <= self.horizon:
            candidates = []
            for node in layout[number - 1].nodes:
                source = self.source(node)
                yield Request("model", (), source, "answer", number, question, 9, sample=node)
                text, sure = self.texts[node], self.confidences[node]
                if text is not None:
                    candidates.append(Candidate(text, source, "model", None if np.isnan(sure) else sure))
            value = self.signal[number - 1]
            signals = {} if value == 0.25 else {"sign": None if np.isnan(value) else value}
            decision = yield Step(number, tuple(candidates), signals)
            number = following(decision, number, self.horizon) if self.calls else number + 1

    def source(self, node: int) -> str:
        return self.plan_nodes[node].name.rpartition(" ")[2]

    def complete(self, request: Request) -> Completion:
        return Completion("", "stop", Usage(self.tokens[request.sample], self.tokens[request.sample]))

    @property
    def log(self) -> Log:
        """The log of a walk to the end."""
        width, shape, keys = len(self.texts), (1, len(self.texts)), dict[str, int]()
        signal, cost, tokens = np.full(shape, np.nan), np.zeros(shape, dtype=np.int64), np.full(shape, np.nan)
        for step, (at, _) in enumerate(layout_of(self.plan_nodes)):
            signal[0, at[-1]] = np.nan if self.signal[step] == 0.25 else self.signal[step]
            counts = [count for count in (self.tokens[node] for node in at) if count is not None]
            if len(counts) == len(at):
                tokens[0, at[-1]] = sum(counts)
        for node, count in enumerate(self.tokens):
            cost[0, node] = -1 if count is None else count * NANO_A_TOKEN
        numbers = [-1 if t is None else keys.setdefault(answer_key(t, None), len(keys)) for t in self.texts]
        answer = np.array([numbers], dtype=np.int64)
        confidence = np.where(answer < 0, np.nan, np.array([self.confidences]))
        signals = {"sign": signal, "reply_tokens": tokens, "prompt_tokens": tokens}
        bought, whole = np.ones(shape, dtype=np.bool_), np.ones(1, dtype=np.bool_)
        return Log(
            "walk", self.plan_nodes, ("",), ("",), answer, np.full((1, width), np.nan), cost, bought, whole,
            confidence, signals,
        )  # fmt: skip


def drawn(seed: int, *, ladder: bool) -> World:
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(1, 5))
    names = [f"rung{t}" for t in range(steps)] if ladder else []
    nodes = [Node(name, t) for t, name in enumerate(names)]
    nodes = nodes or [Node(f"round {t + 1} {source}", t) for t in range(steps) for source in ("base", "guide")]
    many = len(nodes)
    texts = [None if rng.random() < 0.2 else str(rng.choice(TEXTS)) for _ in range(many)]
    tokens = [None if rng.random() < 0.1 else int(rng.integers(1, 4)) for _ in range(many)]
    signal, sure = rng.choice(SIGNALS, steps).tolist(), rng.choice(CONFIDENCES, many).tolist()
    return World(tuple(nodes), tuple(texts), tuple(tokens), tuple(signal), tuple(sure))


@dataclass(frozen=True)
class Raw(Policy):
    """The signal itself is the doubt."""

    kind: ClassVar[str] = "raw"
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        return Scores(_sign(log))


class Sets(Raw):
    """It keeps the answers whose confidence is high."""

    def scores(self, log: Log) -> Scores:
        keep = np.where(log.confidence == 0.0, -np.inf, log.confidence)
        return Scores(_sign(log), keep=keep)


class Surest(Raw):
    """It serves the answer that the strategy is surest of."""

    def scores(self, log: Log) -> Scores:
        return Scores(_sign(log), serve=surest(log))


class Ranked(Raw):
    """It serves the answer of the node that ranks highest; even nodes rank above odd ones, later ones above earlier."""

    def scores(self, log: Log) -> Scores:
        ranks = np.where(log.answers, np.arange(log.width) + 100 * (np.arange(log.width) % 2 == 0), -1)
        best = np.maximum.accumulate(ranks, axis=1)
        return Scores(_sign(log), serve=np.where(best < 0, -1, best % 100))


@dataclass(frozen=True)
class Chooses(NodePolicy):
    """It serves the step's first answer where the signal is low, else its last."""

    kind: ClassVar[str] = "chooses"
    nodes: tuple[int, ...] | None = None

    columns: ClassVar[frozenset[str]] = frozenset({"sign"})

    def after(self, signals: Mapping[str, Any], cost: Any, number: Any) -> tuple[Floats, Floats]:
        return signals["sign"], np.where(signals["sign"] > 0.3, 2.0, 1.0)


class Buys(Raw):
    """It buys the last node next where the signal is high, else the next one."""

    def scores(self, log: Log) -> Scores:
        sign, last = _sign(log), log.width - 1
        order, doubt = np.empty(log.answer.shape, dtype=np.int64), np.full(log.answer.shape, -np.inf)
        for row in range(log.n):
            bought = [0]
            while bought[-1] < last:
                here = sign[row, bought[-1]]
                doubt[row, len(bought) - 1] = -9.0 if here == -np.inf else here
                bought.append(last if here > 0.3 else bought[-1] + 1)
            order[row] = [*bought, *(node for node in range(log.width) if node not in bought)]
        return Scores(doubt, order=order)


def _sign(log: Log) -> Floats:
    return log.signals.get("sign", np.full(log.answer.shape, np.nan))


RULES: dict[str, Callable[[], Policy]] = {
    "threshold": lambda: Threshold("sign", -1.0),
    "cost breaks ties": lambda: Threshold("sign", 1.0, "cost"),
    "ties stay": lambda: Threshold("sign", -1.0, None),
    "fixed": Depth,
    "fixed, the surest": lambda: Depth(serves="surest"),
    "fixed, the first": lambda: Depth(serves="first"),
    "raw": Raw,
    "sets": Sets,
    "surest": Surest,
    "ranked": Ranked,
    "chooses": Chooses,
    "buys": Buys,
}


def served(world: World, live: LivePolicy) -> Answer:
    strategy = world if live.selection is None else world.only(live.selection)
    walk = run(QUESTION, RunPlan(strategy, live), RunTerms({"model": PRICE}))
    return drive(walk, strategy.complete)


def check(world: World, live: LivePolicy, walked: Walks) -> None:
    """Compare the engine's walk with the one on the log, at the threshold of `live`."""
    answer, kappa = served(world, live), live.kappa
    stop = int(walked.stop(kappa)[0])
    assert layout_of(walked.log.nodes)[len(answer.steps) - 1].nodes[-1] == stop
    part, known = walked.log.cost_nano_usd[0, : stop + 1], answer.cost_nano_usd
    assert known == (None if (part < 0).any() else int(walked.cost.at(kappa)[0]))
    nodes = list(live.rule.nodes or range(len(world.texts)))
    scores = live.rule.scores(world.log.only(nodes))
    mask = reaches(walked.keep, kappa)[0] & walked.log.answers[0] & (np.arange(walked.log.width) <= stop)
    texts = [world.texts[at] for at in (nodes if scores.order is None else scores.order[0])]
    keys = [None if text is None else answer_key(text, None) for text in texts]
    given, right = {answer_key(text, None) for text in answer.answers}, {keys[at] for at in np.flatnonzero(mask)}
    assert given >= right
    if scores.keep is not None:
        assert given == right or not right  # where nothing is kept, the best answer is served all the same
        return
    serve = int(walked.serve[0, stop])
    wanted = keys[serve] if serve >= 0 else None
    assert (None if answer.text is None else answer_key(answer.text, None)) == wanted
    if scores.serve is None and serve >= 0:
        assert answer.text == texts[serve]


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("ladder", [True, False])
def test_the_engine_walks_as_the_log_says(name, ladder):
    walks, stops = 0, set()
    for seed in range(4 * EXAMPLES):
        world = drawn(seed, ladder=ladder)
        rule = RULES[name]()
        if name == "buys" and not ladder:
            return
        if name != "buys" and ladder and seed % 3 == 0 and len(world.texts) > 1:
            rng = np.random.default_rng(seed)
            chosen = np.flatnonzero(rng.random(len(world.texts)) < 0.6).tolist() or [0]
            rule = replace(rule, nodes=tuple(chosen))  # type: ignore[type-var]
        walked = rule.walks(world.log)
        for kappa in {*walked.thresholds.tolist(), 0.3, -1e300}:
            check(world, LivePolicy(rule, world.plan_nodes, kappa), walked)
            walks += 1
            stops.add(int(walked.stop(kappa)[0]))
    assert walks > 12 * EXAMPLES
    assert len(stops) > 2


@pytest.mark.parametrize("name", [name for name in sorted(RULES) if RULES[name]().__module__ == __name__])
@pytest.mark.parametrize("ladder", [True, False])
def test_what_the_engine_walks_as_the_log_says_is_not_refused_as_unlike_it(name, ladder):
    for seed in range(4 * EXAMPLES if name != "buys" or ladder else 0):
        world = drawn(seed, ladder=ladder)
        refuse_unlike_live(RULES[name](), world.log, seed)


@pytest.mark.parametrize("name", ["fixed, the first", "chooses"])
def test_a_step_without_an_answer_serves_what_was_served_before(name):
    for seed in range(4 * EXAMPLES):
        world = drawn(seed, ladder=False)
        world = replace(world, texts=(*world.texts[:-2], None, None))
        walked = RULES[name]().walks(world.log)
        for kappa in walked.thresholds.tolist():
            check(world, LivePolicy(RULES[name](), world.plan_nodes, kappa), walked)


@pytest.mark.parametrize("ladder", [True, False])
def test_a_request_in_progress_has_the_columns_of_its_log(ladder):
    for seed in range(4 * EXAMPLES):
        world = drawn(seed, ladder=ladder)
        steps = served(world, LivePolicy(Depth(), world.plan_nodes)).steps
        row, log = row_of(Observation(QUESTION, steps, last=True), world.plan_nodes), world.log
        for column in ("answer", "cost_nano_usd", "bought", "complete", "confidence"):
            np.testing.assert_array_equal(getattr(row, column), getattr(log, column), err_msg=column)
        for name in row.signals:
            np.testing.assert_array_equal(row.signals[name], log.signals[name], err_msg=name)
        assert row.segments == ("law",)
        assert row.features["words"].tolist() == [5.0]


def test_a_length_that_one_step_tells_is_counted_in_no_other():
    sent = Request("model", (), "answer", "answer", 2, QUESTION, 9)
    call = Call(sent, Completion("Inn", "stop", Usage(1, 9)), 1, 1)
    steps = Step(1, (), {"reply_tokens": 7.0}), Step(2, (), {}, calls=(call,))
    for walked, doubt in ((steps, np.nan), (steps[1:], 9.0)):
        live = LivePolicy(Threshold("reply_tokens", 1.0, None), (Node("a", 0), Node("b", 1)))
        np.testing.assert_equal(live.scores(Observation(QUESTION, walked, last=True)).next, doubt)


def test_a_segment_is_served_at_its_own_threshold_and_others_to_the_end():
    live = LivePolicy(Depth(), (Node("a", 0), Node("b", 1)), kappas={"law": -0.5})
    assert live.for_segment("law").kappa == -0.5
    assert live.for_segment("art").kappa == live.for_segment(None).kappa == -np.inf
    whole = LivePolicy(Depth(), (Node("a", 0),), 3.0)
    assert whole.for_segment("law") is whole


@pytest.mark.parametrize(
    ("rule", "selection"),
    [
        (Depth(), None),
        (Depth((0, 2)), Selection((1, 3))),
        (ReferenceOnly(), Selection(reference=True)),
        (Buys(), Selection(calls=True)),
    ],
)
def test_a_policy_takes_the_steps_of_its_nodes(rule, selection):
    assert LivePolicy(rule, (Node("a", 0), Node("b", 1), Node("c", 2))).selection == selection


def test_what_the_engine_cannot_serve_is_refused():
    rounds = (Node("round 1 base", 0), Node("round 1 guide", 0))
    with pytest.raises(UsageError):
        LivePolicy(Depth((0,)), rounds)

    with pytest.raises(UsageError):
        LivePolicy(Buys((0, 1)), (Node("a", 0), Node("b", 1), Node("c", 2)))
