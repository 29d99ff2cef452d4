"""The server keeps what its OpenAPI document says, whatever a client sends: Schemathesis makes up the requests."""

from __future__ import annotations

import os
from typing import Any

import pytest
from unit.server.served import orchestrator

from cascade.providers.fake import FakeProvider, reply
from cascade.server import switches
from cascade.server.app import application
from cascade.server.refusals import Refused

schemathesis = pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "50"))


@pytest.mark.parametrize("modes", [None, {}], ids=["plain", "modes"])
def test_schemathesis_finds_nothing(tmp_path: Any, modes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from schemathesis.specs.openapi import checks

    # The document leaves open what the models' vendors decide: a body that it allows may still be refused with 400.
    left_out = [checks.positive_data_acceptance]
    provider = FakeProvider(lambda _: reply("The Danube.", logprobs=[-0.1] * 3))
    found, tried = list[str](), 0

    def holds(case: Any) -> None:
        nonlocal tried
        tried += 1
        case.call_and_validate(excluded_checks=left_out)

    bounded = settings(
        max_examples=EXAMPLES, deadline=None, database=None, print_blob=False, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    async def refused(*_: str) -> None:  # each look is a process of its own
        raise Refused(409, "There is nothing to look at.")

    monkeypatch.setattr(switches, "run_promote", refused)
    traces = f"sqlite:///{tmp_path}/traces.db"
    with orchestrator(provider, server={"any_address": True}, traces=traces, modes=modes) as served:
        schema = schemathesis.openapi.from_asgi("/openapi.json", application(served))
        for operation in [one.ok() for one in schema.get_all_operations()]:
            for mode in schemathesis.GenerationMode:
                if mode.is_negative and not (operation.body or operation.headers):
                    continue  # there is nothing to get wrong
                try:
                    seed(1)(bounded(given(operation.as_strategy(generation_mode=mode))(holds)))()
                except* Exception as errors:
                    found += [f"{operation.label}, {mode.value}: {error}" for error in errors.exceptions]
    assert tried > EXAMPLES
    assert not found, "\n\n".join(found)
