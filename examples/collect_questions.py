"""Log all steps of a few questions, stop at a spending cap, and resume: no call is paid twice.

    python examples/collect_questions.py

It runs offline, with the fake provider.
"""

import tempfile
from pathlib import Path

from cascade.collection import CollectSettings, collect
from cascade.config import load
from cascade.episodes.rows import datasets_of
from cascade.logs.files import read_rows
from cascade.logs.questions import read_questions

QUESTIONS = """\
{"question": "Which planet is the largest?", "answer": "Jupiter"}
{"question": "Which river runs through Vienna?", "answers": ["Danube", "the Danube"]}
{"question": "What is 6 times 7?", "answer": "42"}
"""
SETTINGS = {
    "models": {
        "base": {"model": "small", "price": {"input": 0.1, "output": 0.4}, "max_tokens": 64},
        "guide": {"model": "large", "price": {"input": 1, "output": 4}, "max_tokens": 64},
    },
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "provider": "fake",
    "traces": "off",
}


def main() -> None:
    """Collect with too small a cap, then with enough, and show what the log holds."""
    config = load(SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        source, log = Path(folder) / "questions.jsonl", Path(folder) / "episodes.jsonl"
        source.write_text(QUESTIONS, "utf-8")
        for cap in (0.0009, 1):
            settings = CollectSettings(resume=True, concurrency=1, max_cost_usd=cap, baselines=(), matcher="exact")
            progress = collect(config, read_questions(source), log, settings).progress
            print(f"cap ${cap}: {progress.done} of {progress.total} questions, {progress.made_calls} calls made")
        (read,) = datasets_of(read_rows(log))
        print(f"{read.log.n} episodes of {len(set(read.log.steps.tolist()))} steps")


if __name__ == "__main__":
    main()
