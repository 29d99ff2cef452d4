"""Where a policy keeps nothing, a log counts the answer that is served live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cascade.calibration.scores import sample_of
from cascade.conformal.served import PathPoint
from cascade.evaluation.evaluate import play_policy
from cascade.evaluation.logs import open_log
from cascade.guarantees import get
from cascade.orchestrator import Orchestrator
from cascade.policies.threshold import ThresholdPolicy
from cascade.types import Request
from unit.collect.test_collect import Models, asked, chance, collected, config

LADDER: dict[str, Any] = {
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "policy": {"kind": "threshold", "when": "reply_logprob", "threshold": 1e-9},
}


def silent_guide(request: Request) -> Any:
    """Answer as a base that is sometimes right, and as a guide that sometimes says nothing."""
    said = chance(request, "Inn", "Oder") if request.model == "small" else chance(request, "", "Rhine")
    return f"Reasoning: it is.\nAnswer: {said}"


@pytest.mark.parametrize("many", [12])
def test_replayed_episodes_serve_what_the_log_counts(tmp_path: Path, many: int) -> None:
    log, questions = tmp_path / "log.jsonl", asked(*range(many))
    collected(log, questions, Models(silent_guide), made=config(**LADDER))
    (table,) = open_log(str(log)).tables
    policy = ThresholdPolicy(1e-9, when="reply_logprob")
    played = play_policy(table, policy)
    with Orchestrator.from_config(config(**LADDER, provider=f"replay:{log}")) as again:
        answers = {one.id: again.ask(one.question) for one in questions}
    kept_nothing = 0
    for name, leaves, right in zip(table.ids, played.leaves, played.right, strict=True):
        live = answers[next(one for one in answers if name.endswith(one))]
        kept_nothing += int(leaves == 0)
        assert (live.text == "Inn") == bool(right)
        assert bool(leaves) == any(step.decision and step.decision.keep for step in live.steps)
    assert 0 < kept_nothing < many
    errors = get("error").served(sample_of(table, policy)).at(PathPoint(policy.kappa)).loss
    assert errors.tolist() == (played.right == 0).tolist()
