"""Logs of chat requests with known truth, in the form of OpenAI's batches, to try the commands on as a user would.

    python benchmarks/unseen_logs.py intents FOLDER
    python benchmarks/unseen_logs.py extraction FOLDER --n 600
    python benchmarks/unseen_logs.py conversations FOLDER --seed 1

writes FOLDER/requests.jsonl, FOLDER/small.jsonl and FOLDER/large.jsonl: requests, and what two models said with the
log-probs of their tokens. Nothing in them says which outputs are right; `differs` prints how often the small model's
output truly differs from the large one's.

* intents: one of nine labels. In the last two fifths a tenth, new one arrives, which the small model does not know.
* extraction: nested JSON, an invoice with lines. The small model gets a leaf wrong, the more often the more lines.
* conversations: one to six turns of one system prompt; each turn repeats what was said before (`group`). Hard
  conversations are longer.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

INTENTS = ("card lost", "refund", "address", "login", "limit", "fees", "statement", "transfer", "loan")
NEW = "crypto"
FIRST_NEW = 0.6
"""Where in the log the tenth intent arrives."""
SMALL, LARGE = "gpt-4o-mini", "gpt-4o"


class Made(NamedTuple):
    """One request: its body, what both models say, whether that differs, the small one's doubt, and a conversation."""

    body: Mapping[str, Any]
    small: str
    large: str
    differs: bool
    doubt: float
    group: str | None = None


def chat(system: str, *turns: str) -> list[dict[str, str]]:
    """Return messages: the user and the assistant in turns."""
    roles = ("user", "assistant")
    return [{"role": "system", "content": system}] + [
        {"role": roles[at % 2], "content": said} for at, said in enumerate(turns)
    ]


def schema(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response format."""
    inside = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": inside}}


def intents(n: int, draw: random.Random) -> Iterator[Made]:
    """Yield requests for one of the labels."""
    wanted = schema("route", {"intent": {"enum": [*INTENTS, NEW]}})
    for at in range(n):
        new = at >= FIRST_NEW * n and draw.random() < 0.2
        truth, doubt = NEW if new else draw.choice(INTENTS), draw.random()
        wrong = draw.random() < (0.9 if new else 0.5 * doubt**2)
        body = {
            "messages": chat("Route the message.", f"Message {draw.randrange(10**9)} about {truth}, please."),
            "response_format": wanted,
        }
        other = draw.choice([one for one in INTENTS if one != truth])
        yield Made(body, json.dumps({"intent": other if wrong else truth}), json.dumps({"intent": truth}), wrong, doubt)


def extraction(n: int, draw: random.Random) -> Iterator[Made]:
    """Yield requests for nested JSON."""
    line = {"type": "object", "properties": {"sku": {"type": "string"}, "quantity": {"type": "integer"}}}
    fields = {"number": {"type": "string"}, "seller": {"type": "object"}, "lines": {"type": "array", "items": line}}
    for at in range(n):
        many = draw.randint(1, 6)
        lines = [{"sku": f"A{draw.randint(100, 999)}", "quantity": draw.randint(1, 9)} for _ in range(many)]
        number = draw.randrange(10**9)
        truth = {"number": f"R-{number}", "seller": {"name": f"Firm {at % 40}", "vat": None}, "lines": lines}
        doubt = min(1.0, draw.random() * many / 4)
        found = json.loads(json.dumps(truth))
        wrong = draw.random() < 0.6 * doubt**2
        if wrong:
            found["lines"][draw.randrange(many)]["quantity"] += 1
        text = f"Invoice R-{number} of Firm {at % 40}: " + "; ".join(
            f"{one['quantity']} x {one['sku']}" for one in lines
        )
        body = {"messages": chat("Extract the invoice.", text), "response_format": schema("invoice", fields)}
        yield Made(body, json.dumps(found, indent=1), json.dumps(truth), wrong, doubt)


def conversations(n: int, draw: random.Random) -> Iterator[Made]:
    """Yield turns of conversations, each with all that was said before it."""
    system = "You work for a library. " + "Be short. Answer with one word: yes, no or desk. " * 20
    made = number = 0
    while made < n:
        hard, said = draw.random() < 0.4, list[str]()
        for turn in range(draw.randint(3, 6) if hard else draw.randint(1, 2)):
            said.append(f"Conversation {number}, question {turn}: may I keep book {draw.randint(1, 10**6)} longer?")
            doubt, truth = draw.random(), draw.choice(("yes", "no", "desk"))
            wrong = draw.random() < (0.7 if hard else 0.2) * doubt**2
            other = draw.choice([one for one in ("yes", "no", "desk") if one != truth])
            small = other if wrong else truth.capitalize() + "."
            yield Made({"messages": chat(system, *said)}, small, truth, wrong, doubt, f"conversation {number}")
            said.append(truth)
            made += 1
        number += 1


KINDS: Mapping[str, Callable[[int, random.Random], Iterator[Made]]] = {
    "intents": intents,
    "extraction": extraction,
    "conversations": conversations,
}


def result(name: str, model: str, body: Mapping[str, Any], said: str, doubt: float) -> dict[str, Any]:
    """Return a line of a batch's results; words are tokens, the last one the least sure."""
    words = said.split(" ")
    sure = [math.log(0.999)] * (len(words) - 1) + [math.log(max(0.05, 1 - 0.6 * doubt))]
    tokens = [{"token": word, "logprob": one, "top_logprobs": []} for word, one in zip(words, sure, strict=True)]
    asked = sum(len(one["content"]) for one in body["messages"]) // 4 + 60
    usage = {"prompt_tokens": asked, "completion_tokens": len(said) // 4 + 1}
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    reply = {"model": model, "choices": [{**choice, "logprobs": {"content": tokens}}], "usage": usage}
    return {"custom_id": name, "response": {"status_code": 200, "body": reply}, "error": None}


def main() -> None:
    """Write a log, and print how often the small model's output differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[dict[str, Any]]] = {"requests": [], "small": [], "large": []}
    different = 0
    for at, one in enumerate(KINDS[given.kind](given.n, random.Random(f"{given.kind} {given.seed}"))):
        name = f"{given.kind}-{given.seed}-{at}"
        body = {"model": SMALL, **one.body}
        grouped = {} if one.group is None else {"group": f"{one.group}, {given.seed}"}
        asked = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines["requests"].append({**asked, **grouped})
        lines["small"].append(result(name, SMALL, body, one.small, one.doubt))
        lines["large"].append(result(name, LARGE, body, one.large, 0.05))
        different += one.differs
    for name, rows in lines.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (given.folder / f"{name}.jsonl").write_text(text, "utf-8")
    print(f"{given.folder}: {len(lines['requests'])} requests, outputs differ on {different}")


if __name__ == "__main__":
    main()
