"""F46, F68, F69, F71 and F73: what crosses a process border, leaks, or is not installed."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import pickle  # noqa: TID251 - errors and answers must survive it  # noqa: TID251 - errors must survive it
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cases import each
from patience import PATIENCE_S
from unit.builders import TWO_MODELS, request

from cascade import errors
from cascade.config import CascadeConfig, load, policy_section
from cascade.errors import AuthenticationError, CascadeError, ConfigError, UsageError
from cascade.orchestrator import Orchestrator
from cascade.policies.directory import PolicyDirectory
from cascade.providers import litellm
from cascade.providers.litellm import LiteLLM
from cascade.resilience.event_loop import iterate, run
from cascade.types import Question

from .bench import KEY, KEY_VARIABLE, PROVIDERS, Bench, needs_litellm
from .bodies import QUESTION
from .server import FaultServer

_LOGGERS = ("cascade", "aiohttp", "asyncio")
"""The loggers that are ours to answer for; litellm's own, at DEBUG, writes whatever a server sends."""
ROOT = Path(__file__).parents[2]
ERROR_MODES = [
    "401",
    "500",
    "echo_key_in_200",
    "html_200",
    "bad_json",
    "empty_choices",
    "error_401_in_200",
    "reset",
    "redirect",
]
"""One for each way to an error."""


def _classes(kind: type[CascadeError] = CascadeError) -> list[type[CascadeError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _classes(below))]


def _travelled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - its own


def _example(kind: type[CascadeError]) -> CascadeError:
    if kind is errors.ConfigError:
        return kind(["a: is wrong", "b: too"], "cascade.yaml")
    if kind is errors.MissingExtraError:
        return kind("torch", "training")
    every = {"calls": (1, 2), "model": "small", "partial": "so far", "results": ("x",), "retry_after_s": 3.5}
    return kind("it went wrong", **{name: value for name, value in every.items() if hasattr(kind, name)})


@each("kind", _classes())
@each("travel", [_travelled, copy.copy, copy.deepcopy])
def test_f46_every_error_crosses_a_border_whole(kind, travel):
    error = _example(kind)
    error.add_note("a note")
    again = travel(error)
    assert (type(again), str(again), again.args) == (kind, str(error), error.args)
    assert vars(again) == vars(error)


def test_f46_an_answer_crosses_a_border_whole(bench):
    answer = bench.served().ask(Question(QUESTION, "Vienna lies on the Danube."))
    assert _travelled(answer) == answer
    assert copy.deepcopy(answer) == answer
    json.dumps(answer.to_dict(), allow_nan=False)


def test_f46_a_real_error_crosses_with_what_was_paid(bench):
    error = bench.error("empty_choices", errors.EmptyCompletionError)
    again = _travelled(error)
    assert (again.usage, again.calls) == (error.usage, error.calls)
    assert again.calls[0].cost_nano_usd


def _shown(error: BaseException | None) -> str:
    """Return everything that a person, a log or another process could see of an error."""
    if error is None:
        return ""
    out = io.StringIO()
    traceback.TracebackException.from_exception(error, capture_locals=False).print(file=out)
    if isinstance(error, CascadeError):
        out.write(repr(pickle.dumps(error)))
    return f"{error!s} {error!r} {vars(error)!r} {out.getvalue()}"


def _everything(bench: Bench, mode: str, provider: str, key: str) -> str:
    bench.patch.setenv(KEY_VARIABLE, key)
    bench.log.set_level(logging.DEBUG)
    shown = ""
    orchestrator = bench.alone(mode, provider)
    bench.patch.setenv(KEY_VARIABLE, key)
    for ask in (orchestrator.ask, lambda question: list(orchestrator.stream(question))):
        try:
            shown += repr(ask(QUESTION))
        except CascadeError as error:
            logging.getLogger("cascade").exception("it failed")
            shown += _shown(error) + _shown(error.__cause__)
    answer = bench.answer(mode, provider)
    shown += json.dumps(answer.to_dict()) + answer.explain() + repr(answer) + repr(pickle.dumps(answer))
    formatter = logging.Formatter()
    return shown + "\n".join(
        formatter.format(record) for record in bench.log.records if record.name.startswith(_LOGGERS)
    )


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("mode", "key"),
    [*((mode, KEY) for mode in ERROR_MODES), *((mode, "01234567" * 4) for mode in ("401", "echo_key_in_200"))],
)
def test_f68_the_key_is_nowhere_also_without_the_shape_of_one(bench, mode, key, provider):
    bench.server.text = f"{bench.server.address}/elsewhere" if mode == "redirect" else "no such key: KEY"
    bench.patch.setattr("faults.bench.KEY", key)
    shown = _everything(bench, mode, provider, key)
    assert bench.server.keys[0] == f"Bearer {key}"
    assert key[:20] not in shown


@pytest.mark.parametrize("blanks", [780, 785, 790])
def test_f68_nor_a_part_of_it_where_a_text_is_cut(bench, blanks):
    bench.server.text = " " * blanks + "KEY"
    assert "sk-test" not in str(bench.error("401", errors.AuthenticationError))


def test_f69_escape_codes_and_markup_do_not_reach_the_terminal(bench, capsys):
    from cascade.cli.main import main

    path = bench.folder / "cascade.yaml"
    replies = {"small": ["Answer: \x1b[31mred\x1b]0;title\x07 [bold]x[/bold]"], "large": ["Yes"]}
    document = {
        "models": {"base": "small", "guide": "large"},
        "provider": {"kind": "fake", "options": {"replies": replies}},
    }
    path.write_text(json.dumps(document), "utf-8")
    for options in (["--explain"], []):
        bench.patch.setattr(sys, "argv", ["cascade", "ask", "\x1b[2J what?", "--config", str(path), *options])
        with pytest.raises(SystemExit):
            main()
            raise SystemExit(0)
        captured = capsys.readouterr()
        assert "red" in captured.out
        assert not {"\x1b", "\x07"} & set(captured.out + captured.err)


_LOOPBACK_ONLY = """
import socket
connect = socket.socket.connect
def checked(self, address):
    assert not isinstance(address, tuple) or address[0] in {"127.0.0.1", "::1"}, address
    return connect(self, address)
socket.socket.connect = checked
"""


def run_python(bench: Bench, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, in an empty folder that is its own."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{_LOOPBACK_ONLY}{bench.prefix}\n{code}",
        ],
        cwd=bench.folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


_LOAD_LITELLM = """
import os
before = dict(os.environ)
from cascade.providers.litellm import LiteLLM
LiteLLM({}).load()
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
"""


@pytest.mark.litellm
@needs_litellm[2]
def test_f71_importing_litellm_reads_no_env_file_and_fetches_nothing(bench):
    with FaultServer() as evil:
        (bench.folder / ".env").write_text(f"OPENAI_BASE_URL={evil.address}\nOPENAI_API_KEY={KEY}\n", "utf-8")
        done = run_python(bench, _LOAD_LITELLM, LITELLM_MODEL_COST_MAP_URL=f"{evil.address}/prices.json")
    assert done.returncode == 0, done.stderr[-2_000:]
    assert (evil.requests, evil.paths) == ([], [])


_WITHOUT_EXTRAS = """
for name in ("litellm", "torch", "xllamacpp", "tiktoken", "duckdb", "fastapi"):
    sys.modules[name] = None
import cascade
from cascade import Orchestrator
from cascade.errors import MissingExtraError
assert Orchestrator("small", "large", provider="fake").ask("what?").text
served = {"kind": "openai_http", "api_base": "ADDRESS"}
assert Orchestrator("small", "large", provider=served).ask("what?").text == "Danube"
for kind, command in (("litellm", "litellm"), ("local", "xllamacpp")):
    try:
        Orchestrator("qwen2.5-coder-0.5b", "large", provider=kind).ask("what?")
    except MissingExtraError as error:
        assert "pip install" in str(error) and command in str(error), str(error)
    else:
        raise AssertionError(f"{kind} worked")
"""


def test_f73_without_the_optional_packages(bench):
    done = run_python(bench, _WITHOUT_EXTRAS.replace("ADDRESS", bench.server.address))
    assert done.returncode == 0, done.stderr[-2_000:]
    assert bench.server.count() == 2


SHAPELESS_KEY = "0123456789abcdef0123456789abcdef"
"""Without an issuer's mark, so that no redaction by shape helps."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that it leads to."""
    seen, left = set[int](), [error]
    while left:
        current = left.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            left += [cause for cause in (current.__cause__, current.__context__) if cause is not None]


def check(error: CascadeError) -> None:
    for cause in chain(error):
        assert isinstance(cause, CascadeError)
        assert SHAPELESS_KEY not in f"{cause} {cause!r} {cause.args} {cause.__dict__}"
    out = io.StringIO()
    traceback.print_exception(error, file=out)
    assert SHAPELESS_KEY not in out.getvalue()
    assert SHAPELESS_KEY not in repr(pickle.loads(pickle.dumps(error)).__dict__)  # noqa: S301 - our own


class RefusedError(Exception):
    """As litellm's: it says the key that was refused, and so does what caused it."""

    status_code = 401


def refuse(**_arguments: Any) -> Any:
    try:
        int(f"Authorization: {KEY}")
    except ValueError as error:
        raise RefusedError(f"Incorrect key provided: {KEY}") from error


class Refusing:
    """In the place of the litellm package."""

    async def acompletion(self, **arguments: Any) -> Any:
        return refuse(**arguments)


def ask(provider: LiteLLM) -> None:
    run(provider.complete(request(), 10.0))


def stream(provider: LiteLLM) -> None:
    list(iterate(provider.stream(request(), 10.0)))


@pytest.mark.parametrize("call", [ask, stream])
def test_f68_a_refused_key_is_in_no_error_behind_the_error(call, monkeypatch):
    """0.5.0: `error.__context__` was litellm's exception, with the key in its text: `from None` keeps it."""
    monkeypatch.setattr(litellm, "load_litellm", Refusing)
    provider = LiteLLM({"": litellm.Endpoint(None, SHAPELESS_KEY)})
    with pytest.raises(AuthenticationError) as caught:
        call(provider)
    check(caught.value)


@pytest.mark.parametrize("load_it", [load, Orchestrator.from_config])
def test_f68_a_key_in_a_configuration_is_in_no_error_behind_the_error(load_it):
    """0.5.0: `error.__context__` was pydantic's ValidationError, which holds all of its input."""
    assert CascadeConfig  # the class whose validation fails
    with pytest.raises(ConfigError) as caught:
        load_it(TWO_MODELS | {"provider": {"kind": "fake", "api_kye": SHAPELESS_KEY}, "budget": "much"})
    check(caught.value)


def test_f68_nor_is_one_in_a_policy_or_a_file(tmp_path):
    with pytest.raises(ConfigError) as caught:
        policy_section({"kind": "uala", "treshold": SHAPELESS_KEY})
    check(caught.value)
    (tmp_path / "policy.json").write_text(f'{{"kind": {KEY}')
    with pytest.raises(ConfigError) as caught:
        PolicyDirectory.read(tmp_path)
    check(caught.value)


def test_f68_errors_of_ours_stay_in_the_chain():
    with pytest.raises(UsageError) as caught:
        try:
            load("no-such-file")
        except ConfigError as error:
            raise UsageError("second") from error
    assert isinstance(caught.value.__cause__, ConfigError)
    assert caught.value.__context__ is caught.value.__cause__


def test_f68_an_error_that_passes_exit_stacks_and_handlers_leads_nowhere_else():
    def closing() -> None:
        raise UsageError("while closing")

    with pytest.raises(UsageError) as caught, ExitStack() as stack:
        stack.callback(closing)
        raise ValueError(SHAPELESS_KEY)
    check(caught.value)
