"""One question: the answer, its exact cost, and the path that led to it.

    python examples/ask.py

It runs offline: the fake provider gives the scripted replies below.
"""

from cascade import Orchestrator
from cascade.providers.fake import FakeProvider, Script, reply

CONFIG = {
    "models": {
        "base": {"model": "small", "price": {"input": 0.15, "output": 0.6}},  # USD per million tokens
        "guide": {"model": "large", "price": {"input": 2.5, "output": 10.0}},
    },
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.16},  # how unsure the base may be
    "provider": "fake",
    "traces": "off",
}
SCRIPT: Script = {
    "small": [reply("Reasoning: Vienna lies on the Rhine.\nAnswer: The Rhine", logprobs=[-0.2, -0.9])],
    "large": [reply("Reasoning: The Danube flows through it.\nAnswer: The Danube", logprobs=[-0.01, -0.02])],
}


def main() -> None:
    """Ask a question and print the answer."""
    with Orchestrator.from_config(CONFIG, providers={"fake": FakeProvider(SCRIPT)}) as orchestrator:
        answer = orchestrator.ask("Which river runs through Vienna?")
    print(f"answer  {answer.text}")
    print(f"kept    {answer.answers}")
    print(f"cost    {answer.cost} USD")
    for model, cost in answer.cost_by_model.items():
        print(f"        {model}: {cost}")
    print(answer.explain())


if __name__ == "__main__":
    main()
