"""A hard cap on the cost of one question: refuse the next call, or return the best answer so far.

    python examples/budget.py

The most that a call can cost is reserved before the call, so the cap is not exceeded. It runs offline.
"""

from cascade import BudgetExceededError, CascadeConfig, Orchestrator
from cascade.config import load
from cascade.config.schema import BudgetConfig
from cascade.providers.fake import FakeProvider, reply

CONFIG = load(
    {
        "models": {
            "base": {"model": "small", "price": {"input": 0.15, "output": 0.6}, "max_tokens": 64},
            "guide": {"model": "large", "price": {"input": 2.5, "output": 10.0}, "max_tokens": 64},
        },
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "provider": "fake",
        "traces": "off",
    }
)
UNSURE = FakeProvider({"small": [reply("Answer: Oslo", logprobs=[-0.9])], "large": ["Answer: Oslo"]})


def capped(on_exhausted: str) -> CascadeConfig:
    """Return the configuration, with a cap that allows the base's call but not the guide's."""
    budget = BudgetConfig.model_validate({"per_question": 0.0005, "on_exhausted": on_exhausted})
    return CONFIG.model_copy(update={"budget": budget})


if __name__ == "__main__":
    question = "What is the capital of Norway?"
    answer = Orchestrator.from_config(capped("serve_best"), providers={"fake": UNSURE}).ask(question)
    print(f"{answer.text!r}, stopped: {answer.stopped}, spent {answer.cost}, {len(answer.steps)} steps")
    print(f"warning: {answer.warnings[0]}")
    try:
        Orchestrator.from_config(capped("refuse"), providers={"fake": UNSURE}).ask(question)
    except BudgetExceededError as error:
        print(f"refused after {len(error.calls)} calls: {error}")
