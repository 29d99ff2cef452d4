"""An agent of your own: a function that asks its model several times and uses a tool in between.

    python examples/own_agent.py

It replaces the cheap model of a ladder. Every call it makes is charged, capped, traced and logged like any other. It
runs offline: the models are scripted.
"""

from cascade import Orchestrator
from cascade.plans.agents import Loop
from cascade.providers.fake import FakeProvider
from cascade.types import Message, Request

POPULATION = {"vienna": "2,0 million", "lyon": "0,5 million"}


def looks_up(request: Request) -> Loop:
    """Ask the model, look up what it wants to know, and let it answer."""
    messages = request.messages
    while True:
        reply = yield request._replace(messages=messages)
        word, _, name = reply.text.partition(" ")
        if word != "LOOKUP":
            return reply
        population = POPULATION.get(name.lower(), "not in the table")
        messages = (*messages, Message("assistant", reply.text), Message("user", f"{name}: {population}"))


if __name__ == "__main__":
    config = {
        "models": {
            "base": {"model": "small", "agent": f"{__name__}:looks_up", "price": {"input": 0.1, "output": 0.4}},
            "guide": {"model": "large", "price": {"input": 1.0, "output": 4.0}},
        },
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "provider": "fake",
        "traces": "off",
    }
    fake = FakeProvider({"small": ["LOOKUP Vienna", "Answer: 2 million"], "large": ["Answer: 1.9 million"]})
    answer = Orchestrator.from_config(config, providers={"fake": fake}).ask("How many people live in Vienna?")
    print(answer.explain())
    for call in answer.calls:
        print(f"{call.request.model}, {call.request.purpose}: {call.cost_nano_usd} nano-dollars")
