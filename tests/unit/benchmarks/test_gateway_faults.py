"""How `benchmarks/gateway_faults.py` tells a late request from one that waited for a core."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

for package in ("openai", "anthropic", "uvloop"):
    pytest.importorskip(package)
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import gateway_faults  # noqa: E402

ANSWER = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}"


class Busy(gateway_faults.Gateway):
    """A server whose process had waited so long for a core when a deadline came, and at the end."""

    def start(self, *waited_s: float) -> None:
        """Set the figures."""
        self.told, self.past = iter(waited_s), asyncio.Event()

    def waited_s(self) -> float:
        """Return the next figure, and let the answer come."""
        self.past.set()
        return next(self.told)


async def ended(*waited_s: float) -> gateway_faults.Ended:
    """Ask a server that answers once the deadline has passed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await to.past.wait()
        writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        to = Busy(server.sockets[0].getsockname()[1], 0)
        to.start(*waited_s)
        return await gateway_faults.ended(to, "m", 1e-4, stream=False)


async def test_a_request_that_waited_for_a_core_is_late_by_nothing_of_its_own() -> None:
    found = await ended(2.0, 60.0)
    assert found.late_s > 0
    assert found.own_s == 0


async def test_what_was_not_waited_for_a_core_is_its_own() -> None:
    found = await ended(2.0, 2.0)
    assert found.own_s == found.late_s > 0


def test_linux_says_how_long_a_process_waited_for_a_core() -> None:
    told = gateway_faults.Gateway(0, 1)
    assert 0 <= told.waited_s() <= told.waited_s()


def test_a_process_that_is_gone_waited_for_nothing() -> None:
    assert gateway_faults.Gateway(0, 2**30).waited_s() == 0
