"""The demonstration on requests: sorts a shop's mail as the guide would, mostly without asking the guide.

1. A policy for a ladder (the base, then the guide) is fitted and certified on a log of such messages, which ships with
   the package. The promise is agreement: on at most 5 % of the messages the team differs from the guide's. No label is
   read for it.
2. Other messages are served live under that policy; the guide is asked about each of them too, to compare.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cascade.chat import ChatRequest
from cascade.config import CascadeConfig, load
from cascade.config.policies import DirectoryConfig, FixedConfig, ThresholdConfig
from cascade.conformal.promise import Promise
from cascade.orchestrator import Orchestrator
from cascade.plans.ladder import LadderConfig
from cascade.providers.base import Provider
from cascade.types import Answer

if TYPE_CHECKING:
    from cascade.fitting.fit import Fit
    from cascade.policies.directory import PolicyDirectory

ALPHA, DELTA = 0.05, 0.1
PROMISE = Promise("agreement", ALPHA, 1 - DELTA)
"""The policy's promise, chosen before the log was collected (`design/demo-log.md`)."""
INSTRUCTIONS = """You route messages of customers of an online shop for outdoor gear to the right team. The teams are:
delivery: where a parcel is, when it comes, address, tracking, shipping
returns: sending something back, exchanging it, refunds
payment: charges, invoices, vouchers, ways to pay
account: login, password, personal data, newsletter
advice: questions before buying: size, material, use, stock
repair: something broke or came damaged, warranty, spare parts
Reply with JSON: {"team": "<one of the teams>"}."""
EXAMPLES = (
    ("Which of your stoves is best for high altitude?", "advice"),
    ("The total on my receipt does not match what left my bank account.", "payment"),
    ("Where is my package? It should have been here on Monday.", "delivery"),
    ("I forgot my password.", "account"),
    ("The strap of my rucksack tore off, it is one year old.", "repair"),
    ("These gloves don't fit, how do I give them back?", "returns"),
    ("A tent pole snapped. Do you sell single poles?", "repair"),
    ("Do you ship to islands, and how many days does it take?", "delivery"),
    ("Please remove my telephone number from my profile.", "account"),
    ("Is this jacket warm enough for skiing?", "advice"),
    ("I'd like my money back for the lamp that I sent to you last week.", "returns"),
    ("Can I get a bill made out to my employer?", "payment"),
)
"""Messages with their teams, shown to the model before each message. Without them the 0.5B is right on a third."""
TEAMS = ("delivery", "returns", "payment", "account", "advice", "repair")
OPTIONS: dict[str, Any] = {
    "max_tokens": 24,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "route",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"team": {"enum": list(TEAMS)}},
                "required": ["team"],
                "additionalProperties": False,
            },
        },
    },
}
"""The response format that the application asks for: JSON with one of the teams."""


# --- the two local models, at made-up prices, and the configurations that they are served and logged with ---

MADE_UP = "made up: local models have no price"
BASE_PRICE = {"input": 0.1, "output": 0.4, "note": MADE_UP}
GUIDE_PRICE = {"input": 1.0, "output": 4.0, "note": MADE_UP}
PAIR = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
TINY = ("smollm2-135m", "smollm2-135m")
ROUNDS = 4
BY_HAND = 0.16
"""Nats per token of the base's reply, set on the log of short questions."""
JUDGING = 0.5
"""The guide's uncertainty in nats from which rounds of base and guide go on."""


def demo_config(base: str, guide: str) -> CascadeConfig:
    """Return the configuration that the log "demo" was made with: rounds of base and guide, every step logged.

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


def ladder_config(config: CascadeConfig) -> CascadeConfig:
    """Return a configuration with a ladder of its base and guide, and a threshold set by hand."""
    policy = ThresholdConfig(kind="threshold", when="reply_logprob", threshold=BY_HAND)
    return config.model_copy(update={"strategy": _ladder("base", "guide"), "policy": policy})


def alone(config: CascadeConfig, place: str) -> CascadeConfig:
    """Return a configuration in which one of the models answers everything."""
    return config.model_copy(update={"strategy": _ladder(place), "policy": FixedConfig(kind="fixed")})


def _ladder(*places: str) -> LadderConfig:
    return LadderConfig(kind="ladder", models=places)


# --- the messages ---


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One message of the demo set, with its right team, which is read neither to fit nor to serve."""

    request_id: str
    split: str
    message: str
    team: str

    @property
    def gold(self) -> str:
        """The right answer as JSON."""
        return json.dumps({"team": self.team})

    @property
    def chat(self) -> ChatRequest:
        """The chat request that the shop's application sends."""
        return ChatRequest([*_head(), {"role": "user", "content": self.message}], OPTIONS)


def _head() -> Iterator[dict[str, str]]:
    yield {"role": "system", "content": INSTRUCTIONS}
    for message, team in EXAMPLES:
        yield {"role": "user", "content": message}
        yield {"role": "assistant", "content": json.dumps({"team": team})}


def demo_requests(split: str | None = None) -> list[DemoRequest]:
    """Return the demo set: "log" is for logging and fitting, "live" for trying what was fitted."""
    lines = resources.files("cascade").joinpath("data/demo_requests.jsonl").read_text("utf-8").splitlines()
    every = [DemoRequest(**json.loads(line)) for line in lines if line.strip()]
    return [one for one in every if split is None or one.split == split]


# --- the log ---


def on_the_log(done: Fit) -> Summary:
    """Return the policy's figures on the requests that certify it. They set its threshold, so this is not a test."""
    kappa, n = done.point_of(None).kappa, done.log.n
    alone = float((done.policy.walks(done.log).stop(kappa) == 0).mean())
    lost = sum(float(each.losses) for each in done.certified.values())
    return Summary(n, done.saving.cost_share, 1 - lost / n, alone)


def needed(done: Fit) -> float | None:
    """Return the token probability from which the base's answer is served; None if it never is."""
    kappa = done.point_of(None).kappa
    return math.exp(-kappa) if math.isfinite(kappa) else None


# --- live ---


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cascade's answer to a message, and the guide's own answer."""

    asked: DemoRequest
    served: Answer
    guide: Answer

    @property
    def same(self) -> bool:
        """Whether both answers name the same team."""
        return team_of(self.served) is not None and team_of(self.served) == team_of(self.guide)

    def right(self, answer: Answer) -> bool:
        """Whether an answer names the team that the message belongs to."""
        return team_of(answer) == self.asked.team


def team_of(answer: Answer) -> str | None:
    """Return the team that an answer names; None if it names none."""
    try:
        team = answer.parsed["team"]
    except (ValueError, KeyError, TypeError):
        return None
    return team if isinstance(team, str) else None


def sureness(answer: Answer) -> float | None:
    """Return the geometric mean probability of the tokens of the base's reply, in [0, 1]; None if unknown.

    Both the fitted policy and the one set by hand decide by the mean log-prob, the logarithm of this number.
    """
    decision = answer.steps[0].decision if answer.steps else None
    doubt = math.inf if decision is None else decision.next_score
    return math.exp(-doubt) if 0 <= doubt < math.inf else None


@dataclass(frozen=True, slots=True)
class Summary:
    """The cascade's figures on some messages.

    Attributes:
        n: how many messages.
        cost: their cost as a share of the guide's alone; None if a cost is unknown.
        same: the share with the same answer as the guide's.
        alone: the share that the base answered alone.
    """

    n: int
    cost: float | None
    same: float
    alone: float


def summary(outcomes: Sequence[Outcome]) -> Summary:
    """Return the cascade's figures on one message or more."""
    count = len(outcomes)
    spent, outright = (_total([getattr(one, way).cost for one in outcomes]) for way in ("served", "guide"))
    share = None if spent is None or not outright else float(spent / outright)
    same = sum(one.same for one in outcomes) / count
    return Summary(count, share, same, sum(len(one.served.steps) == 1 for one in outcomes) / count)


def right(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the share of messages on which the cascade, and the guide alone, name the team that they belong to."""
    count = len(outcomes)
    return sum(one.right(one.served) for one in outcomes) / count, sum(one.right(one.guide) for one in outcomes) / count


def _total(costs: Sequence[Decimal | None]) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal()) if len(known) == len(costs) else None


@contextmanager
def serving(
    config: CascadeConfig, fitted: PolicyDirectory | None, provider: Provider
) -> Iterator[tuple[Orchestrator, Orchestrator]]:
    """Yield a cascade under the fitted policy, or under the threshold that was set by hand, and the guide alone.

    The fitted policy's directory is deleted at the end.
    """
    ladder, providers = ladder_config(config), {config.provider.kind: provider}
    with ExitStack() as stack:
        if fitted is not None:
            folder = stack.enter_context(TemporaryDirectory(prefix="cascade-demo-"))
            fitted.write(folder)
            ladder = ladder.model_copy(update={"policy": DirectoryConfig(kind="directory", path=folder)})
        cascade, guide = (
            stack.enter_context(Orchestrator.from_config(one, providers=providers))
            for one in (ladder, alone(config, "guide"))
        )
        yield cascade, guide


def run_requests(
    asking: tuple[Orchestrator, Orchestrator],
    requests: Iterable[DemoRequest],
    told: Callable[[DemoRequest, Answer], None] = lambda asked, answer: None,  # noqa: ARG005 - names are the interface
) -> Iterator[Outcome]:
    """Send each message through the cascade and then to the guide, one after another, as they finish.

    Args:
        asking: the cascade, and the guide alone (`serving`).
        requests: the messages.
        told: told of the cascade's answer before the guide is asked.
    """
    cascade, guide = asking
    for one in requests:
        answer = cascade.chat(one.chat)
        told(one, answer)
        yield Outcome(one, answer, guide.chat(one.chat))


def drawn(count: int, seed: int) -> list[DemoRequest]:
    """Return `count` of the live messages, in an order drawn with the seed."""
    return random.Random(seed).sample(demo_requests("live"), count)
