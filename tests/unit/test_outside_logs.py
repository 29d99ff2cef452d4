"""Failed calls on record: what a log says of them, who leaves them out, and what `cascade monitor` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cascade.api.monitoring import _besides, watch_document
from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.fingerprint import outside, shown
from cascade.calibration.monitoring import logged, watch
from cascade.config import policy_section
from cascade.conformal.scope import Scope
from cascade.episodes.schema import Dropped, rows
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import ProviderUnavailableError, UsageError
from cascade.factory import policy_of
from cascade.guarantees.base import Guarantee
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Request
from unit.calibration.logs import log
from unit.cli.certified import hard_rows

CONFIG: dict[str, Any] = {
    "models": {"a": "small", "b": "large"},
    "strategy": {"kind": "ladder", "models": ["a", "b"]},
    "policy": {"kind": "fixed", "depth": 2},
    "provider": "fake",
}
SECTION = policy_section({"kind": "threshold", "keep": "both", "when": "p_yes"})
POLICY = policy_of(SECTION)


def asked(script: Callable[[Request], Any], many: int = 3) -> list[dict[str, Any]]:
    with Orchestrator.from_config(CONFIG, providers={"fake": FakeProvider(script)}) as orchestrator:
        answers = [orchestrator.ask(f"question {number}?") for number in range(many)]
    return [{**row, "correct": True} for one in answers for row in rows(one, horizon=2, split="audit")]


def test_a_row_says_which_calls_of_its_question_failed() -> None:
    def script(request: Request) -> Any:
        return ProviderUnavailableError("key sk-abcdefghijkl") if request.model == "large" else "Answer: Danube"

    made = asked(script, 1)
    assert [row["signals"]["replay"]["failed"] for row in made] == [[[2, "large", "ProviderUnavailableError"]]]
    assert "sk-" not in str(made)


def test_a_question_of_which_a_call_failed_is_left_out_of_a_log() -> None:
    """0.5.0: the last model counted as wrong there, so that such questions made a promise on regret easy to keep."""

    def script(request: Request) -> Any:
        down = request.model == "large" and "1" in request.question.text
        return ProviderUnavailableError("down") if down else "Answer: Danube"

    dropped = Dropped()
    (table,) = tables_from_rows(asked(script), dropped)
    assert table.n == 2
    assert dropped.count == 1
    assert "the call of a model failed" in dropped.describe()


def test_a_log_knows_the_names_that_replies_bore() -> None:
    (table,) = tables_from_rows(asked(lambda request: reply("Answer: A", model=f"{request.model}-1")))
    assert table.echoes == {"small": ("small-1",), "large": ("large-1",)}
    assert table.take(np.array([0])).echoes == table.echoes


def test_an_audit_of_which_a_call_failed_is_missing_and_counts_as_nothing() -> None:
    tables = tables_from_rows(hard_rows(99, range(0, 40, 2)))
    artifact = calibrate_policy(tables, POLICY, SECTION, Guarantee("coverage", 0.1)).artifact
    audits = [{**row, "split": "audit"} for row in hard_rows(40, range(20), about="new")]
    before = watch(artifact, POLICY, tables_from_rows(audits), logged(audits))
    for row in audits:
        if row["episode_id"] == audits[0]["episode_id"]:
            replay = dict((row["signals"] or {}).get("replay") or {}) | {"failed": [[2, "guide", "BadResponseError"]]}
            row["signals"] = {**(row["signals"] or {}), "replay": replay}
    found = watch(artifact, POLICY, tables_from_rows(audits), logged(audits))
    assert (found.audits, found.missing, before.missing) == (before.audits - 1, 1, 0)
    assert found.watched[0].misses in {before.watched[0].misses, before.watched[0].misses - 1}
    assert any(said.startswith("1 audit missing: a call of a model failed") for said in _besides(found))
    assert watch_document(found)["missing"] == 1


def test_what_a_log_showed_is_counted_by_the_number_of_answers() -> None:
    table = log(50)
    held = shown(table)
    assert len(held) == table.arrays.horizon
    assert sum(kind["of"] for kind in held[0].values()) == table.n
    scope = Scope(reads=frozenset({"p_yes"}), shown=tuple(held))
    assert not outside(table, scope).any()
    gone = replace(table, signals={**table.signals, "p_yes": np.full_like(table.signals["p_yes"], np.nan)})
    assert outside(gone, scope).all()


def test_a_log_of_failed_calls_alone_says_so() -> None:
    def script(request: Request) -> Any:
        return ProviderUnavailableError("down") if request.model == "large" else "Answer: Danube"

    with pytest.raises(UsageError, match="the call of a model failed"):
        tables_from_rows(asked(script))
