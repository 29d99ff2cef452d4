"""F52, F53, F68, F70, G4 and G7: whatever the stores do, a request is answered in its time; what happened is said, counted and made good."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S, in_child, until
from sigkill import damage_of, kill_some
from stores import own_cluster, postgres_url, row, rows_in
from unit.cli.conftest import Ran
from unit.server.served import ASK, WAIT_S, living, orchestrator
from unit.server.test_contract import SURE

from cascade.budget.caps import Account
from cascade.errors import StoreError, UsageError
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider
from cascade.records import link
from cascade.records import writer as writer_module
from cascade.records.address import from_system
from cascade.records.database import Database, translated
from cascade.records.traces import Store
from cascade.records.writer import TraceWriter

NOBODY = 65_534


@pytest.fixture
def ask(cli: Callable[..., Ran], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., Ran]:
    """Ask one question of scripted models with the given traces; what was logged stands in `err`."""

    def run(traces: str) -> Ran:
        (tmp_path / "asked.yaml").write_text(
            "models: {base: small, guide: large}\n"
            "provider: {kind: fake, options: {replies: {small: ['Answer: Danube'], large: ['Yes']}}}\n"
            "strategy: {samples: 1}\n"
            f"policy: {{kind: fixed}}\ntraces: {traces}\n"
        )
        caplog.clear()
        ran = cli("ask", "Which river?", "-c", "asked.yaml")
        return ran._replace(err=ran.err + caplog.text)

    return run


# --- F53: a full disk ---


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """Return a folder on a disk of 2 MB, where the system lets one be mounted."""
    folder = Path(tempfile.mkdtemp())
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        folder.rmdir()
        pytest.skip("no small disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def big_rows(first: int) -> list[dict[str, Any]]:
    return [row(number, context="x" * 10_000) for number in range(first, first + 10)]


def fill(store: Store) -> tuple[int, StoreError]:
    """Write groups of ten rows until it fails; return how many rows were acknowledged, and the error."""
    for written in range(0, 10_000, 10):
        try:
            store.append(big_rows(written))
        except StoreError as error:
            return written, error
    raise AssertionError("the disk is not small")


def test_f53_a_full_disk_takes_nothing_that_was_there_and_room_is_all_it_needs(tiny_disk):
    url = f"sqlite:///{tiny_disk / 'traces.db'}"
    (tiny_disk / "filler").write_bytes(b"x" * 1_400_000)
    with Store(url) as store:
        store.append([row(10_000)])
        written, error = fill(store)
        assert "the disk is full, so nothing was written" in str(error)
        assert "Free some space" in str(error)
        assert (error.exit_code, error.retryable) == (1, True)
        assert store.count() == written + 1
        (tiny_disk / "filler").unlink()
        assert store.append(big_rows(written)) == 10
        assert store.purge() == written + 11
        assert store.append(big_rows(0)) == 10
        assert damage_of(store) == []


def test_f53_a_disk_on_which_not_even_a_file_can_be_made(tiny_disk):
    (tiny_disk / "filler").write_bytes(b"x" * 2 * 2**20)
    with pytest.raises(StoreError, match="the disk is full"):
        Store(f"sqlite:///{tiny_disk / 'traces.db'}")


def test_f53_the_answer_comes_when_the_disk_is_full(tiny_disk, ask):
    url = f"sqlite:///{tiny_disk / 'traces.db'}"
    Store(url).close()
    (tiny_disk / "filler").write_bytes(b"x" * (os.statvfs(tiny_disk).f_bavail * os.statvfs(tiny_disk).f_bsize))
    ran = ask(url)
    assert ran.code == 0
    assert "Danube" in ran.out
    assert "answers were not recorded" in ran.err
    assert "the disk is full" in ran.err or "disk may be full" in ran.err
    ran = ask(f"{{store: '{url}', strict: true}}")
    assert (ran.code, ran.out) == (1, "")
    assert "The answer was not recorded" in ran.err
    assert "the disk is full" in ran.err or "disk may be full" in ran.err


def test_f53_a_file_that_may_not_grow_is_a_failure_and_no_damage(file_url):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store(file_url) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        try:
            written, error = fill(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.count() == written > 0
        assert (damage_of(store), error.exit_code) == ([], 1)


# --- F53: what may not be written ---


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """Return a folder that everybody may look into and nobody may write to, with a store in it."""
    folder = Path(tempfile.mkdtemp())
    with Store(f"sqlite:///{folder / 'there.db'}") as store:
        store.append([row(1)])
    for name in ("there.db", "there.db-journal"):
        if (folder / name).exists():
            (folder / name).chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def written_by_nobody(url: str) -> int:
    """Write a row, in a process of its own, without the rights of root."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with Store(url) as store:
        return store.append([row(2)])


@pytest.mark.parametrize("name", ["new.db", "new/folder/new.db", "there.db"])
def test_f53_a_folder_that_may_not_be_written_to_is_named(others_folder, name):
    url = f"sqlite:///{others_folder / name}"
    with pytest.raises(UsageError, match=r"cannot be written: .*Choose a folder that you may write to") as caught:
        in_child(lambda: written_by_nobody(url))
    assert (caught.value.exit_code, url in str(caught.value)) == (2, True)


@pytest.mark.parametrize(
    ("prepare", "name", "problem"),
    [
        (lambda path: path.write_text("not a folder"), "here/traces.db", "cannot be written"),
        (lambda path: path.mkdir(), "here", "is not a file"),
        (lambda path: path.symlink_to(path.parent / "asked.yaml"), "here", "is a symbolic link"),
    ],
)
def test_f53_f70_what_cannot_be_the_file_is_named_and_the_answer_comes(ask, tmp_path, prepare, name, problem):
    prepare(tmp_path / "here")
    url = f"sqlite:///{tmp_path / name}"
    ran = ask(url)
    assert (ran.code, "Danube" in ran.out, problem in ran.err) == (0, True, True)
    ran = ask(f"{{store: '{url}', strict: true}}")
    assert (ran.code, ran.out, problem in ran.err) == (2, "", True)
    assert "provider" in (tmp_path / "asked.yaml").read_text()


# --- F53: what fails in between ---


def failing(monkeypatch: pytest.MonkeyPatch, times: int, error: Exception) -> list[int]:
    """Let the next writes fail; return a list that grows with each."""
    append, failed = Store.append, []

    def sometimes(store: Store, rows: Any) -> int:
        if len(failed) < times:
            failed.append(len(list(rows)))
            raise error
        return append(store, rows)

    monkeypatch.setattr(Store, "append", sometimes)
    monkeypatch.setattr(writer_module, "RETRY_S", 0.01)
    return failed


def wired(traces: Any) -> Orchestrator:
    config = {"models": {"base": "small", "guide": "large"}, "provider": "fake", "traces": traces}
    return Orchestrator.from_config(config, providers={"fake": FakeProvider({"small": ["Answer: Danube"]})})


def writer(cascade: Orchestrator) -> TraceWriter:
    assert cascade.runtime.traces is not None
    return cascade.runtime.traces


def test_f53_what_fails_for_good_is_counted_and_said_once_a_minute(store_url, monkeypatch, caplog):
    failing(monkeypatch, 10**9, StoreError("the store is broken"))
    with wired(store_url) as cascade:
        for number in range(8):
            assert cascade.ask(f"number {number}").text == "Danube"
            writer(cascade).flush()
        assert writer(cascade).counts.lost == 8
    messages = [record.getMessage() for record in caplog.records if "not recorded" in record.getMessage()]
    assert len(messages) == 1
    assert messages[0].endswith("the store is broken")


def test_f53_at_the_end_a_broken_store_is_given_up(file_url, monkeypatch):
    failing(monkeypatch, 10**9, StoreError("busy", retryable=True))
    monkeypatch.setattr(writer_module, "RETRY_S", 1e6)  # it would be waited for
    cascade = wired(file_url)
    cascade.ask("what?")
    cascade.close()
    assert writer(cascade).counts.lost == 1


@pytest.mark.parametrize(
    "error", [StoreError("busy", retryable=True), OSError(24, "Too many open files"), MemoryError()]
)
def test_f53_what_fails_for_a_while_is_written_later(store_url, monkeypatch, error):
    """An error of the system ended the thread for good (G7): 503 of 600 traces were lost, and 0 were counted."""
    failed = failing(monkeypatch, 3, error)
    with wired(store_url) as cascade:
        for number in range(5):
            cascade.ask(f"number {number}")
            until(lambda: bool(failed))
        problem = writer(cascade).problem
        assert writer(cascade).flush()
        assert (writer(cascade).counts[1:], writer(cascade).problem) == ((5, 0, 0, 3), None)
    assert problem is None or type(error).__name__ in problem or "busy" in problem
    questions = [row["question"] for row in rows_in(store_url)]
    assert list(dict.fromkeys(questions)) == [f"number {number}" for number in range(5)]  # in order


def test_g4_a_server_that_hangs_is_said_to_fail_and_costs_no_answer(monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr(writer_module, "COMMIT_S", 0.2)
    with postgres_url() as url, wired(url) as cascade:
        cascade.ask("before")
        until(lambda: writer(cascade).flush())  # a busy machine may take longer than .2 s to open it
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE episodes IN ACCESS EXCLUSIVE MODE")
            assert cascade.ask("meanwhile").text == "Danube"
            until(lambda: writer(cascade).problem is not None)
        assert writer(cascade).flush(PATIENCE_S)
        assert (writer(cascade).problem, writer(cascade).counts.lost) == (None, 0)
        assert {row["question"] for row in rows_in(url)} == {"before", "meanwhile"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_f53_a_thread_that_ended_is_started_again_and_its_answers_are_counted_as_lost(file_url, monkeypatch):
    with wired(file_url) as cascade:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "append", lambda *_: sys.exit())  # no Exception: nothing catches it
            cascade.ask("first")
            until(lambda: writer(cascade).counts.lost == 1)
        cascade.ask("second")
        assert writer(cascade).flush()
    assert {row["question"] for row in rows_in(file_url)} == {"second"}


def test_f53_an_error_that_nobody_thought_of_ends_nothing(file_url, monkeypatch):
    failed = failing(monkeypatch, 1, ZeroDivisionError("oh"))
    with wired(file_url) as cascade:
        cascade.ask("first")
        assert writer(cascade).flush() is False
        cascade.ask("second")
        assert writer(cascade).flush() is True
    assert (len(failed), {row["question"] for row in rows_in(file_url)}) == (1, {"second"})


async def test_f53_strict_raises_and_the_answer_that_was_paid_for_is_not_lost(file_url, monkeypatch):
    failing(monkeypatch, 10**9, StoreError("the store is broken"))
    cascade = wired({"store": file_url, "strict": True})
    with pytest.raises(StoreError, match=r"was not recorded: the store is broken") as caught:
        await cascade.aask("what?")
    assert caught.value.answer.text == "Danube"
    with pytest.raises(StoreError) as streamed:
        _ = [event async for event in cascade.astream("what?")]
    assert streamed.value.answer.text == "Danube"
    await cascade.aclose()


def test_f53_a_server_that_drops_its_connections_is_found_again():
    psycopg = pytest.importorskip("psycopg")
    with postgres_url() as url, wired(url) as cascade:
        cascade.ask("before")
        assert writer(cascade).flush()
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        cascade.ask("after")
        assert writer(cascade).flush()
        assert writer(cascade).counts.lost == 0
        assert {row["question"] for row in rows_in(url)} == {"before", "after"}


@pytest.mark.parametrize(
    ("state", "kind", "problem"),
    [
        ("53100", StoreError, "disk is full"),
        ("3F000", UsageError, "no such schema"),
        ("42501", UsageError, "may not do this"),
        ("25006", UsageError, "only reads"),
        ("22P05", UsageError, "does not fit"),
        ("42P01", StoreError, "a table is gone"),
        ("57P01", StoreError, "failed (57P01)"),
    ],
)
def test_every_answer_of_a_server_is_an_error_of_ours(state, kind, problem):
    psycopg = pytest.importorskip("psycopg")
    foreign = psycopg.errors.lookup(state)("no\nDETAIL: the row with a secret")
    error = translated(foreign, "postgresql://me:***@host/db")
    assert type(error) is kind
    assert problem in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(("code", "kind"), [(28, StoreError), (13, UsageError), (24, StoreError), (5, StoreError)])
def test_an_error_of_the_system_is_an_error_of_ours(code, kind):
    error = from_system(OSError(code, os.strerror(code)), "x")
    assert type(error) is kind
    assert getattr(error, "retryable", False) is (kind is StoreError)


def test_a_server_that_is_not_there_or_refuses_is_named(cli):
    pytest.importorskip("psycopg")
    ran = cli("traces", "stats", "--store", "postgresql://postgres@127.0.0.1:1/x")
    assert (ran.code, "cannot be reached" in ran.err) == (1, True)
    with postgres_url() as url:
        ran = cli("traces", "stats", "--store", f"{url}_missing")
    assert (ran.code, "does not exist" in ran.err) == (1, True)


# --- F68 ---


def test_f68_a_key_without_the_shape_of_one_is_not_in_the_file(tmp_path, monkeypatch):
    key = "0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("MY_KEY", key)
    provider = FakeProvider({"small": [f"Answer: the key is {key}"], "large": [f"Yes {key}"]})
    config = {
        "models": {"base": "small", "guide": "large"},
        "provider": {"kind": "fake", "api_key_env": "MY_KEY"},
        "traces": "sqlite:///traces.db",
    }
    monkeypatch.chdir(tmp_path)
    with Orchestrator.from_config(config, providers={"fake": provider}) as cascade:
        cascade.ask(f"is it {key}, or sk-abcdefghijklmnop?")
        assert writer(cascade).flush()
        files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"[redacted]" in files
    assert key.encode() not in files
    assert b"sk-abcdefgh" not in files


# --- F52 ---


@pytest.mark.parametrize(
    ("kills", "server"),
    [
        (4, False),
        (3, True),
        *(pytest.param(kills, server, marks=pytest.mark.long) for kills, server in [(200, False), (30, True)]),
    ],
)
def test_f52_kills_lose_nothing_that_was_acknowledged(tmp_path, kills, server):
    with postgres_url() if server else nullcontext() as url:
        tally = kill_some(kills, tmp_path, seed=3, url=url)
    assert (tally.missing, tally.torn, tally.damaged) == ([], [], [])
    assert tally.kills == kills
    assert tally.acknowledged >= kills // 4 * 3


class Hang:
    """Makes the stores of these names hang, by the threads that ask them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: tuple[str, ...] = ()
        self.go = threading.Event()
        transaction = Database.transaction

        @contextmanager
        def hanging(database: Database, *, reading: bool = False) -> Iterator[Any]:
            if threading.current_thread().name.startswith(self.names or "none"):
                assert self.go.wait(PATIENCE_S)
            with transaction(database, reading=reading) as connection:
                yield connection

        monkeypatch.setattr(Database, "transaction", hanging)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    monkeypatch.setattr(link, "AGAIN_S", 0.0)
    hanging = Hang(monkeypatch)
    yield hanging
    hanging.go.set()


def settings(folder: Path, parts: dict[str, Any]) -> dict[str, Any]:
    url = f"sqlite:///{folder}/records.db"
    return {name: {"store": url, **more} if name != "timeouts" else more for name, more in parts.items()}


async def ask_server(client: httpx.AsyncClient, deadline_s: float = PATIENCE_S) -> httpx.Response:
    headers = {"x-cascade-deadline-s": str(deadline_s)}
    return await client.post("/v1/chat/completions", json={"model": "cascade", "messages": ASK}, headers=headers)


ALLOWS = {"caps": [{"usd": 1}], "on_unreachable": "allow_and_record"}
ROWS = [  # what hangs, the configuration, the status, the mode, and counts
    ("modes", {"modes": {}, "traces": {}}, 200, "unknown", ['store_failures_total{store="modes"} 1']),
    ("budget", {"budget": {"caps": [{"usd": 1}]}}, 503, None, ['store_failures_total{store="budget"} 1']),
    (
        "budget",
        {"budget": ALLOWS},
        200,
        None,
        ["budget_unasked_total 1", "budget_waiting 1", "budget_lost_usd_total 0"],
    ),
    ("traces", {"traces": {}}, 200, None, ["traces_waiting 2", "traces_lost_total 0"]),
]


@pytest.mark.parametrize(("name", "parts", "status", "mode", "counted"), ROWS)
async def test_a_store_that_hangs_is_waited_for_in_its_time_and_what_happened_is_said_counted_and_made_good(tmp_path, monkeypatch, hang, name, parts, status, mode, counted):  # fmt: skip
    served = orchestrator({"small": [SURE] * 3, "large": [SURE] * 3}, **settings(tmp_path, parts))
    async with living(served) as client:
        for way in served.runtime.links.values():
            way.limit_s = 0.05
        hang.names = (f"cascade-{name}", "cascade-bookings")
        with monkeypatch.context() as patch:
            patch.setattr(link, "LIMIT_S", -1.0)
            if name == "traces":  # an answer is there before its trace
                await ask_server(client)
                until(lambda: served.runtime.failing_stores == ("traces",))
            response = await ask_server(client)
            metrics = (await client.get("/metrics")).text
        assert (response.status_code, response.headers.get("x-cascade-mode")) == (status, mode)
        assert response.headers.get("x-cascade-stores-failing") == (name if status == 200 else None)
        assert all(f"cascade_{line}" in metrics for line in [*counted, f'store_failing{{store="{name}"}} 1'])
        for way in served.runtime.links.values():
            way.limit_s = WAIT_S
        hang.go.set()
        after = await ask_server(client)
        assert await asyncio.to_thread(served.runtime.flush_traces, WAIT_S)
        assert (after.status_code, after.headers.get("x-cascade-mode")) == (200, None if mode is None else "observe")
        if served.runtime.spending is not None:
            cost, calls = round(1e9 * float(after.headers["x-cascade-cost-usd"])), 1 if status == 503 else 2
            account = served.runtime.spending.ledger.account
            until(lambda: account("all") == Account(spent=calls * cost, held=0))
        assert "x-cascade-stores-failing" not in (await ask_server(client)).headers
    assert served.runtime.unrecorded is None


@pytest.mark.parametrize(
    "parts", [{"modes": {}, "traces": {}}, {"budget": {"caps": [{"usd": 1}]}}, {"traces": {"strict": True}}]
)
async def test_a_deadline_holds_whatever_hangs_and_a_client_in_a_hurry_makes_no_store_fail(tmp_path, hang, parts):
    served = orchestrator({"small": [SURE] * 2, "large": [SURE] * 2}, **settings(tmp_path, parts))
    async with living(served) as client:
        hang.names = tuple(f"cascade-{name}" for name in parts)
        assert (await ask_server(client, 0.3)).status_code in {200, 503, 504}
        assert all(way.problem is None for way in served.runtime.links.values())
        hang.go.set()
        assert (await ask_server(client)).status_code == 200


async def test_what_was_spent_and_never_booked_is_an_error_of_the_process(tmp_path, hang, monkeypatch):
    parts = {"budget": ALLOWS}
    served = orchestrator({"small": [SURE]}, **settings(tmp_path, parts))
    async with living(served) as client:
        served.runtime.links["budget"].limit_s = 0.05
        hang.names = ("cascade-bookings", "cascade-budget")
        cost = (await ask_server(client)).headers["x-cascade-cost-usd"]
        monkeypatch.setattr(link, "LIMIT_S", 0.0)  # it waits no longer for what hangs
    assert served.runtime.bookings.lost_nano_usd == round(1e9 * float(cost))
    assert served.runtime.unrecorded is not None


async def test_g4_a_server_that_is_stopped_in_the_middle_holds_up_nobody_and_is_found_again():
    with own_cluster() as (url, send):
        parts = {"modes": {}, "budget": {"caps": [{"usd": 1}]}, "traces": {}}
        config = {name: {"store": url, **more} for name, more in parts.items()}
        served = orchestrator({"large": [SURE] * 1000}, **config)
        async with living(served) as client:
            for way in served.runtime.links.values():
                way.limit_s = 0.5

            async def answers() -> bool:
                response = await ask_server(client)
                return response.status_code == 200 and "x-cascade-stores-failing" not in response.headers

            while not await answers():
                pass
            try:
                send(signal.SIGSTOP)
                frozen = await asyncio.gather(*(ask_server(client) for _ in range(32)))
                ready = await client.get("/readyz")
            finally:
                send(signal.SIGCONT)
            assert {response.status_code for response in frozen} == {503}
            assert (ready.status_code, ready.json()["budget"]) == (503, "failing")
            while not await answers():
                pass
            assert await asyncio.to_thread(served.runtime.flush_traces, WAIT_S)
        assert served.runtime.unrecorded is None
