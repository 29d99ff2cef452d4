"""One model at three efforts: what each costs and answers, and what a ladder of them costs under a promise.

    python benchmarks/efforts.py QUESTIONS.jsonl --replies FILE                       replies of an earlier run
    python benchmarks/efforts.py QUESTIONS.jsonl --replies FILE --upstream URL        a server that has the model

QUESTIONS.jsonl has `question` and `gold`, a number. A small local model knows no `reasoning_effort`: a server in
between turns it into instructions, two worked examples and a bound of tokens, and adds the last number of the reply as
a line of its own. It keeps each reply in FILE, so a run that was interrupted goes on. `collect` asks it for the three
entries of the configuration; 20 splits, regret beside the highest effort, confidence 90 %.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from table import OrReference, Seeded
from without_logprobs import free

from cascade.collection import CollectSettings, collect
from cascade.config import load
from cascade.conformal.promise import Promise
from cascade.episodes.opening import open_log
from cascade.logs.questions import AskedQuestion
from cascade.policies.policy import Random, Threshold, known_score
from cascade.studies.methods import Method, fixed, one_test
from cascade.studies.study import study
from cascade.table import AGREEMENT, Log
from cascade.types import Question

NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")
MODEL, SPLITS = "qwen2.5-coder-1.5b", 20
BAKER = "A baker makes 12 loaves an hour for 5 hours and sells each for $3. He pays $40 for flour. What is his profit?"
ANN = "Ann has 30 apples. She gives a third to Ben and eats 4. How many are left?"
BAKER_STEPS = "He makes 12 * 5 = 60 loaves and sells them for 60 * 3 = 180 dollars. The profit is 180 - 40 = 140."
ANN_STEPS = "She gives 30 / 3 = 10 apples to Ben. Then 30 - 10 - 4 = 16 are left."
EFFORTS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "none": (8, "Answer with the number only.", (BAKER, "140", ANN, "16")),
    "low": (
        128,
        "Solve it in at most three short sentences. End with: The answer is NUMBER.",
        (BAKER, f"{BAKER_STEPS} The answer is 140.", ANN, f"{ANN_STEPS} The answer is 16."),
    ),
    "high": (512, "Think step by step. End with the answer alone, as a number, in the last line.", ()),
}
"""The most tokens of a reply, the instructions, and examples: a user's words and the model's in turn."""
PRICE = {"input": 0.25, "output": 2.0}  # USD a million tokens: those of a small hosted model in November 2026


class Server(ThreadingHTTPServer):
    """Answers from a file, or asks the model behind it and writes the reply there."""

    def __init__(self, replies: Path, upstream: str | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        lines = replies.read_text("utf-8").splitlines() if replies.exists() else []
        self.replies: dict[str, Any] = dict(json.loads(line) for line in lines)
        self.file, self.upstream, self.lock = replies.open("a", 1, "utf-8"), upstream, threading.Lock()

    def reply(self, effort: str, question: str) -> Any:
        """Return a completion in OpenAI's form."""
        key, (most, instructions, examples) = f"{effort}: {question}", EFFORTS[effort]
        if key not in self.replies:
            if self.upstream is None:
                raise SystemExit("a question has no reply in the file: name a server of the model with --upstream")
            roles = ("user", "assistant") * (len(examples) // 2)
            turns = [{"role": role, "content": text} for role, text in zip(roles, examples, strict=True)]
            messages = [{"role": "system", "content": instructions}, *turns, {"role": "user", "content": question}]
            body = {"model": MODEL, "messages": messages, "max_tokens": most, "temperature": 0, "logprobs": True}
            answer = httpx.post(f"{self.upstream}/chat/completions", json=body, timeout=600).raise_for_status()
            with self.lock:
                self.replies[key] = answer.json()
                self.file.write(json.dumps([key, self.replies[key]]) + "\n")
        reply = copy.deepcopy(self.replies[key])
        message = reply["choices"][0]["message"]
        if numbers := NUMBER.findall(message["content"]):
            message["content"] += f"\nAnswer: {numbers[-1].rstrip('.,')}"
        return reply


class Handler(BaseHTTPRequestHandler):
    """Speaks chat completions."""

    server: Server

    def do_POST(self) -> None:
        """Answer one request."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = body["messages"][-1]["content"].removeprefix("Question: ")
        reply = json.dumps(self.server.reply(body["reasoning_effort"], question)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def collected(rows: list[Any], address: str, folder: Path) -> Log:
    """Collect the three answers to each question."""
    entry = {"model": MODEL, "api_base": address, "price": PRICE, "max_tokens": 512}
    entries = {effort: {**entry, "settings": {"reasoning_effort": effort}} for effort in EFFORTS}
    entries["high"]["refuses"] = ["logprobs"]  # nothing is decided after the last answer
    ladder = {"kind": "ladder", "models": list(EFFORTS)}
    config = load({"models": entries, "strategy": ladder, "provider": "openai_http", "traces": "off"})
    questions = [AskedQuestion(str(at), Question(row["question"]), (str(row["gold"]),)) for at, row in enumerate(rows)]
    collect(config, questions, folder / "log.jsonl", CollectSettings(baselines=(), matcher="number"))
    return open_log(str(folder / "log.jsonl")).datasets[0].log


def main() -> None:
    """Collect, then print a line for each effort and for each method to choose one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--replies", type=Path, required=True)
    parser.add_argument("--upstream")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.questions.read_text("utf-8").splitlines()]
    with Server(given.replies, given.upstream) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log = collected(rows, f"http://127.0.0.1:{server.server_port}/v1", Path(folder))
        server.shutdown()
    costs = log.cost_nano_usd.mean(axis=0)
    for node, right, cost in zip(log.nodes, np.nanmean(log.right, axis=0), costs, strict=True):
        print(
            f"{node.name}: right {right:.3f}, cost {cost / costs[-1]:.3f} x the highest effort's ({cost:.0f} nano-USD)"
        )
    low = log.only((1, 2))
    logs = {"low, high": low, "none, low, high": log, "low, high without log-probs": free(low)}
    logs["none, low, high without log-probs"] = free(log)
    for risk in (0.05, 0.1):
        for name, each in logs.items():
            score = known_score(each)
            methods: list[Method] = [Seeded("fit"), OrReference(one_test("random", Random()))]
            if score is not None:
                methods.append(OrReference(one_test("threshold", Threshold(score.signal, score.sign))))
            if each.width > 2:
                methods.append(fixed("serve if the two agree", Threshold(AGREEMENT, -1.0, tie=None), -0.5))
            done = study(each, Promise("regret", risk, 0.9), methods, splits=SPLITS, seed=0)
            rows = [done.row(method.name) for method in methods]
            parts = "; ".join(f"{row.name} {np.mean(row.curve):.3f} (lost {row.risk:.3f})" for row in rows)
            print(f"regret {risk:.0%}, {name}: {parts}", flush=True)


if __name__ == "__main__":
    main()
