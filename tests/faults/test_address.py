"""What answers at the address is no server to ask: a certificate that cannot be verified, TLS where HTTP is spoken."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from unit.made import request

from cascade.errors import AddressError
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint

from .bodies import QUESTION

LOCALHOST = Path(__file__).parent / "localhost.pem"
"""A certificate for localhost that signs itself, valid until 2126, and its key, which opens nothing else."""
_WHOLE = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": "Danube"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
).encode()
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_WHOLE), _WHOLE)
_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
"""TLS's alert 70, protocol_version: OpenSSL's reply to plain HTTP."""


@asynccontextmanager
async def listening(reply: bytes, *, tls: bool) -> AsyncIterator[tuple[int, list[int]]]:
    """Yield the port of a server with one reply, and a list with an entry for each request that it read."""
    read: list[int] = []
    answers: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(asyncio.current_task())
        read.append(len(await reader.readuntil(b"\r\n\r\n")))
        writer.write(reply)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    security = None
    if tls:
        security = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        security.load_cert_chain(LOCALHOST)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=security)
    async with server:
        yield server.sockets[0].getsockname()[1], read
        await asyncio.gather(*filter(None, answers))  # TLS ends when the client agrees, which must be before the loop


async def test_a_certificate_that_nobody_vouches_for_is_named_and_not_retried(bench):
    async with listening(_REPLY, tls=True) as (port, read):
        cascade = bench.alone("ok", address=f"https://localhost:{port}/v1")
        with pytest.raises(AddressError, match=rf"localhost:{port} could not be verified: self-signed.*SSL_CERT_FILE"):
            await cascade.aask(QUESTION)
    assert (bench.waits, read) == ([], [])


async def test_a_certificate_for_another_name_is_named(bench):
    bench.patch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    async with listening(_REPLY, tls=True) as (port, _):
        cascade = bench.alone("ok", address=f"https://127.0.0.1:{port}/v1")
        with pytest.raises(AddressError, match=r"could not be verified: IP address mismatch"):
            await cascade.aask(QUESTION)


async def test_the_issuer_in_ssl_cert_file_is_trusted(bench):
    bench.patch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    async with listening(_REPLY, tls=True) as (port, read):
        cascade = bench.alone("ok", address=f"https://localhost:{port}/v1")
        assert (await cascade.aask(QUESTION)).text == "Danube"
    assert len(read) == 1


async def test_tls_at_an_http_address_says_to_use_https():
    async with listening(_ALERT, tls=False) as (port, _):
        provider = OpenAIHTTP({"": Endpoint(f"http://127.0.0.1:{port}/v1")})
        with pytest.raises(AddressError, match=r"seems to speak TLS: use https:// in api_base"):
            await provider.complete(request(), 5.0)
        await provider.close()
