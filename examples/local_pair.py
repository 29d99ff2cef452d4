"""Two local models: a 0.5B model answers, and a 1.5B model if the first is unsure. No key, no network.

    pip install "certified-cascade[local]"
    cascade models pull qwen2.5-coder-0.5b qwen2.5-coder-1.5b      (1.6 GB, once)
    python examples/local_pair.py

The prices are made up, so that the cascade has costs to compare.
"""

from cascade import Orchestrator, Question

CONFIG = {
    "models": {
        "base": {"model": "qwen2.5-coder-0.5b", "price": {"input": 0.1, "output": 0.4}, "max_tokens": 128},
        "guide": {"model": "qwen2.5-coder-1.5b", "price": {"input": 1.0, "output": 4.0}, "max_tokens": 128},
    },
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.16},
    "provider": "local",
}
NOTICE = "The library opens at nine on weekdays and at eleven on Saturdays. It is closed on Sundays."


def main() -> None:
    """Ask two questions, the second about a text."""
    with Orchestrator.from_config(CONFIG) as orchestrator:
        for question in (
            Question("In which country is the city of Kyoto?"),
            Question("When does the library open on Saturdays?", context=NOTICE),
        ):
            answer = orchestrator.ask(question)
            print(f"{question.text} {answer.text} ({answer.cost} USD, {answer.latency_s:.1f} s)")
            print(answer.explain())


if __name__ == "__main__":
    main()
