"""Thousands of requests of every kind to one `cascade serve`: nothing grows, nothing is lost, and the books are right."""

from __future__ import annotations

import asyncio
import json
import random
import re
import resource
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import until

from cascade.budget.caps import Account
from cascade.providers.fake import chunks, reply
from cascade.records.ledger import SqlLedger
from cascade.server.auth import new_key

from .served import POOL, WAIT_S, started, write
from .test_sight import BEARER, CHAT, KEY, KEYS, samples

CLIENTS, STRANGER = 16, new_key()
PATHS = {
    CHAT: lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 50},
    "/v1/responses": lambda text: {"input": text},
}
PRICES = {"small": (1_000, 2_000), "large": (10_000, 20_000)}
"""Of an input and an output token, in nano-dollars, as in CONFIG."""
FATES = dict(zip(
    ["well", "judged", "explained", "watched", "leaves", "limited", "broken", "cut", "strange"],
    [69, 2, 5, 1, 6, 4, 4, 5, 4], strict=True,
))  # fmt: skip
"""What becomes of a request, and in how many of a hundred cases."""
ALONE, ALWAYS = {"limited": 429, "broken": 503}, {"cut": 400, "strange": 401}
"""The status of what does not go well: of a model alone, where the cascade asks another one, and always."""


async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a head and its body, which has a length or comes in chunks."""
    head, body = await reader.readuntil(b"\r\n\r\n"), b""
    if b"transfer-encoding: chunked" not in head.lower():
        length = re.search(rb"content-length: (\d+)", head.lower())
        return head, await reader.readexactly(int(length[1]) if length else 0)
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return head, body


def send(writer: asyncio.StreamWriter, path: str, body: Any = None, key: str = KEY.key, cut: int | None = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()[:cut]
    head = [
        f"{'POST' if data else 'GET'} {path} HTTP/1.1", "host: localhost", f"x-api-key: {key}",
        f"x-cascade-explain: {b'explained' in data:d}", "content-type: application/json",
        f"content-length: {len(data)}", "\r\n",
    ]  # fmt: skip
    writer.write("\r\n".join(head).encode() + data)


class Traffic:
    """Clients and the provider behind the server: what it bills, and the statuses and traces of what was answered."""

    def __init__(self) -> None:
        self.statuses, self.traces, self.bill_nano_usd, self.port = Counter[int](), set[str](), 0, 0
        self._open = dict[Any, asyncio.StreamWriter]()
        self._reached, self._left = (defaultdict[bytes, asyncio.Event](asyncio.Event) for _ in range(2))

    async def provide(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[task := asyncio.current_task()] = writer
        with suppress(asyncio.IncompleteReadError):
            while True:
                await self._answer((await message(reader))[1], writer)
        self._open.pop(task).close()

    async def close(self) -> None:
        """End all connections, and wait until the other side has."""
        for writer in self._open.values():
            writer.write_eof()
        await asyncio.gather(*self._open)

    async def _answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        """Fail where a request says so, or bill an answer; if the client is to leave, wait for that halfway."""
        request, marked = json.loads(body), re.search(rb"(\w+) no\. (\d+)", body)
        (fate, name), model = marked.groups(), request["model"]
        if model == "small" and (failed := {b"limited": 429, b"broken": 500}.get(fate)):
            writer.write(b"HTTP/1.1 %d No\r\nretry-after: 3600\r\ncontent-length: 2\r\n\r\n{}" % failed)
            return
        tokens, logprob = (20 + int(name) % 7, 3), -2.0 if int(name) % 2 else -0.01
        self.bill_nano_usd += sum(count * price for count, price in zip(tokens, PRICES[model], strict=True))
        answer = reply(f"It is {model}.", logprobs=[logprob] * 3, input_tokens=tokens[0], output_tokens=tokens[1])
        pieces, kind = [json.dumps(answer).encode()], b"application/json"
        if request.get("stream"):
            pieces = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks(answer)]
            pieces, kind = [*pieces, b"data: [DONE]\n\n"], b"text/event-stream"
        size = sum(map(len, pieces))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, size) + pieces[0])
        if fate == b"leaves":
            self._reached[name].set()
            await self._left[name].wait()
        writer.write(b"".join(pieces[1:]))

    async def ask(self, numbers: Iterator[int]) -> None:
        """Send these requests, one after the other."""
        ends = None
        for number in numbers:
            ends = ends or await asyncio.open_connection("127.0.0.1", self.port)
            if not await self._ask(number, *ends):
                ends[1].close()
                ends = None
        if ends is not None:
            ends[1].write_eof()
            assert await ends[0].read() == b""
            ends[1].close()

    async def _ask(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send a request with a fate of its own; return whether the connection stays."""
        rng = random.Random(number)
        (fate,), path = rng.choices([*FATES], [*FATES.values()]), rng.choice([*PATHS])
        model = rng.choice(["small", "cascade"])
        body = {"model": model, "stream": rng.random() < 0.4, **PATHS[path](f"{fate} no. {number}")}
        if fate == "watched":
            send(writer, "/metrics")
            assert b" 200 " in (await message(reader))[0]
        send(writer, path, body, (STRANGER if fate == "strange" else KEY).key, -1 if fate == "cut" else None)
        if fate == "leaves":
            await self._reached[name := b"%d" % number].wait()
            writer.close()
            self._left[name].set()
            self.statuses[499] += 1
            return False
        head, answer = await message(reader)
        status = int(head.split(b" ", 2)[1])
        assert status == (ALONE if model == "small" else {}).get(fate, ALWAYS.get(fate, 200)), (fate, head, answer)
        assert (b'"steps"' in answer) is (fate == "explained"), (fate, answer)
        self.statuses[status] += fate != "strange"  # a strange request asks no model
        if status == 200:
            trace = head.decode().partition("x-cascade-trace-id: ")[2].partition("\r")[0]
            self.traces.add(trace)
            if fate == "judged":
                send(writer, "/v1/feedback", {"trace_id": trace, "right": True})
                assert b" 200 " in (await message(reader))[0]
        return b"connection: close" not in head.lower()


def sizes(pid: int) -> tuple[int, int, int]:
    """Return the resident bytes of a process, its open files and sockets, and its threads."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    files, threads = (len([*Path(f"/proc/{pid}/{name}").iterdir()]) for name in ("fd", "task"))
    return pages * resource.getpagesize(), files, threads


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="sizes are read from /proc")
@pytest.mark.parametrize("count", [1_500, pytest.param(100_000, marks=pytest.mark.long)])
async def test_nothing_grows_nothing_is_lost_and_the_books_are_right(count, tmp_path):
    traffic, grown, store = Traffic(), list[tuple[int, int, int]](), {"store": f"sqlite:///{tmp_path}/records.db"}
    behind = await asyncio.start_server(traffic.provide, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{behind.sockets[0].getsockname()[1]}/v1"
    path = write(
        tmp_path / "cascade.yaml",
        provider={"kind": "openai_http", "api_base": address},
        traces=store,
        timeouts={"per_store_s": 60.0},
        budget={**store, "caps": [{"usd": 1e6, **cap} for cap in ({}, {"per": "key"}, {"window": "day"})]},
        server={**KEYS, "port": 0, "access_log": str(tmp_path / "access.log")},
    )
    with started(path) as (process, url):
        traffic.port, numbers = int(url.rpartition(":")[2]), iter(range(count))
        for _ in range(10):
            tenth = islice(numbers, count // 10)
            await asyncio.gather(*(traffic.ask(tenth) for _ in range(CLIENTS)))
            await traffic.close()
            grown.append(sizes(process.pid))
        print(grown)  # noqa: T201 - the figures of design/results.md
        until(lambda: sizes(process.pid)[1] <= max(each[1] for each in grown[:5]))  # ended connections close later
        assert grown[-1][0] < 1.1 * grown[0][0]
        assert grown[-1][2] < grown[0][2] + 2 * POOL  # it and feedback's four fill late where few wait at once
        text = (await asyncio.to_thread(httpx.get, f"{url}/metrics", headers=BEARER, timeout=WAIT_S)).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert "Traceback" not in process.stderr.read()
    behind.close()
    assert {number for name, number in samples(text).items() if "_lost_" in name} == {0}
    counted = Counter[int]()
    for status, number in re.findall(r'^cascade_requests_total.*status="(\d+)"} (\d+)', text, re.MULTILINE):
        counted[int(status)] += int(number)
    # A client that left just as its answer was whole counts as answered.
    assert counted.pop(200) + counted.pop(499) == traffic.statuses.pop(200) + traffic.statuses.pop(499)
    assert counted == traffic.statuses
    with closing(SqlLedger(store["store"])) as ledger:
        assert {ledger.account(name) for name in ("all", "key:app")} == {Account(traffic.bill_nano_usd, 0)}
    with closing(sqlite3.connect(tmp_path / "records.db")) as records:
        assert traffic.traces <= {name for (name,) in records.execute("SELECT episode_id FROM episodes")}
