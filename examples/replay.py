"""Log the models' replies, then run the same questions again at no cost, with another policy.

    python examples/replay.py

A replay answers only calls that were logged, so the log is made with every model asked. It runs offline.
"""

import tempfile
from pathlib import Path

from cascade import Orchestrator
from cascade.logs.files import write_rows
from cascade.logs.schema import rows
from cascade.providers.fake import FakeProvider, Script, reply

MODELS = {"base": "small", "guide": "large"}
LADDER = {"kind": "ladder", "models": ["base", "guide"]}
SCRIPT: Script = {
    "small": [reply("Reasoning: By size.\nAnswer: Saturn", logprobs=[-0.1, -0.5])],
    "large": [reply("Reasoning: By mass too.\nAnswer: Jupiter", logprobs=[-0.01, -0.02])],
}


def main() -> None:
    """Write a log of both models, then try two thresholds on it."""
    question = "Which planet is the largest?"
    every_model = {
        "models": MODELS,
        "strategy": LADDER,
        "policy": {"kind": "fixed", "depth": 2},
        "provider": "fake",
        "traces": "off",
    }
    answer = Orchestrator.from_config(every_model, providers={"fake": FakeProvider(SCRIPT)}).ask(question)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "episodes.jsonl"
        print(f"logged {write_rows(log, rows(answer, dataset='planets', horizon=2))} calls")
        for threshold in (0.2, 0.5):
            policy = {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": threshold}
            again = {"models": MODELS, "strategy": LADDER, "policy": policy, "provider": f"replay:{log}"}
            replayed = Orchestrator.from_config(again).ask(question)
            print(f"threshold {threshold}: {replayed.text!r} after {len(replayed.steps)} of 2 steps")


if __name__ == "__main__":
    main()
