"""Exit codes, help and version; every error of ours is one message on stderr."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade import __version__
from cascade.cli import main as module
from cascade.errors import BatchError, BudgetExceededError, CascadeError, ConfigError, NotCertifiedError, ProviderError
from cascade.orchestrator import Orchestrator

Cli = Callable[..., Any]


def test_the_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version") == (0, f"cascade {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("-h",), ("ask", "--help"), ("models", "--help"), ("models", "pull", "-h")]
)
def test_help_is_no_error(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert ran.code == 0
    assert "Usage: " in ran.out


@pytest.mark.parametrize(
    "arguments", [("fitt", "LOG"), ("ask",), ("ask", "x", "--nonsense"), ("demo", "-n", "0"), ("demo", "-n", "many")]
)
def test_bad_usage_is_2_and_says_so_on_stderr(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err
    assert ("did you mean fit?" in ran.err) == (arguments[0] == "fitt")


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let `cascade ask` end with an error."""

    def arrange(error: BaseException) -> None:
        def raises(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(Orchestrator, "from_config", raises)

    return arrange


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CascadeError("it went wrong"), 1),
        (ConfigError(["a: wrong"]), 2),
        (NotCertifiedError("it went wrong"), 3),
        (BudgetExceededError("it went wrong"), 4),
        (ProviderError("it went wrong"), 5),
        (BatchError("it went wrong", results=()), 5),
    ],
)
def test_every_error_ends_with_its_exit_code(
    cli: Cli, raising: Callable[[BaseException], None], error: BaseException, code: int
) -> None:
    raising(error)
    ran = cli("ask", "x", "--json")
    assert (ran.code, ran.out) == (code, "")
    assert "wrong" in ran.err
    assert "Traceback" not in ran.err


def test_an_interrupt_is_not_success_and_no_traceback(cli: Cli, raising: Callable[[BaseException], None]) -> None:
    raising(KeyboardInterrupt())
    ran = cli("ask", "x", "--json")
    assert (ran.code, ran.out, ran.err) == (130, "", "stopped\n")


def test_an_errors_text_cannot_write_markup_or_escapes(cli: Cli, raising: Callable[[BaseException], None]) -> None:
    raising(ProviderError("\x1b[31mred [bold]bold[/bold] [/nonsense]"))
    ran = cli("ask", "x")
    assert "\x1b" not in ran.err
    assert "[bold]bold[/bold] [/nonsense]" in ran.err


@pytest.mark.parametrize(("words", "code"), [(("--version",), 0), (("ask", "x"), 2)])
def test_it_runs_as_a_module_and_as_a_process(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cascade", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(module.__file__).parents[2]), "PATH": "", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (code, "" if code else f"cascade {__version__}\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("server", ["host: 0.0.0.0, port: 0", "port: PORT"])
def test_a_server_that_cannot_listen_ends_at_once_with_2(cli: Cli, fake_config: Path, server: str) -> None:
    """Without keys beyond this machine; on a port in use, which was 3 in 0.6 (U12)."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = server.replace("PORT", str(taken.getsockname()[1]))
        fake_config.write_text(f"{fake_config.read_text()}server: {{{text}}}\n")
        ran = cli("serve")
    assert (ran.code, ran.out) == (2, "")
