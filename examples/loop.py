"""The whole loop on your machine: observe, promote, enforce, drift, alarm, fallback.

    python examples/loop.py [--live MINUTES] [LOG.parquet]

Live are the requests, over HTTP, a `cascade serve` process, its store, the look and the audits. Replayed are the
models' answers: a server on loopback gives those of a log, by default of the 296 messages that ship with the package.
The log must be of a ladder of two models that were both asked each request. The drift is a base that gives the answers
of other requests, as sure of them as it was.

With `--live MINUTES` the log's two models answer on this machine (`provider: local`; `cascade models pull` gets their
weights): for so many minutes while the cascade observes, the rest of that from the log, and to every call after the
promotion. It prints how many calls were which.
"""

import argparse
import asyncio
import json
import math
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from cascade.chat import ChatRequest
from cascade.episodes.opening import open_log
from cascade.logs.schema import chat_of
from cascade.matching import default_for, get_matcher
from cascade.providers.local import Local
from cascade.types import Question, Request

ALPHA, AUDIT, ENFORCED, MOST = 0.1, 0.25, 200, 400
CONTEXT_TOKENS, TIMEOUT_S = 2_048, 600.0
Body = Mapping[str, Any]


class Pair:
    """Two models that answer from a log, by model and request, or live.

    Attributes:
        live: whether they answer live at all.
        until_s: when they stop to, on the monotonic clock.
        calls: how many were live, and how many replayed.
        worse: whether the base gives the answers of other requests.
    """

    def __init__(self, log: str, *, live: bool) -> None:
        rows = [row for row in open_log(log).rows() if row["walk"] is None and chat_of(row) is not None]
        by_step = {row["step"]: row["model"] for row in rows}
        self.base, self.guide = by_step[1], by_step[2]
        self.price = {model: self._mean([row for row in rows if row["model"] == model]) for model in by_step.values()}
        self.answers = {(row["model"], self._key(self._body(row)["messages"])): row for row in rows}
        self.bodies = [self._body(row) for row in rows if row["step"] == 2]
        self.requests = [body for body in self.bodies if (self.base, self._key(body["messages"])) in self.answers]
        heads = zip(*(request["messages"] for request in self.requests), strict=False)
        self.examples = sum(1 for _ in takewhile(lambda same: all(message == same[0] for message in same), heads))
        mixed = random.Random(1).sample(self.requests, len(self.requests))
        self.other = {
            self._key(request["messages"]): other for request, other in zip(self.requests, mixed, strict=True)
        }
        self.live, self.until_s, self.worse = live, math.inf, False
        self.calls, self._local = Counter[str](), Local(CONTEXT_TOKENS)
        kind = chat_of(rows[0])
        self.comparator, self.chat = get_matcher(default_for(kind).name), kind

    @staticmethod
    def _mean(rows: list[Body]) -> float:
        return sum(row["cost_nano_usd"] or 0 for row in rows) / len(rows) / 1e9

    @staticmethod
    def _body(row: Body) -> dict[str, Any]:
        request = chat_of(row)
        assert request is not None
        return dict(request.body())

    @staticmethod
    def _key(messages: Any) -> str:
        return json.dumps(messages, sort_keys=True)

    def message(self, model: str, body: Body) -> dict[str, Any]:
        """Return a recorded message."""
        message: dict[str, Any] = json.loads(self.answers[model, self._key(body["messages"])]["text"])
        return message

    def completion(self, body: Body) -> Body:
        """Return what the provider's server sends."""
        model, source = str(body["model"]), body
        if self.worse and model == self.base:
            source = self.other[self._key(body["messages"])]
        live = self.live and time.monotonic() < self.until_s
        self.calls["live" if live else "replayed"] += 1
        body = {**body, "messages": source["messages"]}
        return self._answered(model, body) if live else self._replayed(model, body)

    def _answered(self, model: str, body: Body) -> Body:
        """Return what a model says now."""
        chat = ChatRequest.from_openai(body)
        call = Request(model, (), "base", "answer", 1, Question.of_chat(chat), chat.max_tokens or 1, chat=chat)
        return asyncio.run(self._local.complete(call, TIMEOUT_S))

    def _replayed(self, model: str, body: Body) -> Body:
        """Return what a model said when the log was written."""
        row = self.answers[model, self._key(body["messages"])]
        choice: dict[str, Any] = {"index": 0, "message": json.loads(row["text"]), "finish_reason": "stop"}
        tokens = row["signals"]["replay"].get("tokens")
        if tokens and body.get("logprobs"):
            choice["logprobs"] = {
                "content": [{"token": token[0], "logprob": token[1], "top_logprobs": []} for token in tokens]
            }
        read, wrote = row["input_tokens"] or 1, row["output_tokens"] or 1
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return {"id": "replayed", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def provider(pair: Pair) -> ThreadingHTTPServer:
    """Start the provider's server, and return it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            data = json.dumps(pair.completion(body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def configuration(pair: Pair, folder: Path, address: str) -> Path:
    """Write the configuration, and return its path."""
    models = {
        place: {"model": model, "price": {"input": 0, "output": 0, "request": pair.price[model]}}
        for place, model in (("base", pair.base), ("guide", pair.guide))
    }
    config = {
        "models": models,
        "provider": {"kind": "openai_http", "api_base": address},
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "timeouts": {"per_call_s": TIMEOUT_S},
        "traces": f"sqlite:///{folder}/traces.db",
        "modes": {"share": 1.0, "risk": ALPHA, "examples": pair.examples},
        "audits": {"probability": AUDIT},
    }
    path = folder / "cascade.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


class Exchange(NamedTuple):
    """What came of a request: whether it differs from the guide's answer in the log, and what was saved, in USD."""

    mode: str
    served_by: str
    differs: bool
    saved_usd: float


class Client:
    """Sends requests to the cascade, each a conversation of its own, and notes what came."""

    def __init__(self, pair: Pair, address: str) -> None:
        self.pair, self.http = pair, httpx.Client(base_url=address, timeout=TIMEOUT_S)
        self.sent = 0

    def ask(self, body: Body) -> Exchange:
        """Send a request, and return what came of it."""
        self.sent += 1
        answer = self.http.post("/v1/chat/completions", json={**body, "model": "cascade"})
        answer.raise_for_status()
        headers, guide = answer.headers, self.pair.message(self.pair.guide, body)
        served = answer.json()["choices"][0]["message"]
        same = headers["x-cascade-served-by"] == self.pair.guide or self.pair.comparator.same(
            _text(served), _text(guide), self.pair.chat
        )
        saved = self.pair.price[self.pair.guide] - float(headers["x-cascade-cost-usd"])
        return Exchange(headers["x-cascade-mode"], headers["x-cascade-served-by"], same is not True, saved)

    def state(self) -> dict[str, Any]:
        """Return the cascade's state once no row is pending."""
        while True:
            state: dict[str, Any] = self.http.get("/v1/cascades").json()["data"][0]
            if not state["rows"]["pending"]:
                return state
            time.sleep(0.05)


def _text(message: Body) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(message.get("tool_calls"))


def served(folder: Path, config: Path) -> Iterator[str]:
    """Run `cascade serve`, and yield its address."""
    command = [sys.executable, "-m", "cascade", "serve", "-c", str(config), "--port", "8407"]
    with (folder / "serve.log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:  # noqa: S603 - our own
        address = "http://127.0.0.1:8407"
        try:
            for _ in range(600):
                try:
                    if httpx.get(f"{address}/readyz").is_success:
                        break
                except httpx.TransportError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()


def main() -> None:
    """Play the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="?", default="demo-requests", metavar="LOG.parquet")
    parser.add_argument("--live", type=float, metavar="MINUTES", help="the models answer here; so long while observing")
    options = parser.parse_args()
    pair = Pair(options.log, live=options.live is not None)
    print(f"{pair.base} and {pair.guide}, {len(pair.requests)} requests in {options.log}.")
    print(
        "live: the requests over HTTP, cascade serve, its store, the look, the audits; of the models' answers:", end=""
    )
    print(" what is said below." if pair.live else " none, the log's are replayed.", flush=True)
    upstream = provider(pair)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address = f"http://127.0.0.1:{upstream.server_port}/v1"
        config = configuration(pair, folder, address)
        for address in served(folder, config):
            play(pair, Client(pair, address), config, options)
    upstream.shutdown()


def play(pair: Pair, client: Client, config: Path, options: argparse.Namespace) -> None:
    """Observe, promote, enforce, drift, fall back."""
    began_s = time.monotonic()
    if pair.live:
        pair.until_s = began_s + 60 * options.live
    with ThreadPoolExecutor(2 if pair.live else 8) as pool:
        seen = list(pool.map(client.ask, pair.requests))
    rows = client.state()["rows"]
    print(f"\nobserve: {len(seen)} requests, all served by {seen[0].served_by}; {rows['conversations']} may certify.")
    pair.until_s = math.inf
    say(pair, began_s)
    draw = random.Random(2)
    print("\n$ cascade promote", flush=True)
    subprocess.run([sys.executable, "-m", "cascade", "promote", "-c", str(config)], check=True)  # noqa: S603 - our own
    enforced_s = time.monotonic()
    before = [client.ask(draw.choice(pair.requests)) for _ in range(ENFORCED)]
    state = client.state()
    audited = state["monitor"]["audits"]
    print(f"\nenforce: {summary(before)}; {audited} audits, {state['monitor']['misses']} differ.")
    say(pair, enforced_s)
    after, drifted_s, pair.worse = list[Exchange](), time.monotonic(), True
    while len(after) < MOST and (not after or after[-1].mode == "enforce"):
        after.append(client.ask(draw.choice(pair.requests)))
    state = client.state()
    since = state["monitor"]["audits"] - audited
    print(f"drift (the base gives other requests' answers): {summary(after[:-1])}.")
    print(f"alarm after {since} audits of the drift: {state['alarm']}.")
    last = [client.ask(draw.choice(pair.requests)) for _ in range(20)]
    print(f"fallback: {summary(last)}. Mode: {last[-1].mode}.")
    say(pair, drifted_s)
    saved = sum(exchange.saved_usd for exchange in [*before, *after, *last])
    print(f"\nsaved since the promotion, without the cost of audits: {saved:.4f} USD; ", end="")
    print(f"the guide alone costs {pair.price[pair.guide] * len([*before, *after, *last]):.4f} USD.")
    print(f"{client.sent} requests in {(time.monotonic() - began_s) / 60:.1f} minutes.")


def say(pair: Pair, since_s: float) -> None:
    """Print where the models' answers of a phase came from, and how long it took."""
    calls = ", ".join(f"{count} {how}" for how, count in sorted(pair.calls.items()))
    print(f"  calls of the models: {calls}; {time.monotonic() - since_s:.0f} s.", flush=True)
    pair.calls.clear()


def summary(exchanges: list[Exchange]) -> str:
    """Return what was served in a sentence."""
    by = sorted(Counter(exchange.served_by for exchange in exchanges).items())
    shares = ", ".join(f"{count} by {model}" for model, count in by)
    count, differ = len(exchanges), sum(exchange.differs for exchange in exchanges)
    return f"{count} requests ({shares}), {differ} ({differ / max(count, 1):.1%}) differ from the guide"


if __name__ == "__main__":
    main()
