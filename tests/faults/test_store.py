"""F48, F50, F52, F53, F55, F56, F57, F67, F68 and F70 where traces are written: an ask is answered whatever the store does."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from patience import PATIENCE_S, until
from sigkill import kill_some
from stores import postgres_url, row

from cascade.cli.main import main
from cascade.errors import StoreError, UsageError
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider
from cascade.records import writer as writer_module
from cascade.records.address import from_system
from cascade.records.database import formats, translated
from cascade.records.traces import Store
from cascade.records.writer import TraceWriter

NOBODY = 65_534


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Run one command as a shell would, and return its exit code and its two outputs."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def one(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["cascade", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        said = capfd.readouterr()
        return Ran(ended.value.code if isinstance(ended.value.code, int) else 0, said.out, said.err)

    return one


@pytest.fixture
def ask(run: Callable[..., Ran], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., Ran]:
    """Ask one question of scripted models with the given traces; what was logged stands in `err`."""

    def one(traces: str) -> Ran:
        (tmp_path / "asked.yaml").write_text(
            "models: {base: small, guide: large}\n"
            "provider: {kind: fake, options: {replies: {small: ['Answer: Danube'], large: ['Yes']}}}\n"
            "strategy: {verdict: sampled, samples: 1}\n"
            f"policy: {{kind: fixed}}\ntraces: {traces}\n"
        )
        caplog.clear()
        ran = run("ask", "Which river?", "-c", "asked.yaml")
        return ran._replace(err=ran.err + caplog.text)

    return one


def rows_in(url: str) -> list[dict[str, Any]]:
    with Store.open(url, read_only=True) as store:
        return list(store.read())


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


def test_f53_a_full_disk_takes_nothing_that_was_there_and_room_is_all_it_needs(tiny_disk: Path) -> None:
    url = f"sqlite:///{tiny_disk / 'traces.db'}"
    (tiny_disk / "filler").write_bytes(b"x" * 1_400_000)
    with Store.open(url) as store:
        store.append([row(10_000)])
        written, error = fill(store)
        assert "the disk is full, so nothing was written" in str(error)
        assert "Free some space" in str(error)
        assert (error.exit_code, error.retryable) == (1, True)
        assert store.count() == written + 1
        assert store.integrity() == []
        (tiny_disk / "filler").unlink()
        assert store.append(big_rows(written)) == 10
        assert store.purge() == written + 11
        assert store.append(big_rows(0)) == 10
        assert store.integrity() == []


def test_f53_a_disk_on_which_not_even_a_file_can_be_made(tiny_disk: Path) -> None:
    (tiny_disk / "filler").write_bytes(b"x" * 2 * 2**20)
    with pytest.raises(StoreError, match="the disk is full"):
        Store.open(f"sqlite:///{tiny_disk / 'traces.db'}")


def test_f53_the_answer_comes_when_the_disk_is_full(tiny_disk: Path, ask: Callable[..., Ran]) -> None:
    url = f"sqlite:///{tiny_disk / 'traces.db'}"
    Store.open(url).close()
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


_LIMITED = """
import resource, sys
from cascade.records.traces import Store
from cascade.errors import StoreError
from stores import row
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
with Store.open(sys.argv[1]) as store:
    written = 0
    try:
        while True:
            store.append([row(n, context="x" * 10_000) for n in range(written, written + 10)])
            written += 10
    except StoreError as error:
        print(written, store.count(), store.integrity(), error.exit_code, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
def test_f53_a_file_that_may_not_grow_is_a_failure_and_no_damage(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, f"sqlite:///{tmp_path / 'traces.db'}"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    written, count, sound, code, said = done.stdout.strip().split(" ", 4)
    assert written == count != "0"
    assert (sound, code) == ("[]", "1")
    assert "could not be read or written" in said or "the disk is full" in said


# --- F53: what may not be written ---


def as_nobody(work: Callable[[], Any]) -> Any:
    """Run something in a process without rights, and return what came of it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            theirs.send(work())
        except BaseException as error:
            theirs.send(error)

    process = context.Process(target=child)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    result = ours.recv()
    if isinstance(result, BaseException):
        raise result
    return result


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """Return a folder that everybody may look into and nobody may write to, with a store in it."""
    folder = Path(tempfile.mkdtemp())
    with Store.open(f"sqlite:///{folder / 'there.db'}") as store:
        store.append([row(1)])
    for name in ("there.db", "there.db-journal"):
        if (folder / name).exists():
            (folder / name).chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def open_and_write(url: str) -> int:
    with Store.open(url) as store:
        return store.append([row(2)])


@pytest.mark.parametrize("name", ["new.db", "new/folder/new.db", "there.db"])
def test_f53_a_folder_that_may_not_be_written_to_is_named(others_folder: Path, name: str) -> None:
    url = f"sqlite:///{others_folder / name}"
    with pytest.raises(UsageError, match=r"cannot be written: .*Choose a folder that you may write to") as caught:
        as_nobody(lambda: open_and_write(url))
    assert (caught.value.exit_code, url in str(caught.value)) == (2, True)


@pytest.mark.parametrize(
    ("prepare", "name", "said"),
    [
        (lambda path: path.write_text("not a folder"), "here/traces.db", "cannot be written"),
        (lambda path: path.mkdir(), "here", "is not a file"),
        (lambda path: path.symlink_to(path.parent / "asked.yaml"), "here", "is a symbolic link"),
    ],
)
def test_f53_f70_what_cannot_be_the_file_is_named_and_the_answer_comes(
    ask: Callable[..., Ran], tmp_path: Path, prepare: Callable[[Path], Any], name: str, said: str
) -> None:
    prepare(tmp_path / "here")
    url = f"sqlite:///{tmp_path / name}"
    ran = ask(url)
    assert (ran.code, "Danube" in ran.out, said in ran.err) == (0, True, True)
    ran = ask(f"{{store: '{url}', strict: true}}")
    assert (ran.code, ran.out, said in ran.err) == (2, "", True)
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


def test_f53_what_fails_for_a_while_is_written_later(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = failing(monkeypatch, 3, StoreError("busy", retryable=True))
    with wired(store_url) as cascade:
        for number in range(5):
            cascade.ask(f"number {number}")
        assert writer(cascade).flush()
        counts = writer(cascade).counts
    assert (len(failed), counts.lost, counts.written, counts.failures) == (3, 0, 5, 3)
    asked = [one["question"] for one in rows_in(store_url)]
    assert list(dict.fromkeys(asked)) == [f"number {number}" for number in range(5)]  # in order


def test_f53_what_fails_for_good_is_counted_and_said_once_a_minute(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, 10**9, StoreError("the store is broken"))
    with wired(store_url) as cascade:
        for number in range(8):
            assert cascade.ask(f"number {number}").text == "Danube"
            writer(cascade).flush()
        assert writer(cascade).counts.lost == 8
    said = [record.getMessage() for record in caplog.records if "not recorded" in record.getMessage()]
    assert len(said) == 1
    assert said[0].endswith("the store is broken")


def test_f53_at_the_end_a_broken_store_is_given_up(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, 10**9, StoreError("busy", retryable=True))
    monkeypatch.setattr(writer_module, "RETRY_S", 1e6)  # it would be waited for
    cascade = wired(file_url)
    cascade.ask("what?")
    cascade.close()
    assert writer(cascade).counts.lost == 1


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), OSError(5, "Input/output error"), MemoryError()])
def test_f53_what_the_system_refuses_for_a_while_is_written_later(
    store_url: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Such an error ended the thread for good (G7): 503 of 600 traces were lost, and 0 were counted."""
    failed = failing(monkeypatch, 3, error)
    with wired(store_url) as cascade:
        for number in range(5):
            cascade.ask(f"number {number}")
            until(lambda: bool(failed))
        problem = writer(cascade).problem
        assert writer(cascade).flush()
        assert (writer(cascade).counts[1:], writer(cascade).problem) == ((5, 0, 0, 3), None)
    assert problem is None or type(error).__name__ in problem


def test_g4_a_server_that_hangs_is_said_to_fail_and_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr(writer_module, "COMMIT_S", 0.2)
    with postgres_url() as url, wired(url) as cascade:
        cascade.ask("before")
        assert writer(cascade).flush()
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE episodes IN ACCESS EXCLUSIVE MODE")
            assert cascade.ask("meanwhile").text == "Danube"
            until(lambda: writer(cascade).problem is not None)
        assert writer(cascade).flush(PATIENCE_S)
        assert (writer(cascade).problem, writer(cascade).counts.lost) == (None, 0)
        assert {one["question"] for one in rows_in(url)} == {"before", "meanwhile"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_f53_a_thread_that_ended_is_started_again_and_its_answers_are_counted_as_lost(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wired(file_url) as cascade:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "append", lambda *_: sys.exit())  # no Exception: nothing catches it
            cascade.ask("first")
            until(lambda: writer(cascade).counts.lost == 1)
        cascade.ask("second")
        assert writer(cascade).flush()
    assert {one["question"] for one in rows_in(file_url)} == {"second"}


def test_f53_an_error_that_nobody_thought_of_ends_nothing(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = failing(monkeypatch, 1, ZeroDivisionError("oh"))
    with wired(file_url) as cascade:
        cascade.ask("first")
        assert writer(cascade).flush() is False
        cascade.ask("second")
        assert writer(cascade).flush() is True
    assert (len(failed), {one["question"] for one in rows_in(file_url)}) == (1, {"second"})


async def test_f53_strict_raises_and_the_answer_that_was_paid_for_is_not_lost(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, 10**9, StoreError("the store is broken"))
    cascade = wired({"store": file_url, "strict": True})
    with pytest.raises(StoreError, match=r"was not recorded: the store is broken") as caught:
        await cascade.aask("what?")
    assert caught.value.answer.text == "Danube"
    with pytest.raises(StoreError) as streamed:
        _ = [event async for event in cascade.astream("what?")]
    assert streamed.value.answer.text == "Danube"
    await cascade.aclose()


def test_f53_a_server_that_drops_its_connections_is_found_again() -> None:
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
        assert {one["question"] for one in rows_in(url)} == {"before", "after"}


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        ("53100", StoreError, "disk is full"),
        ("3F000", UsageError, "no such schema"),
        ("42501", UsageError, "may not do this"),
        ("25006", UsageError, "only reads"),
        ("22P05", UsageError, "does not fit"),
        ("42P01", UsageError, "not as cascade makes them"),
        ("57P01", StoreError, "failed (57P01)"),
    ],
)
def test_every_answer_of_a_server_is_an_error_of_ours(state: str, kind: type[Exception], said: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    foreign = psycopg.errors.lookup(state)("no\nDETAIL: the row with a secret")
    error = translated(foreign, "postgresql://me:***@host/db")
    assert type(error) is kind
    assert said in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(("code", "kind"), [(28, StoreError), (13, UsageError), (24, StoreError), (5, StoreError)])
def test_an_error_of_the_system_is_an_error_of_ours(code: int, kind: type[Exception]) -> None:
    error = from_system(OSError(code, os.strerror(code)), "x")
    assert type(error) is kind
    assert getattr(error, "retryable", False) is (kind is StoreError)


def test_a_server_that_is_not_there_or_refuses_is_named(run: Callable[..., Ran]) -> None:
    pytest.importorskip("psycopg")
    ran = run("traces", "stats", "--store", "postgresql://postgres@127.0.0.1:1/x")
    assert (ran.code, "cannot be reached" in ran.err) == (1, True)
    with postgres_url() as url:
        ran = run("traces", "stats", "--store", f"{url}_missing")
    assert (ran.code, "does not exist" in ran.err) == (1, True)


# --- F56: another version ---


def test_f56_another_schema_is_refused(run: Callable[..., Ran], ask: Callable[..., Ran], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'traces.db'}"
    with Store.open(url) as store, store.database.transaction() as connection:
        connection.execute(formats.update().values(version="another"))
    before = (tmp_path / "traces.db").read_bytes()
    for command in ("stats", "export"):
        ran = run("traces", command, "--store", url)
        assert (ran.code, ran.out) == (2, "")
        assert "has the format another" in ran.err
    ran = ask(url)
    assert (ran.code, "Danube" in ran.out, "has the format" in ran.err) == (0, True, True)
    ran = ask(f"{{store: '{url}', strict: true}}")
    assert (ran.code, "has the format" in ran.err) == (2, True)
    assert (tmp_path / "traces.db").read_bytes() == before


# --- F67, F68, F70 ---


def test_f68_a_key_without_the_shape_of_one_is_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        ("sqlite:///../../x.db", "leads upwards"),
        ("postgresql://me:word@host/db", "store_env: NAME"),
        ("{store: 'postgresql://me@host/db?password=word'}", "store_env: NAME"),
        ("{stor: x}", "did you mean store"),
        ("mysql://host/db", "not a kind of store"),
    ],
)
def test_f67_f70_a_store_that_may_not_be_configured_is_2(ask: Callable[..., Ran], traces: str, said: str) -> None:
    ran = ask(traces)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "word@" not in ran.err


# --- F52 ---


@pytest.mark.parametrize("kills", [4, pytest.param(10, marks=pytest.mark.long)])
def test_f52_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, kills: int) -> None:
    tally = kill_some(kills, tmp_path, seed=3)
    assert (tally.missing, tally.torn, tally.damaged) == ([], [], [])
    assert tally.kills == kills
    assert tally.acknowledged >= kills // 4 * 3


def test_f52_nor_do_three_on_postgresql(tmp_path: Path) -> None:
    with postgres_url() as url:
        tally = kill_some(3, tmp_path, seed=5, url=url)
    assert (tally.missing, tally.torn, tally.damaged) == ([], [], [])
    assert tally.acknowledged >= 3


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'traces.db'}"
