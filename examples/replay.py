"""Log what the models said, then run the same questions again for no money, with another policy.

    python examples/replay.py

A replay answers only calls that were logged, so the log is made with every round run. It runs offline.
"""

import tempfile
from pathlib import Path

from cascade import Orchestrator
from cascade.episodes.files import append_jsonl
from cascade.episodes.schema import rows
from cascade.providers.fake import FakeProvider, Script, reply

MODELS = {"base": "small", "guide": "large"}
ROUNDS = {"kind": "base_guide", "rounds": 2}
SCRIPT: Script = {
    "small": ["Reasoning: By size.\nAnswer: Saturn", "Reasoning: By mass too.\nAnswer: Jupiter"],
    "large": [reply("No, Jupiter", p_yes=0.3), reply("Yes", p_yes=0.97)],
}


def main() -> None:
    """Write a log of both rounds, then try two thresholds on it."""
    question = "Which planet is the largest?"
    every_round = {"models": MODELS, "strategy": ROUNDS, "policy": {"kind": "fixed", "depth": 2}, "provider": "fake"}
    answer = Orchestrator.from_config(every_round, providers={"fake": FakeProvider(SCRIPT)}).ask(question)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "episodes.jsonl"
        print(f"logged {append_jsonl(log, rows(answer, dataset='planets', horizon=2))} calls")
        for threshold in (0.2, 0.5):
            policy = {"kind": "threshold", "threshold": threshold}
            again = {"models": MODELS, "strategy": ROUNDS, "policy": policy, "provider": f"replay:{log}"}
            replayed = Orchestrator.from_config(again).ask(question)
            print(f"threshold {threshold}: {replayed.text!r} after {len(replayed.steps)} of 2 rounds")


if __name__ == "__main__":
    main()
