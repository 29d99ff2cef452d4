"""The demo: sort a shop's mail as the guide would, mostly without asking the guide.

The policy is fitted on a log of such messages, which ships with the package. Other messages are served live under it;
the guide is also asked about each of them, for comparison. No label is read for fitting or serving.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.config import CascadeConfig, load
from cascade.config.policies import DirectoryConfig, FixedConfig, ThresholdConfig
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.logs.questions import AskedQuestion
from cascade.money import total_nano_usd
from cascade.orchestrator import Orchestrator
from cascade.plans.presets import LadderConfig
from cascade.providers.base import Provider
from cascade.types import Answer, Question

if TYPE_CHECKING:
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
"""Messages with their teams, shown to the model before each message. Without them, the 0.5B is right on a third."""
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
"""The options of the application's requests: at most 24 tokens, in JSON with one of the teams."""


# --- the two local models, at made-up prices, and the configurations that they are served and logged with ---

MADE_UP = "made up: local models have no price"
BASE_PRICE = {"input": 0.1, "output": 0.4, "note": MADE_UP}
GUIDE_PRICE = {"input": 1.0, "output": 4.0, "note": MADE_UP}
PAIR = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
TINY = ("smollm2-135m", "smollm2-135m")
ROUNDS = 4
BY_HAND = 0.16
"""A threshold set by hand on the log of short questions, in nats per token of the base's reply."""
JUDGING = 0.5
"""The uncertainty of the guide, in nats, from which on rounds of base and guide go on."""


def demo_config(base: str, guide: str) -> CascadeConfig:
    """Return the configuration that the log "demo" was made with: rounds of base and guide, every step logged.

    A model that fills both places has one price. The demo serves `ladder_config`.
    """
    return load(
        {
            "models": {
                "base": {"model": base, "price": BASE_PRICE, "max_tokens": 128},
                "guide": {"model": guide, "price": BASE_PRICE if base == guide else GUIDE_PRICE, "max_tokens": 128},
            },
            "strategy": {"kind": "base_guide", "rounds": ROUNDS},
            "policy": {"kind": "uala", "threshold": JUDGING},
            "provider": "local",
            "traces": "off",
        }
    )


def ladder_config(config: CascadeConfig) -> CascadeConfig:
    """Return a configuration with a ladder of its base and guide, and a threshold set by hand."""
    policy = ThresholdConfig(kind="threshold", signal="reply_mean_logprob", threshold=BY_HAND)
    return config.model_copy(
        update={"strategy": LadderConfig(kind="ladder", models=("base", "guide")), "policy": policy}
    )


def asking_only(config: CascadeConfig, place: str) -> CascadeConfig:
    """Return a configuration in which one of the models answers everything."""
    return config.model_copy(
        update={"strategy": LadderConfig(kind="ladder", models=(place,)), "policy": FixedConfig(kind="fixed")}
    )


# --- the messages ---


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One message of the demo set, with its right team, which is read neither for fitting nor for serving."""

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

    @property
    def question(self) -> AskedQuestion:
        """The request as `collect` logs it."""
        chat = Question.of_chat(self.chat)
        return AskedQuestion(self.request_id, chat, (self.gold,), self.request_id, self.split, "json")


def _head() -> Iterator[dict[str, str]]:
    yield {"role": "system", "content": INSTRUCTIONS}
    for message, team in EXAMPLES:
        yield {"role": "user", "content": message}
        yield {"role": "assistant", "content": json.dumps({"team": team})}


def demo_requests(split: str | None = None) -> list[DemoRequest]:
    """Return the demo set: "log" is for logging and fitting, "live" for trying what was fitted."""
    lines = resources.files("cascade").joinpath("data/demo_requests.jsonl").read_text("utf-8").splitlines()
    requests = [DemoRequest(**json.loads(line)) for line in lines if line.strip()]
    return [request for request in requests if split is None or request.split == split]


# --- live ---


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cascade's answer to a message, and the guide's own answer."""

    request: DemoRequest
    answer: Answer
    guide: Answer

    @property
    def same(self) -> bool:
        """Whether both answers name the same team."""
        return team_of(self.answer) is not None and team_of(self.answer) == team_of(self.guide)


def team_of(answer: Answer) -> str | None:
    """Return the team that an answer names; None if it names none."""
    try:
        team = answer.parsed["team"]
    except (ValueError, KeyError, TypeError):
        return None
    return team if isinstance(team, str) else None


class Figures(NamedTuple):
    """The cascade's figures on some messages.

    Attributes:
        cost_of_guide: their cost as a share of the cost of asking only the guide; None if a cost is unknown.
        same_as_guide: the share with the same answer as the guide's.
        base_alone: the share that the base answered alone.
        right: the share whose answer names the team that the message belongs to.
        guide_right: the same share for the guide's own answers.
    """

    cost_of_guide: float | None
    same_as_guide: float
    base_alone: float
    right: float
    guide_right: float


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """Return the cascade's figures on one or more messages."""
    spent = total_nano_usd(outcome.answer.cost_nano_usd for outcome in outcomes)
    alone = total_nano_usd(outcome.guide.cost_nano_usd for outcome in outcomes)
    count = len(outcomes)
    return Figures(
        cost_of_guide=spent / alone if spent is not None and alone else None,
        same_as_guide=sum(outcome.same for outcome in outcomes) / count,
        base_alone=sum(len(outcome.answer.steps) == 1 for outcome in outcomes) / count,
        right=sum(team_of(outcome.answer) == outcome.request.team for outcome in outcomes) / count,
        guide_right=sum(team_of(outcome.guide) == outcome.request.team for outcome in outcomes) / count,
    )


def run_requests(
    config: CascadeConfig, fitted: PolicyDirectory | None, provider: Provider, requests: Iterable[DemoRequest]
) -> Iterator[Outcome]:
    """Send each message through the cascade and then to the guide; yield each outcome before the next message is sent.

    The cascade serves under the fitted policy, whose directory is deleted at the end, or under the threshold that was
    set by hand.
    """
    ladder, providers = ladder_config(config), {config.provider.kind: provider}
    with ExitStack() as stack:
        if fitted is not None:
            folder = stack.enter_context(TemporaryDirectory(prefix="cascade-demo-"))
            fitted.write(folder)
            ladder = ladder.model_copy(update={"policy": DirectoryConfig(kind="directory", path=folder)})
        cascade, guide = (
            stack.enter_context(Orchestrator.from_config(served, providers=providers))
            for served in (ladder, asking_only(config, "guide"))
        )
        for request in requests:
            yield Outcome(request, cascade.chat(request.chat), guide.chat(request.chat))


def drawn(count: int) -> list[DemoRequest]:
    """Return `count` of the live messages, the same ones in the same order each time.

    Raises:
        UsageError: there are fewer.
    """
    messages = demo_requests("live")
    if count > len(messages):
        raise UsageError(f"The demo has {len(messages)} live messages; ask for at most that many with --requests.")
    return random.Random(0).sample(messages, count)
