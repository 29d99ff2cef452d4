"""A ladder: models asked one after another, cheap to dear. Here the first is down and the next one answers.

    python examples/ladder.py

With `{kind: fixed, depth: 1}` the question climbs only past a model that brings no answer. It runs offline.
"""

from cascade import Orchestrator
from cascade.errors import ProviderUnavailableError
from cascade.providers.fake import FakeProvider

CONFIG = {
    "models": {
        "small": {"model": "small", "price": {"input": 0.15, "output": 0.6}},
        "medium": {"model": "medium", "price": {"input": 0.8, "output": 3.2}},
        "large": {"model": "large", "price": {"input": 2.5, "output": 10.0}},
    },
    "strategy": {"kind": "ladder", "models": ["small", "medium", "large"]},
    "policy": {"kind": "fixed", "depth": 1},
    "provider": "fake",
}
SCRIPT = {
    "small": [ProviderUnavailableError("small answered 503.", model="small", status=503)],
    "medium": ["Reasoning: It burned down in 1834.\nAnswer: 1834"],
}


def main() -> None:
    """Ask once; the retries of the first model take about a second."""
    with Orchestrator.from_config(CONFIG, providers={"fake": FakeProvider(SCRIPT)}) as orchestrator:
        answer = orchestrator.ask("In which year did the old Palace of Westminster burn?")
    print(answer.explain())
    print(f"{answer.text}, {answer.cost} USD, asked: {', '.join(call.request.model for call in answer.calls)}")


if __name__ == "__main__":
    main()
