"""The public names: sorted, loaded on first use, all there; the functions: the same results as the command line, in Python."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from cases import each

import cascade
from cascade.api.logs import LogOptions
from unit.cli.certified import hard_rows

LADDER = "demo-ladder"
PROMISE = cascade.Promise("regret", 0.15, 0.9)


@pytest.fixture(scope="module")
def log() -> Any:
    return cascade.open_log(LADDER)


@pytest.fixture(scope="module")
def fitted(log: Any) -> Any:
    return cascade.fit(log, PROMISE)


def test_a_function_of_the_package_is_no_module_after_its_room_was_imported():
    import cascade.collection
    import cascade.demo

    for name in ("collect", "compare", "evaluate", "prove", "fit", "verify"):
        assert callable(getattr(cascade, name)), name


def test_a_fit_prints_saves_verifies_and_loads(fitted, log, tmp_path):
    saved = fitted.save(tmp_path / "policy")
    assert (fitted.output, saved.output) == (None, str(tmp_path / "policy"))
    verification = cascade.verify(tmp_path / "policy", log)
    assert verification.ok
    assert verification.failed == ()
    assert str(saved) != str(fitted)
    policy = cascade.PolicyDirectory.read(tmp_path / "policy")
    assert tuple(policy.certificates.values()) == fitted.certificates
    policy.write(tmp_path / "copy")
    assert cascade.PolicyDirectory.read(tmp_path / "copy").certificates == policy.certificates


def test_what_must_be_known_of_a_log_is_logged_or_told(tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    rows = hard_rows(40, [])
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"episode_id": "broken"}]), "utf-8")
    cascade.open_log(str(path))
    assert "left out: no step (1)" in caplog.text
    messages: list[str] = []
    cascade.open_log(str(path), tell=messages.append)
    assert len(messages) == 1


def test_a_table_in_memory_is_no_log():
    with pytest.raises(cascade.UsageError):
        cascade.open_log([])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"promise": "regret"}, {"seed": 1.5}, {"splits": "3"}])
def test_a_study_is_refused_whose_promise_or_numbers_are_of_another_class(log, wrong):
    with pytest.raises(cascade.UsageError):
        cascade.prove(log, **wrong)


@pytest.mark.parametrize("wrong", [{"promise": "regret"}, {"settings": {"seed": 1}}])
def test_a_fit_is_refused_whose_promise_or_settings_are_of_another_class(log, wrong):
    with pytest.raises(cascade.UsageError):
        cascade.fit(log, **{"promise": cascade.Promise("regret", 0.05, 0.9), **wrong})


def test_an_open_log_takes_no_second_choice(log):
    with pytest.raises(cascade.UsageError, match="open_log"):
        cascade.evaluate(LogOptions(log, where={"split": "test"}), {"kind": "fixed"})


def test_results_are_shown_in_notebooks_with_every_character_escaped(log):
    evaluation = cascade.evaluate(log, {"kind": "fixed"})
    html = evaluation._repr_html_()
    assert html.startswith("<pre")
    assert "reference alone" in html
    named = replace(evaluation, reports=(replace(evaluation.reports[0], lines=("<script>alert(1)</script>",)),))
    assert "<script>" not in named._repr_html_()


def test_questions_are_collected(tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Which river runs through Vienna?", "answer": "Danube"}\n', "utf-8")
    settings = cascade.CascadeConfig.model_validate(
        {
            "models": {"base": {"model": "small"}, "guide": {"model": "large"}},
            "strategy": {"kind": "ladder", "models": ["base", "guide"]},
            "provider": "fake",
        }
    )
    done = cascade.collect(questions, tmp_path / "log.jsonl", cascade.CollectSettings(baselines=()), config=settings)
    assert (done.error, done.to_dict()["questions"]) == (None, 1)
    assert cascade.open_log(tmp_path / "log.jsonl").datasets[0].log.n == 1
    with pytest.raises(cascade.UsageError, match=r"concurrency.*limit"):
        cascade.CollectSettings(concurrency=0, limit=0)
    assert cascade.evaluate("demo-ladder", {"kind": "fixed"}, seed=-1).reports


def test_all_is_the_sorted_public_names():
    assert cascade.__all__ == sorted(cascade.__all__)
    assert set(cascade.__all__) == {*cascade._HOME_OF, "__version__"}
    assert dir(cascade) == cascade.__all__


@each("name", sorted(cascade._HOME_OF))
def test_every_lazily_named_attribute_resolves_to_that_of_its_module(name):
    home = importlib.import_module(f"cascade.{cascade._HOME_OF[name]}")
    assert getattr(cascade, name) is getattr(home, name)
    assert getattr(home, name).__module__ == home.__name__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = cascade.Nonsense


def test_importing_the_package_runs_nothing_else():
    heavy = "pydantic aiohttp litellm xllamacpp tiktoken tenacity numpy yaml rich typer asyncio"
    code = f"import sys, cascade; print(sorted(set({heavy.split()!r}) & set(sys.modules)), [m for m in sys.modules if m.startswith('cascade.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "['cascade._version']"]
