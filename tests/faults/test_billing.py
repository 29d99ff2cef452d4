"""What a failed call may have cost: told as it is, and under a cap not risked twice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from patience import PATIENCE_S

from cascade import Answer
from cascade.errors import BudgetExceededError, ProviderError, ProviderUnavailableError
from cascade.types import Call

from .bench import PROVIDERS, SMALL_COST, Bench
from .bodies import QUESTION

LOST = ["502", "504", "reset"]
"""The server, or one behind it, may have done the work."""
REFUSED = ["500", "503", "529", "429"]
"""The server says itself that it did not."""


def calls_of(bench: Bench, mode: str | list[str], provider: str = "openai_http", **settings: Any) -> tuple[Call, ...]:
    """Ask a model that fails once or for good; return the calls on record."""
    try:
        return bench.alone(mode, provider, **settings).ask(QUESTION).calls
    except (ProviderError, BudgetExceededError) as error:
        return error.calls


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", LOST)
def test_f10_an_answer_lost_on_its_way_may_be_billed_each_time(bench: Bench, mode: str, provider: str) -> None:
    """0.5.0: three calls were done ($0.00372), `cost` and `cost_bound` said $0.00124."""
    (call,) = calls_of(bench, mode, provider)
    assert bench.server.count() == 3
    assert (call.billed, call.cost_nano_usd) == ("maybe", None)
    assert call.cost_bound_nano_usd is not None
    assert call.cost_bound_nano_usd >= 3 * SMALL_COST


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", LOST)
def test_f10_a_lost_try_before_a_good_one_counts_in_the_bound(bench: Bench, mode: str, provider: str) -> None:
    answer = bench.alone([mode, mode, "ok"], provider).ask(QUESTION)
    assert isinstance(answer, Answer)
    assert answer.text == "Danube"
    assert answer.cost is None
    assert answer.cost_bound is not None
    assert answer.cost_bound >= Decimal(3 * SMALL_COST).scaleb(-9)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", LOST)
def test_f10_under_a_cap_such_a_call_is_made_once(bench: Bench, mode: str, provider: str) -> None:
    """0.5.0 made it three times, and twice passed a cap of $0.0018."""
    (call,) = calls_of(bench, mode, provider, budget={"per_question": 0.05})
    assert bench.server.count() == 1
    assert call.billed == "maybe"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", REFUSED)
def test_f01_what_a_server_says_it_did_not_do_costs_nothing(bench: Bench, mode: str, provider: str) -> None:
    answer = bench.alone([mode, "ok"], provider, budget={"per_question": 0.05}).ask(QUESTION)
    assert bench.server.count() == 2
    assert answer.cost == Decimal(SMALL_COST).scaleb(-9)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f05_where_nobody_listens_nothing_is_billed(bench: Bench, provider: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        address = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        (call,) = calls_of(bench, "ok", provider, address=address)
    assert (call.billed, call.cost_nano_usd) == ("no", 0)


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the address of a server that reads a request and closes the connection without a word."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f10_a_connection_that_ends_without_a_word_may_be_billed(bench: Bench, silent: str, provider: str) -> None:
    with pytest.raises(ProviderUnavailableError, match="may be billed") as caught:
        bench.alone("ok", provider, address=silent).ask(QUESTION)
    assert caught.value.billed == "maybe"
    assert caught.value.maybe_billed == 3


@pytest.mark.parametrize("way", ["ask", "stream"])
def test_f09_a_guide_that_is_down_is_not_asked_twelve_times(bench: Bench, way: str) -> None:
    """0.5.0 made 12 HTTP calls to a guide at 503 for one question of four rounds, and as many for the next."""
    bench.server.modes["large"] = "503"
    orchestrator = bench.served(strategy={"rounds": 4})
    made = []
    for _ in range(3):
        before = bench.server.count("large")
        answer = orchestrator.ask(QUESTION) if way == "ask" else list(orchestrator.stream(QUESTION))[-1]
        assert isinstance(answer, Answer)
        made.append(bench.server.count("large") - before)
    rounds = 4
    assert made[0] <= 2 + rounds
    assert made[1] <= rounds
    assert made[2] <= rounds
    bench.server.modes["large"] = ["ok"]
    orchestrator.ask(QUESTION)
    assert orchestrator.runtime.guards["large"]._budgets["large"].tokens > 0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f01_a_stream_is_tried_again_before_its_first_byte(bench: Bench, provider: str) -> None:
    """0.5.0 never tried a stream again."""
    *events, answer = bench.alone(["503", "ok"], provider).stream(QUESTION)
    assert isinstance(answer, Answer)
    assert answer.text == "Danube"
    assert bench.server.count() == 2
    assert events


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after-ms": "abc", "Retry-After": "2"}, 2.0),
        ({"retry-after-ms": "-5", "Retry-After": "2"}, 2.0),
        ({"retry-after-ms": "1500", "Retry-After": "7"}, 1.5),
    ],
)
def test_f02_the_first_wait_that_makes_sense_counts(bench: Bench, headers: dict[str, str], wait_s: float) -> None:
    """0.5.0: garbage in `retry-after-ms` hid a valid `Retry-After`."""
    bench.server.headers.update(headers)
    bench.alone(["429", "ok"]).ask(QUESTION)
    assert bench.waits == [wait_s]
