"""The shop's agent: tasks are checked by the final state, no task spends more than its budget, the best switch is found."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from cascade import Orchestrator
from cascade.episodes.journal import Journal
from cascade.providers.fake import FakeProvider, Reply, reply
from cascade.types import Request

FOLDER = Path(__file__).parents[2] / "examples" / "shop"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("shop_run")


def made(run: ModuleType, tmp_path: Path) -> tuple[Orchestrator, Journal, FakeProvider]:
    """Return a small model that always says done after a look, and a large one that does the task."""
    wanted = {task.message: task.calls for task in run.tasks()}

    def says(request: Request) -> Reply:
        turn = sum(message.role == "assistant" for message in request.messages) - 3  # those of the example
        calls = wanted[request.question.text] if "1.5b" in request.model else ("orders Nobody",)
        return reply([*calls, "done"][min(turn, len(calls))], input_tokens=100)

    fake = FakeProvider(says)
    orchestrator = Orchestrator.from_config(run.CONFIG | {"provider": "fake"}, providers={"fake": fake})
    return orchestrator, Journal(tmp_path / "shop.journal"), fake


def test_the_large_model_is_learned_where_it_can_be_paid_and_no_task_is_overspent(
    run: ModuleType, tmp_path: Path
) -> None:
    orchestrator, journal, fake = made(run, tmp_path)
    with orchestrator, journal:
        models, asked = run.models_of(orchestrator, journal), run.tasks()[:12]
        poor, rich = (run.learned(asked, models, budget) for budget in (100_000, 10_000_000))
        assert poor == run.ALWAYS_SMALL  # of equals the cheapest, and the first
        for budget in (100_000, 1_000_000, 10_000_000):
            played = [run.play(task, run.ALWAYS_LARGE, models, budget) for task in asked]
            assert max(one.cost_nano_usd for one in played) <= budget
        assert all(one.right and not one.stopped for one in played)
        assert sum(run.play(task, rich, models, 10_000_000).right for task in asked) == 12
        before = len(fake.requests)
        run.learned(asked, models, 10_000_000)
        assert len(fake.requests) == before  # every call is on record


def test_with_scripted_models_a_switch_is_learned_that_is_as_right_and_cheaper(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["shop_run.py", "--fake", "--tasks", "24"])
    run.main()
    small, large, learned = (line.split(" | ") for line in capsys.readouterr().out.splitlines()[-3:])
    assert int(small[2].split("/")[0]) < int(large[2].split("/")[0])
    assert learned[2] == large[2] == "12/12"
    assert float(learned[3]) < float(large[3])
