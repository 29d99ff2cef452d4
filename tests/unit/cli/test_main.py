"""Exit codes, help and version; every error of ours is one message on stderr."""

from __future__ import annotations

import inspect
import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from cascade import CollectSettings, __version__
from cascade.api.collecting import collect
from cascade.api.onboarding import onboard
from cascade.api.promoting import promote
from cascade.api.study import evaluate, verify
from cascade.cli import logs, policies
from cascade.cli import main as module
from cascade.cli.main import COMMANDS, LogFormatter, console, loaded, notes, print_json, print_result
from cascade.conformal.promise import Promise
from cascade.errors import BatchError, BudgetExceededError, CascadeError, ConfigError, NotCertifiedError, ProviderError
from cascade.orchestrator import Orchestrator
from cascade.reports.report import Report, Result

Cli = Callable[..., Any]


def test_the_version_is_the_packages(cli):
    assert cli("--version") == (0, f"cascade {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("-h",), ("ask", "--help"), ("models", "--help"), ("models", "pull", "-h")]
)
def test_help_is_no_error(cli, arguments):
    ran = cli(*arguments)
    assert ran.code == 0
    assert "Usage: " in ran.out


@pytest.mark.parametrize("package", ["starlette", "jinja2"])
def test_a_server_without_its_extra_says_what_to_install(tmp_path, package):
    (tmp_path / "cascade.yaml").write_text("models: {base: a, guide: b}\nprovider: fake\n")
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['serve']; from cascade.cli.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, "[server]" in ended.stderr, "Traceback" in ended.stderr) == (2, True, False)


@pytest.mark.parametrize(
    "arguments", [("fitt", "LOG"), ("ask",), ("ask", "x", "--nonsense"), ("demo", "-n", "0"), ("demo", "-n", "many")]
)
def test_bad_usage_is_2_and_says_so_on_stderr(cli, arguments):
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
        *((kind("it went wrong"), 1) for kind in (CascadeError, OSError)),
        (ConfigError(["a: wrong"]), 2),
        (NotCertifiedError("it went wrong"), 3),
        (BudgetExceededError("it went wrong"), 4),
        (ProviderError("it went wrong"), 5),
        (BatchError("it went wrong", results=()), 5),
    ],
)
def test_every_error_ends_with_its_exit_code(cli, raising, error, code):
    raising(error)
    ran = cli("ask", "x", "--json")
    assert (ran.code, ran.out) == (code, "")
    assert "wrong" in ran.err
    assert "Traceback" not in ran.err


def test_an_interrupt_is_not_success_and_no_traceback(cli, raising):
    raising(KeyboardInterrupt())
    ran = cli("ask", "x", "--json")
    assert (ran.code, ran.out, ran.err) == (130, "", "stopped\n")


def test_an_errors_text_cannot_write_markup_or_escapes(cli, raising):
    raising(ProviderError("\x1b[31mred [bold]bold[/bold] [/nonsense]"))
    ran = cli("ask", "x")
    assert "\x1b" not in ran.err
    assert "[bold]bold[/bold] [/nonsense]" in ran.err


@pytest.mark.parametrize(("words", "code"), [(("--version",), 0), (("ask", "x"), 2)])
def test_it_runs_as_a_module_and_as_a_process(tmp_path, words, code):
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
def test_a_server_that_cannot_listen_ends_at_once_with_2(cli, fake_config, server):
    """Without keys beyond this machine; on a port in use, which was 3 in 0.6 (U12)."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        text = server.replace("PORT", str(listener.getsockname()[1]))
        fake_config.write_text(f"{fake_config.read_text()}server: {{{text}}}\n")
        ran = cli("serve")
    assert (ran.code, ran.out) == (2, "")


RENAMED = {"max_cost_usd": "max_cost", "baselines": "baseline"}


@pytest.mark.parametrize(
    ("act", "command"),
    [
        (collect, logs.collect),
        (CollectSettings, logs.collect),
        (evaluate, policies.evaluate),
        (onboard, policies.onboard),
        (promote, policies.promote),
        (verify, policies.verify),
    ],
)
def test_every_parameter_of_an_act_is_an_option(act, command):
    options = {name: option.default for name, option in inspect.signature(command).parameters.items()}
    for name, parameter in inspect.signature(act).parameters.items():
        if name == "promise":
            assert Promise(options["promise"], options["risk"], options["confidence"]) == parameter.default
        elif name not in {"tell", "show", "settings"}:
            default = options[RENAMED.get(name, name)]
            assert (str(default) if isinstance(default, Path) else default) == parameter.default, name


def test_every_command_is_there_and_says_what_it_does():
    assert [name for name in COMMANDS if not (loaded(name).__doc__ or loaded(name).info.help)] == []


def test_a_result_with_an_error_is_printed_and_then_ends_the_command(capsys):
    burnt = Result(reports=(Report((), document={"sugar": 0.5}),), error=NotCertifiedError("burnt"))
    with pytest.raises(NotCertifiedError):
        print_result(burnt, as_json=True)
    assert "sugar" in capsys.readouterr().out


def test_json_is_one_document_with_decimals_as_numbers(capsys):
    print_json({"a": Decimal("0.5"), "b": "naïve", "c": None})
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": 0.5, "b": "naïve", "c": None}
    assert out.endswith("}\n")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_has_no_json_form_is_an_error_and_prints_nothing(bad, capsys):
    with pytest.raises((ValueError, TypeError)):
        print_json({"a": bad})
    assert capsys.readouterr().out == ""


LONG = "Promised: " + "a word and " * 20 + "\nNext: cascade fit log.parquet " + "--risk 0.05 " * 8 + "-o policy"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_is_broken_between_words_on_a_terminal_alone(terminal, monkeypatch, capsys):
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "FORCE_COLOR": "1" if terminal else ""}.items():
        monkeypatch.setenv(name, value)
    console().print(LONG)
    out = capsys.readouterr().out
    assert (max(map(len, out.splitlines())) <= 80) == terminal
    assert out.replace("\\\n", "").split() == LONG.split()
    assert out.count("\\\n") == terminal  # the shell reads the command as one line


HOSTILE = "a\x1b[31mb\x1b]0;title\x07c\x00d\x9b31me\x9d0;x\x9cf\rg\u202eh"


@pytest.mark.parametrize("make", [console, notes])
@pytest.mark.parametrize(
    "content",
    [
        HOSTILE,
        Text(HOSTILE, style="bold"),
    ],
    ids=["text", "styled"],
)
def test_nothing_that_is_printed_steers_the_terminal(make, content, capsys):
    """0.5.0: `cascade monitor` printed ESC, OSC and NUL of the columns `model` and `source`."""
    table = Table("head")
    table.add_row(content if isinstance(content, str | Text) else "x")
    make().print(content, table, markup=False)
    make().print(content, soft_wrap=True)
    printed = "".join(capsys.readouterr())
    assert "a[31mb" in printed
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", printed)


def test_json_spells_out_what_steers_a_terminal(capsys):
    """0.5.0: C1 controls, as U+009B, and U+202E stood in it as they were."""
    print_json({"model": HOSTILE, "name": "naïve"})
    printed = capsys.readouterr().out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", printed)
    assert json.loads(printed) == {"model": HOSTILE, "name": "naïve"}
    assert "naïve" in printed


@pytest.mark.parametrize(("command", "timed"), [(["serve", "--new-key", "app"], True), (["init", "--help"], False)])
def test_log_lines_of_a_server_have_their_time(command, timed, monkeypatch):
    handlers = list[logging.Handler]()
    monkeypatch.setattr(logging, "basicConfig", lambda **how: handlers.extend(how["handlers"]))
    assert CliRunner().invoke(module.app, command).exit_code == 0
    line = handlers[0].format(logging.LogRecord("cascade", logging.WARNING, "", 1, "gone", (), None))
    assert bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} WARNING gone", line)) is timed


def test_a_log_line_steers_no_terminal():
    record = logging.LogRecord("cascade", logging.WARNING, "", 1, "answered by %s", (HOSTILE,), None)
    line = LogFormatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("WARNING answered by a[31mb")
    assert "\x1b" not in line
