"""F68: an error of ours leads to no exception of a library, which may hold a key."""

from __future__ import annotations

import io
import pickle  # noqa: TID251 - errors must survive it
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from unit.made import TWO_MODELS, request

from cascade.config import CascadeConfig, load, policy_section
from cascade.errors import AuthenticationError, CascadeError, ConfigError, UsageError
from cascade.orchestrator import Orchestrator
from cascade.policies.directory import PolicyDirectory
from cascade.providers import litellm
from cascade.providers.litellm import LiteLLM
from cascade.resilience.portal import iterate, run

KEY = "0123456789abcdef0123456789abcdef"
"""Without an issuer's mark, so that no redaction by shape helps."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that it leads to."""
    seen, left = set[int](), [error]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [found for found in (one.__cause__, one.__context__) if found is not None]


def check(error: CascadeError) -> None:
    for one in chain(error):
        assert isinstance(one, CascadeError)
        assert KEY not in f"{one} {one!r} {one.args} {one.__dict__}"
    out = io.StringIO()
    traceback.print_exception(error, file=out)
    assert KEY not in out.getvalue()
    assert KEY not in repr(pickle.loads(pickle.dumps(error)).__dict__)  # noqa: S301 - our own


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
    provider = LiteLLM({"": litellm.Endpoint(None, KEY)})
    with pytest.raises(AuthenticationError) as caught:
        call(provider)
    check(caught.value)


@pytest.mark.parametrize("load_it", [load, Orchestrator.from_config])
def test_f68_a_key_in_a_configuration_is_in_no_error_behind_the_error(load_it):
    """0.5.0: `error.__context__` was pydantic's ValidationError, which holds all of its input."""
    assert CascadeConfig  # the class whose validation fails
    with pytest.raises(ConfigError) as caught:
        load_it(TWO_MODELS | {"provider": {"kind": "fake", "api_kye": KEY}, "budget": "much"})
    check(caught.value)


def test_f68_nor_is_one_in_a_policy_or_a_file(tmp_path):
    with pytest.raises(ConfigError) as caught:
        policy_section({"kind": "uala", "treshold": KEY})
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
        raise ValueError(KEY)
    check(caught.value)
