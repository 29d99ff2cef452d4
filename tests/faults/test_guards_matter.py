"""Take each guard out, and the first test of its fault must fail: no test here passes for nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cascade import checks, config, engine, money, text, types
from cascade.config import problems, yamlfile
from cascade.plans import nodes, prompts, reply, verdict
from cascade.providers import assembling, guard, openai_http, reading
from cascade.resilience import event_loop
from cascade.types import Usage

from . import test_config, test_guide, test_payload, test_process, test_transport
from .bench import Bench, needs_litellm
from .test_table import check

Test = Callable[[Bench], None]
TakeOut = Callable[[Bench], Any]


def scenario(name: str, home: ModuleType | Test) -> Test:
    """Return the first test of a fault in its module, or the given one, with the first of each of its parameters."""
    named = f"test_{name.split(maxsplit=1)[0].lower()}_"
    test = home if callable(home) else next(member for title, member in vars(home).items() if title.startswith(named))
    given: dict[str, Any] = {}
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names, (first, *_) = mark.args
            given |= {names: first} if isinstance(names, str) else dict(zip(names, first, strict=True))
    return partial(test, **given)


def instead(home: Any, name: str, naive: Any) -> TakeOut:
    """Return what puts something naive in a guard's place."""
    return lambda bench: bench.patch.setattr(home, name, naive)


def first_in_subprocess(code: str) -> TakeOut:
    """Return what runs code first in the test's subprocess."""
    return lambda bench: setattr(bench, "prefix", code)


def _wall_clock(bench: Bench) -> None:
    backwards: Iterator[float] = iter(range(10**9, 0, -3600))
    for module in (engine, guard):
        bench.patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(backwards))))


def _null_is_empty(payload: Any, *rest: Any) -> Any:
    return reading.read_completion({**payload, "choices": payload.get("choices") or []}, *rest)


def _no_mapping(bench: Bench) -> None:
    bench.patch.setattr(openai_http, "_MappingErrors", lambda _exchange: nullcontext())
    for name in ("_bad", "_not_json"):
        bench.patch.setattr(openai_http.Exchange, name, lambda _self, why: _NothingError(why))


def _ignore_errors(bench: Bench) -> None:
    for module in (reading, assembling):
        bench.patch.setattr(module, "raise_error_inside", lambda *_: None)


def usage_as_told(raw: Any, *_: Any) -> Usage:
    usage = raw or {}
    return Usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))


def _stop_where_it_ends(bench: Bench) -> None:
    whole = assembling.Assembler.payload

    def payload(self: assembling.Assembler) -> Any:
        self._finish = self._finish or "stop"
        return whole(self)

    bench.patch.setattr(assembling.Assembler, "payload", payload)


def _any_number_counts(bench: Bench) -> None:
    bench.patch.setattr(reading, "is_count", lambda value: isinstance(value, int))
    bench.patch.setattr(reading, "counted_usage", lambda _raw, prompt, completion: Usage(prompt, completion))


def _first_usage_counts(bench: Bench) -> None:
    add = assembling.Assembler.add

    def naive(self: assembling.Assembler, chunk: Any) -> str:
        return add(self, chunk if self._usage is None else {**chunk, "usage": None})

    bench.patch.setattr(assembling.Assembler, "add", naive)


def _naive_block(fields: Any) -> str:
    lines = "\n".join(f"{name}: {value}" for name, value in fields.items())
    return f"<data>\n{lines}\n</data>"


def _naive_verdict(verdict: str) -> tuple[bool, None]:
    return "yes" in verdict.lower(), None


def _accept_anything(scores: Any, *_: Any, **__: Any) -> engine.Actions:
    return engine.Actions(tuple(range(len(scores))), proceed=False)


def _no_limits(name: str) -> TakeOut:
    return instead(yamlfile, name, 10**9)


def _free_if_unknown(self: Any, model: str) -> money.Price:
    return money.Price(0, 0)


class _NothingError(Exception):
    """Is never raised, so that whoever catches it catches nothing."""


def _safe_loader_off(bench: Bench) -> None:
    import yaml

    bench.patch.setattr(yamlfile._Loader, "yaml_constructors", yaml.UnsafeLoader.yaml_constructors)
    bench.patch.setattr(yamlfile._Loader, "yaml_multi_constructors", yaml.UnsafeLoader.yaml_multi_constructors)
    for name in ("make_python_instance", "find_python_name", "construct_python_object_apply"):
        bench.patch.setattr(yamlfile._Loader, name, getattr(yaml.UnsafeLoader, name), raising=False)


def _only_the_first(bench: Bench) -> None:
    listed = problems.problems_of
    bench.patch.setattr(problems, "problems_of", lambda *given: listed(*given)[:1])


_BEFORE_IMPORT_OUT = "import cascade.providers.litellm as adapter\nadapter._BEFORE_IMPORT = {}"
_EXTRAS_REQUIRED = "import cascade.providers.litellm as adapter\nadapter.create = lambda _: __import__('litellm')"

GUARDS: dict[str, tuple[ModuleType | Test, TakeOut]] = {
    "F12 quote": (test_transport, instead(openai_http, "quote", lambda words, _secrets: words)),
    "F12 retry": (partial(check, mode="html_200"), instead(reading.BadResponseError, "retryable", False)),
    "F13": (test_transport, _wall_clock),
    "F14": (partial(check, mode="empty_choices"), instead(reading, "first_choice", lambda choices, _notes: choices[0])),
    "F15": (partial(check, mode="null_choices"), instead(guard, "read_completion", _null_is_empty)),
    "F16": (partial(check, mode="blank"), instead(reading, "raise_refusal", lambda *_: None)),
    "F17": (test_payload, instead(types.Completion, "truncated", property(lambda _self: False))),
    "F18": (partial(check, mode="bad_json"), _no_mapping),
    "F19": (partial(check, mode="error_429_in_200"), _ignore_errors),
    "F20": (partial(check, mode="no_usage"), instead(reading, "read_usage", usage_as_told)),
    "F21": (partial(check, mode="negative_usage"), _any_number_counts),
    "F22": (test_payload, instead(reading, "echoed_model", lambda payload, *_: payload.get("model"))),
    "F23": (test_payload, instead(money.PriceTable, "price", _free_if_unknown)),
    "F24 off": (test_payload, instead(guard, "refused", lambda *_: frozenset())),
    "F24 sampled": (
        test_payload.test_f24_a_guide_without_logprobs_is_sampled_instead,
        instead(verdict, "without_alternatives", lambda _: False),
    ),
    "F25": (test_payload, instead(reading, "logprob", lambda value: value)),
    "F05": (partial(check, mode="cut_short"), _no_mapping),
    "F26 partial": (test_payload, instead(guard, "_interrupted", lambda error, _assembler: error)),
    "F27": (partial(check, mode="stream_no_finish", way="stream"), _stop_where_it_ends),
    "F28": (partial(check, mode="stream_usage_doubled", way="stream"), _first_usage_counts),
    "F29": (partial(check, mode="odd_characters"), instead(reading, "storable", lambda words, _notes: words)),
    "F30": (
        partial(check, mode="unordered_choices"),
        instead(reading, "first_choice", lambda choices, _notes: choices[0]),
    ),
    "F40": (test_guide, instead(prompts, "data_block", _naive_block)),
    "F40 tokens": (test_guide, instead(text, "defuse", lambda words: words)),
    "F41": (test_guide, instead(reply, "is_answer", bool)),
    "F42": (test_guide, instead(verdict, "read_text", _naive_verdict)),
    "F43": (test_guide, instead(nodes, "ProviderError", _NothingError)),
    "F43 closed": (test_guide, instead(engine, "actions", _accept_anything)),
    "F49": (test_guide, instead(event_loop._Background, "here", False)),
    "F65 all": (test_config, _only_the_first),
    "F65 hints": (test_config, instead(problems, "did_you_mean", lambda *_: "")),
    "F66 aliases": (test_config, instead(yamlfile, "REFUSE_ALIASES", False)),
    "F66 size": (test_config, _no_limits("MAX_FILE_BYTES")),
    "F66 tags": (test_config, _safe_loader_off),
    "F67": (test_config, instead(config, "secret_problems", lambda *_: ())),
    "F67 shape": (test_config, instead(checks, "holds_key", lambda _: False)),
    "F71": (test_process, first_in_subprocess(_BEFORE_IMPORT_OUT)),
    "F73": (test_process, first_in_subprocess(_EXTRAS_REQUIRED)),
}
MARKS = {"F49": pytest.mark.timeout(2, func_only=True), "F71": [*needs_litellm, pytest.mark.long]}
"""Without its guard F49 waits for itself for ever."""
_NUMBERS = {5, *range(12, 31), 40, 41, 42, 43, 49, 65, 66, 67, 71, 73}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in GUARDS])
def test_without_its_guard_the_fault_gets_through(bench, name):
    home, take_out = GUARDS[name]
    test = scenario(name, home)
    inspect.signature(test).bind(bench)  # to ask for more would fail, too
    take_out(bench)
    with pytest.raises((Exception, pytest.fail.Exception)):
        test(bench)


def test_every_fault_of_this_suite_has_its_guard_taken_out():
    assert {int(name.split()[0][1:]) for name in GUARDS} == _NUMBERS
