"""What it costs to leave a cached prefix: a conversation that stays with one model, and one that changes in the middle.

    python benchmarks/conversations.py [--turns 6] [--prefix 20000]

A conversation of --turns turns goes through `cascade serve` in each dialect; its system prompt and tools have --prefix
tokens, each turn adds 300 and is answered with 200. The models are played: each keeps what it has read and written in a
cache, as its vendor does, and tells its usage in its vendor's form. Prices are the table's. A row is a pair of models:
the cost of all turns with the base alone, the guide alone, and the base in the first half and the guide in the second;
`switch` is what the guide's turns cost more than they cost where it answered from the beginning, since it has to read
everything once. Each turn's cost is compared with one that is worked out here, to the nano-dollar.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from cascade import Orchestrator
from cascade.money import Price, PriceTable
from cascade.server.app import application
from cascade.types import Request

NEW, REPLY = 300, 200
PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}


class Vendor(NamedTuple):
    """A vendor's pair of models, the form of its usage, and whether it bills writes, for how long."""

    base: str
    guide: str
    form: str
    hour: bool = False


VENDORS = {
    "OpenAI": Vendor("openai/gpt-5-mini", "openai/gpt-5", "openai"),
    "Anthropic, 5 minutes": Vendor("anthropic/claude-haiku-4-5", "anthropic/claude-opus-4-5", "anthropic"),
    "Anthropic, 1 hour": Vendor("anthropic/claude-haiku-4-5", "anthropic/claude-opus-4-5", "anthropic", hour=True),
    "Gemini": Vendor("gemini/gemini-2.5-flash", "gemini/gemini-2.5-pro", "gemini"),
    "DeepSeek to OpenAI": Vendor("deepseek/deepseek-chat", "openai/gpt-5", "deepseek"),
}


class Played:
    """Models that remember how long a prefix each of them has in its cache."""

    def __init__(self, vendor: Vendor, prefix: int) -> None:
        self.vendor, self.prefix = vendor, prefix
        self.cached: dict[str, int] = {}
        self.worked_out: list[int] = []

    async def complete(self, request: Request, timeout_s: float) -> dict[str, Any]:  # noqa: ARG002 - a provider's
        """Answer a turn, and work out its cost by the price list."""
        assert request.chat is not None  # noqa: S101 - the server sends chat requests
        turn = sum(message["role"] == "user" for message in request.chat.messages)
        read, hit = self.prefix + turn * NEW + (turn - 1) * REPLY, self.cached.get(request.model, 0)
        self.cached[request.model] = read
        price = PriceTable.bundled().price(request.model)
        assert price is not None  # noqa: S101 - the table has every model of `VENDORS`
        self.worked_out.append(self._nano_usd(price, read, hit))
        message = {"role": "assistant", "content": "Yes."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"model": request.model, "choices": [choice], "usage": self._usage(request.model, read, hit)}

    async def close(self) -> None:
        """Do nothing."""

    def _nano_usd(self, price: Price, read: int, hit: int) -> int:
        new, rate = read - hit, price.input
        if price.cache_write is not None:
            rate = (price.cache_write_1h or 0) if self.vendor.hour else price.cache_write
        cached = price.input if price.cached_input is None else price.cached_input
        return -(-(new * rate + hit * cached + REPLY * price.output) // 1_000)

    def _usage(self, model: str, read: int, hit: int) -> dict[str, Any]:
        counts = {"prompt_tokens": read, "completion_tokens": REPLY, "total_tokens": read + REPLY}
        form = "openai" if model.startswith("openai/") else self.vendor.form
        if form == "anthropic":  # as litellm tells it
            new, hour = read - hit, self.vendor.hour
            split = {"ephemeral_5m_input_tokens": 0 if hour else new, "ephemeral_1h_input_tokens": new if hour else 0}
            counts |= {"cache_creation_input_tokens": new, "cache_read_input_tokens": hit}
            return {**counts, "prompt_tokens_details": {"cached_tokens": hit, "cache_creation_token_details": split}}
        if form == "deepseek":
            return {**counts, "prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": read - hit}
        thoughts = {"completion_tokens_details": {"reasoning_tokens": REPLY // 2}} if form == "gemini" else {}
        return {**counts, "prompt_tokens_details": {"cached_tokens": hit}, **thoughts}


def body(dialect: str, model: str, turn: int, vendor: Vendor, prefix: int) -> Mapping[str, Any]:
    """Return the request of a turn, from 1, in a dialect."""
    messages = [{"role": "user", "content": "word " * prefix}]
    messages += [{"role": role, "content": "Yes."} for _ in range(turn - 1) for role in ("assistant", "user")]
    mark = {"cache_control": {"type": "ephemeral", **({"ttl": "1h"} if vendor.hour else {})}}
    if dialect == "responses":
        return {"model": model, "input": messages, **mark}
    return {"model": model, "messages": messages, "max_tokens": 4_096, **mark}


async def costs(vendor: Vendor, dialect: str, models: list[str], prefix: int) -> list[int]:
    """Return what each turn cost in nano-dollars, as the server says. Raises SystemExit if it should be another."""
    played = Played(vendor, prefix)
    config = {
        "models": {"base": vendor.base, "guide": vendor.guide},
        "provider": "fake",
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5},
        "traces": "off",
    }
    async with Orchestrator.from_config(config, providers={"fake": played}) as served:
        transport = httpx.ASGITransport(application(served), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1/") as client:
            requests = [body(dialect, model, turn, vendor, prefix) for turn, model in enumerate(models, 1)]
            answers = [(await client.post(PATHS[dialect], json=request)).raise_for_status() for request in requests]
    billed = [round(float(answer.headers["x-cascade-cost-usd"]) * 10**9) for answer in answers]
    if billed != played.worked_out:
        raise SystemExit(f"{dialect}: the server says {billed}, and the price list {played.worked_out}")
    return billed


async def main(turns: int, prefix: int) -> None:
    """Print a row for each pair of models; every dialect gives the same costs, or the run ends with an error."""
    rows: list[dict[str, Any]] = []
    for name, vendor in VENDORS.items():
        half = turns // 2
        ways = ([vendor.base] * turns, [vendor.guide] * turns, [vendor.base] * half + [vendor.guide] * (turns - half))
        by_dialect = {d: [await costs(vendor, d, way, prefix) for way in ways] for d in PATHS}
        base, guide, switching = by_dialect["chat"]
        if any(spent != by_dialect["chat"] for spent in by_dialect.values()):
            raise SystemExit(f"{name}: the dialects differ: {by_dialect}")
        more = sum(switching[half:]) - sum(guide[half:])
        rows.append({"pair": name, "base": sum(base), "guide": sum(guide), "switching": sum(switching), "switch": more})
    print(f"{turns} turns after {prefix:,} tokens, USD{'base':>14}{'guide':>12}{'switching':>12}{'switch':>12}")
    for row in rows:
        print(f"{row['pair']:<32}", *(f"{row[way] / 10**9:>11.6f}" for way in ("base", "guide", "switching", "switch")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--prefix", type=int, default=20_000)
    given = parser.parse_args()
    asyncio.run(main(given.turns, given.prefix))
