"""A ladder: models asked one after another, the cheapest first, until one is sure enough of its own answer.

    python examples/ladder.py

The first model is unsure, the second is down, the third answers. It runs offline.
"""

from cascade import Orchestrator
from cascade.errors import ProviderUnavailableError
from cascade.providers.fake import FakeProvider, Script, reply

CONFIG = {
    "models": {
        "small": {"model": "small", "price": {"input": 0.15, "output": 0.6}},
        "medium": {"model": "medium", "price": {"input": 0.8, "output": 3.2}},
        "large": {"model": "large", "price": {"input": 2.5, "output": 10.0}},
    },
    "strategy": {"kind": "ladder", "models": ["small", "medium", "large"]},
    "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5},  # nats per token of the reply
    "provider": "fake",
    "traces": "off",
}
SCRIPT: Script = {
    "small": [reply("Answer: 1836", logprobs=[-0.1, -1.4])],
    "medium": [ProviderUnavailableError("medium answered 503.", model="medium", status=503)],
    "large": [reply("Answer: 1834", logprobs=[-0.1, -0.05])],
}


def main() -> None:
    """Ask once; the retries of the second model take about a second."""
    with Orchestrator.from_config(CONFIG, providers={"fake": FakeProvider(SCRIPT)}) as orchestrator:
        answer = orchestrator.ask("In which year did the old Palace of Westminster burn?")
    print(answer.explain())
    print(f"{answer.text}, {answer.cost} USD, asked: {', '.join(call.request.model for call in answer.calls)}")


if __name__ == "__main__":
    main()
