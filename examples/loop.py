"""The whole loop on your machine: observe, promote, enforce, drift, alarm, fallback.

    python examples/loop.py [--automatic] [LOG.parquet]

With `--automatic` the server promotes by itself once its plan says that a promotion is likely.
Live are the requests, over HTTP, a `cascade serve` process, its store, the look and the audits. Replayed are the
models' answers: a server on loopback gives those of a log, by default of the 296 messages that ship with the package.
The log must be of a ladder of two models that were both asked each request. The drift is a base that gives the answers
of other requests, as sure of them as it was.
"""

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from cascade.episodes.schema import chat_of
from cascade.evaluation.logs import open_log
from cascade.matching import default_for, get_comparator

ALPHA, AUDIT, ENFORCED, MOST = 0.1, 0.25, 200, 400
PROMOTE = "automatic" if "--automatic" in sys.argv else "manual"
Body = Mapping[str, Any]


class Recorded:
    """The answers of a log, by model and request."""

    def __init__(self, log: str) -> None:
        rows = [row for row in open_log(log).rows() if row["walk"] is None and chat_of(row) is not None]
        by_step = {row["step"]: row["model"] for row in rows}
        self.base, self.guide = by_step[1], by_step[2]
        self.price = {model: self._mean([row for row in rows if row["model"] == model]) for model in by_step.values()}
        self.answers = {(row["model"], self._key(self._body(row)["messages"])): row for row in rows}
        self.bodies = [self._body(row) for row in rows if row["step"] == 2]
        self.requests = [body for body in self.bodies if (self.base, self._key(body["messages"])) in self.answers]
        mixed = random.Random(1).sample(self.requests, len(self.requests))
        self.other = {self._key(one["messages"]): two for one, two in zip(self.requests, mixed, strict=True)}
        self.worse = False
        kind = chat_of(rows[0])
        self.comparator, self.chat = get_comparator(default_for(kind).name), kind

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
        said: dict[str, Any] = json.loads(self.answers[model, self._key(body["messages"])]["text"])
        return said

    def completion(self, body: Body) -> dict[str, Any]:
        """Return what the provider's server sends."""
        model, asked = str(body["model"]), body
        if self.worse and model == self.base:
            asked = self.other[self._key(body["messages"])]
        row = self.answers[model, self._key(asked["messages"])]
        choice: dict[str, Any] = {"index": 0, "message": json.loads(row["text"]), "finish_reason": "stop"}
        tokens = row["signals"]["replay"].get("tokens")
        if tokens and body.get("logprobs"):
            choice["logprobs"] = {
                "content": [{"token": one[0], "logprob": one[1], "top_logprobs": []} for one in tokens]
            }
        read, wrote = row["input_tokens"] or 1, row["output_tokens"] or 1
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return {"id": "replayed", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def provider(recorded: Recorded) -> ThreadingHTTPServer:
    """Start the provider's server, and return it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            data = json.dumps(recorded.completion(body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def configuration(recorded: Recorded, folder: Path, address: str) -> Path:
    """Write the configuration, and return its path."""
    models = {
        place: {"model": model, "price": {"input": 0, "output": 0, "request": recorded.price[model]}}
        for place, model in (("base", recorded.base), ("guide", recorded.guide))
    }
    config = {
        "models": models,
        "provider": {"kind": "openai_http", "api_base": address},
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "traces": f"sqlite:///{folder}/traces.db",
        "modes": {"share": 1.0, "alpha": ALPHA, "audit": AUDIT, "promote": PROMOTE},
    }
    path = folder / "cascade.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


class Client:
    """Sends requests to the cascade, each as a customer of its own, and notes what came."""

    def __init__(self, recorded: Recorded, address: str) -> None:
        self.recorded, self.http = recorded, httpx.Client(base_url=address, timeout=120)
        self.sent = 0

    def ask(self, body: Body) -> tuple[str, str, bool, float]:
        """Return the mode, who served, whether it differs from the guide's answer, and what was saved in USD."""
        self.sent += 1
        group = {"x-cascade-group": f"customer {self.sent}"}
        answer = self.http.post("/v1/chat/completions", json={**body, "model": "cascade"}, headers=group)
        answer.raise_for_status()
        told, guide = answer.headers, self.recorded.message(self.recorded.guide, body)
        served = answer.json()["choices"][0]["message"]
        same = served == guide or self.recorded.comparator.same(_text(served), _text(guide), self.recorded.chat).correct
        saved = self.recorded.price[self.recorded.guide] - float(told["x-cascade-cost-usd"])
        return told["x-cascade-mode"], told["x-cascade-served-by"], same is not True, saved

    def state(self) -> dict[str, Any]:
        """Return the cascade's state once no row is pending."""
        while True:
            found: dict[str, Any] = self.http.get("/v1/cascades").json()["data"][0]
            if not found["rows"]["pending"]:
                return found
            time.sleep(0.05)


def _text(message: Body) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(message.get("tool_calls"))


def served(folder: Path, config: Path) -> Iterator[str]:
    """Run `cascade serve`, and yield its address."""
    command = [sys.executable, "-m", "cascade.cli.main", "serve", "-c", str(config), "--port", "8407"]
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
    logs = [one for one in sys.argv[1:] if one != "--automatic"]
    recorded = Recorded(logs[0] if logs else "demo-requests")
    print(f"replayed: the answers of {recorded.base} and {recorded.guide} to {len(recorded.requests)} requests.")
    print("live: the requests over HTTP, cascade serve, its store, the look, the audits.")
    upstream = provider(recorded)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = configuration(recorded, folder, f"http://127.0.0.1:{upstream.server_port}/v1")
        for address in served(folder, config):
            play(recorded, Client(recorded, address), config)
    upstream.shutdown()


def play(recorded: Recorded, client: Client, config: Path) -> None:
    """Observe, promote, enforce, drift, fall back."""
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(client.ask, recorded.requests))
    rows = client.state()["rows"]
    print(f"\nobserve: {len(seen)} requests, all served by {seen[0][1]}; {rows['complete']} rows complete.")
    draw = random.Random(2)
    if PROMOTE == "automatic":
        until_promoted(recorded, client, draw)
    else:
        print("\n$ cascade promote", flush=True)
        subprocess.run([sys.executable, "-m", "cascade.cli.main", "promote", str(config)], check=True)  # noqa: S603 - our own
    before = [client.ask(draw.choice(recorded.requests)) for _ in range(ENFORCED)]
    state = client.state()
    audited = state["monitor"]["audits"]
    print(f"\nenforce: {told(before)}; {audited} audits, {state['monitor']['differing']} differ.")
    after: list[tuple[str, str, bool, float]] = []
    recorded.worse = True
    while len(after) < MOST and (not after or after[-1][0] == "enforce"):
        after.append(client.ask(draw.choice(recorded.requests)))
    state = client.state()
    since = state["monitor"]["audits"] - audited
    print(f"drift (the base gives other requests' answers): {told(after[:-1])}.")
    print(f"alarm after {since} audits of the drift: {state['alarm']}.")
    last = [client.ask(draw.choice(recorded.requests)) for _ in range(20)]
    print(f"fallback: {told(last)}. Mode: {last[-1][0]}.")
    saved = sum(one[3] for one in [*before, *after, *last])
    print(f"\nsaved by what was served: {saved:.4f} USD (audits not counted), {client.sent} requests in all.")


def until_promoted(recorded: Recorded, client: Client, draw: random.Random) -> None:
    """Send requests until the server has promoted by itself, and print the look."""
    while client.ask(draw.choice(recorded.requests))[0] == "observe":
        time.sleep(0.2)
    for look in client.state()["looks"]:
        said = f"{look['certifying_conversations']} conversations certify, {look.get('losses')} differ"
        print(
            f"look {look['look']} by {look['by']}: {look['verdict']}; {said}, {look['losses_allowed']} would certify."
        )
    print(f"promoted after {client.sent} requests.", flush=True)


def told(found: list[tuple[str, str, bool, float]]) -> str:
    """Return what was served in a sentence."""
    by = {model: sum(one[1] == model for one in found) for model in sorted({one[1] for one in found})}
    shares = ", ".join(f"{count} by {model}" for model, count in by.items())
    differ = sum(one[2] for one in found)
    return f"{len(found)} requests ({shares}), {differ} ({differ / max(len(found), 1):.1%}) differ from the guide"


if __name__ == "__main__":
    main()
