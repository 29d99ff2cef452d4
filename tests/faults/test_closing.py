"""`close` and Ctrl-C while questions are asked: at once, with nothing left behind and no further call."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S, until

from cascade import Orchestrator
from cascade.budget.caps import Account
from cascade.chat import ChatRequest
from cascade.errors import BatchError, ClosedError, ProviderUnavailableError, UsageError
from cascade.providers.fake import FakeProvider
from cascade.runtime import AskOptions

from .bench import PROVIDERS, SMALL_COST, Bench
from .bodies import QUESTION, encode, good
from .server import RAW, _Handler


@pytest.fixture
def slow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Orchestrator]:
    """Return what makes an orchestrator whose model does not answer before the test ends."""

    def waits(handler: Any, body: Any) -> None:
        bench.server.closing.wait()
        handler._send(200, encode(good(body)))

    def build(**settings: Any) -> Orchestrator:
        monkeypatch.setitem(RAW, "waits", waits)
        return bench.alone("waits", **settings)

    return build


@pytest.mark.parametrize("way", ["ask", "stream", "many"])
def test_f48_close_ends_what_other_threads_ask(bench, slow, way):
    """0.5.0: a foreign `RuntimeError: … client has been closed`, and some calls waited out their time-out."""
    orchestrator, came = slow(), []

    def ask() -> None:
        try:
            if way == "ask":
                orchestrator.ask(QUESTION)
            elif way == "stream":
                list(orchestrator.stream(QUESTION))
            else:
                orchestrator.many([QUESTION] * 8, concurrency=2)
        except Exception as error:
            came.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    under_way = 5 if way == "many" else 3  # of two calls a thread, five are of all three threads
    until(lambda: bench.server.count() >= under_way)
    orchestrator.close()  # no answer comes before the test ends
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(came) == 3
    for error in came:
        stopped = error.results if isinstance(error, BatchError) else [error]
        assert all(isinstance(failure, UsageError) for failure in stopped), stopped
        assert any(type(failure) is ClosedError for failure in stopped)
    assert bench.server.count() <= (6 if way == "many" else 3)  # those under way, which may arrive a little later


@pytest.mark.parametrize("way", ["aask", "astream", "amany"])
async def test_f48_aclose_ends_what_other_tasks_ask(bench, slow, way):
    orchestrator = slow()

    async def ask() -> Any:
        if way == "aask":
            return await orchestrator.aask(QUESTION)
        if way == "amany":
            return await orchestrator.amany([QUESTION] * 4, concurrency=2)
        return [event async for event in orchestrator.astream(QUESTION)]

    tasks = [asyncio.create_task(ask()) for _ in range(3)]
    await asyncio.to_thread(until, lambda: bench.server.count() >= 3)
    await orchestrator.aclose()
    came = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, BatchError if way == "amany" else ClosedError) for error in came), came
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_f47_to_cancel_an_ask_cancels_its_call_and_no_other(bench, slow):
    orchestrator = slow()
    task = asyncio.create_task(orchestrator.aask(QUESTION))
    await asyncio.to_thread(until, lambda: bench.server.count() == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.server.modes["small"] = "ok"
    assert (await orchestrator.aask(QUESTION)).text == "Danube"


_INTERRUPTED = """
import signal, sys
from cascade import Orchestrator
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started with it ignored
cascade = Orchestrator.from_config({
    "models": {"base": {"model": "small"}, "guide": {"model": "large"}},
    "strategy": {"kind": "ladder", "models": ["base"]},
    "provider": {"kind": "openai_http", "api_base": sys.argv[1]},
    "traces": sys.argv[2],
})
cascade.ask("warm")
print("ready", flush=True)
try:
    cascade.many([f"question {number}" for number in range(40)], concurrency=4)
except KeyboardInterrupt:
    print("interrupted", flush=True)
cascade.close()
"""


def test_f47_ctrl_c_in_ask_many_stops_at_once(bench, monkeypatch, tmp_path):
    """0.5.0 came back after the answers under way and 12 more calls, made and paid. No answer comes before the test ends."""

    def waits(handler: Any, body: Any) -> None:
        if "question" in json.dumps(body["messages"][-1]).replace("Question", ""):
            bench.server.closing.wait()
        handler._send(200, encode(good(body)))

    monkeypatch.setitem(RAW, "waits", waits)
    bench.server.modes["small"] = "waits"
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, bench.server.address, f"sqlite:///{tmp_path}/traces.db"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        until(lambda: bench.server.count() >= 5)
        process.send_signal(signal.SIGINT)
        calls = bench.server.count()
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert "interrupted" in out
    assert process.returncode == 0, errors
    assert bench.server.count() == calls == 5


def test_a_provider_that_cannot_be_stopped_makes_no_further_call():
    """A provider of one's own may block; `close` does not wait for it long, and the walk goes no further."""
    begun, go_on, roles = threading.Event(), threading.Event(), []

    def script(request: Any) -> str:
        roles.append(request.role)
        begun.set()
        go_on.wait(PATIENCE_S)
        return "Answer: Danube"

    orchestrator = Orchestrator.from_config(
        {"models": {"base": "small", "guide": "large"}, "provider": "fake"}, providers={"fake": FakeProvider(script)}
    )
    came: list[BaseException] = []

    def ask() -> None:
        try:
            orchestrator.ask("Which river?")
        except ClosedError as error:
            came.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.2, go_on.set).start()
    orchestrator.close()
    thread.join(PATIENCE_S)
    assert roles == ["base"]
    assert len(came) == 1


def test_close_cuts_the_wait_before_a_retry_short(bench):
    orchestrator = bench.alone("503")
    bench.server.headers["Retry-After"] = "60"
    for guard in orchestrator.runtime.guards.values():
        guard.sleep = asyncio.sleep
    threading.Timer(0.3, orchestrator.close).start()
    with pytest.raises((ClosedError, ProviderUnavailableError)):
        orchestrator.ask(QUESTION)
    assert bench.server.count() <= 1  # after the wait it would be asked once more


def open_sockets() -> int:
    """Return how many sockets this process has open."""
    return sum(_target(path).startswith("socket:") for path in Path("/proc/self/fd").iterdir())


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # the descriptor of the folder itself is closed by now
        return ""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_socket_is_left_behind_by_an_event_loop(bench, monkeypatch):
    """0.5.0 left a socket of every event loop open, also after `close`: 200 of them after 200 calls of asyncio.run."""
    monkeypatch.setattr(_Handler, "protocol_version", "HTTP/1.1")  # so that connections are kept
    orchestrator = bench.alone("ok")
    asyncio.run(orchestrator.aask(QUESTION))
    before = open_sockets()
    for _ in range(20):
        asyncio.run(orchestrator.aask(QUESTION))
    assert open_sockets() <= before + 2
    orchestrator.close()
    until(lambda: open_sockets() < before)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stream", [False, True])
async def test_g5_a_client_that_hangs_up_pays_the_bill_and_not_the_most(bench, stream, provider):
    """Ten streams with max_tokens 20000 that hung up were booked at $4.01, and cost $.0035."""
    served, begun = bench.served(provider, budget={"caps": [{"usd": 1.0}]}), asyncio.Event()
    spending: Any = served.runtime.spending
    served.runtime.finishes, bench.server.modes["small"] = True, "gated"

    async def ask() -> None:
        chat = ChatRequest([{"role": "user", "content": QUESTION}], {"max_tokens": 20_000})
        asking = served.runtime.start(chat, AskOptions(model="small"))
        if not stream:
            await asking.answer()
        async with aclosing(asking.served()) as events:
            async for _ in events:
                begun.set()
                return

    async def reached(holds: Callable[[Account], bool]) -> Account:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(balance := spending.ledger.account("all")):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return balance

    task = asyncio.create_task(ask())
    most = await reached(lambda balance: balance.held > 20_000 * 2_000 and bench.server.count() == 1)
    if not stream:
        task.cancel()
    await asyncio.wait([task])
    assert (begun.is_set(), most.spent) == (stream, 0)
    bench.server.gate.set()
    assert await reached(lambda balance: not balance.held and not spending.unsettled.total()) == Account(SMALL_COST, 0)
