"""Canaries: the test of frozen inputs, how they are recorded and run, and what a judge under the same name does."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade import Orchestrator, fit, verify
from cascade.collection import collect
from cascade.config import CascadeConfig, load
from cascade.conformal.promise import Promise
from cascade.errors import ConfigError, NotCertifiedError, ProviderError, RefusedError, UsageError
from cascade.fitting.fit import FitSettings
from cascade.logs.files import read_rows, write_rows
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import hashed
from cascade.policies.canaries import (
    CANARY_FILE,
    FALSE_A_YEAR,
    LEAST,
    RUNS_FILE,
    Canaries,
    Canary,
    p_value,
    runs_of,
)
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Question, Request

LEVEL = FALSE_A_YEAR / 400
PRICE = {"input": 1.0, "output": 4.0}
MODELS: dict[str, Any] = {
    "base": {"model": "small", "price": PRICE},
    "judge": {"model": "decider-1", "kind": "decision", "price": {"input": 0.1, "output": 0.0}},
    "guide": {"model": "large", "price": {"input": 10.0, "output": 40.0}},
}
LADDER = {"kind": "ladder", "models": ["base", "guide"], "judge": "judge"}
VERIFY = {"name": "verified", "model": "guide", "purpose": "verify", "parents": ["base"]}
CORRECTED = {"kind": "nodes", "nodes": [{"name": "base", "model": "base"}, VERIFY, {"name": "guide", "model": "guide"}]}
REGRET, RISK = Promise("regret", 0.1, 0.9), 0.1
BY_JUDGE = FitSettings({"kind": "threshold", "signal": "p_yes", "sign": -1.0})


# --- the test ---


def values(law: str, seed: int, runs: int, moved: float = 0.0) -> tuple[Any, Any]:
    """Return P(yes) of the repeats, and of runs whose every P(yes) moved so far."""
    rng = np.random.default_rng(seed)
    draws = rng.standard_t(2, (5 + runs, 100)) if law == "heavy" else 2 * rng.standard_normal((5 + runs, 100))
    jitter = {"steps": draws.round() / 100, "none": 0 * draws}.get(law, draws / 100)
    recorded, run = np.split(np.clip(jitter + rng.uniform(0.2, 0.8, 100), 0, 1), [5])
    return recorded.T, np.clip(run + moved, 0, 1)


@pytest.mark.parametrize("law", ["normal", "heavy", "steps", "none"])
@pytest.mark.parametrize("moved", [0.0, 0.01])
def test_the_same_judge_is_found_shifted_at_most_at_the_level(law, moved):
    p = np.array([p_value(*values(law, seed, 10, moved)) for seed in range(200)])
    for level in (0.5, 0.1, 0.01):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level / p.size)
    assert p.max() == 1.0 or law != "none"


@pytest.mark.parametrize(("law", "moved"), [("normal", 0.03), ("heavy", 0.04), ("steps", 0.03), ("none", 0.011)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_shift_is_found_in_one_run(law, moved, sign):
    p = np.array([p_value(*values(law, seed, 1, sign * moved))[0] for seed in range(20)])
    assert (p <= LEVEL).all()


def test_a_judge_with_the_same_mean_is_found_and_a_few_inputs_are_not():
    recorded, run = values("normal", 0, 1)
    assert p_value(recorded, np.sort(run[0])[::-1]) <= LEVEL
    exact = np.repeat(np.linspace(0.1, 0.9, 100)[:, None], 5, axis=1)
    for many, detected in ((6, False), (8, True)):
        moved = exact[:, 0] + np.where(np.arange(100) < many, 0.2, 0.0)
        assert (p_value(exact, moved) <= LEVEL) == detected


def test_what_has_no_verdict_says_nothing():
    recorded, run = values("none", 0, 1, 0.2)
    assert p_value(recorded, np.full(100, np.nan)) == 1.0
    part = np.where(np.arange(100) < 50, run[0], np.nan)
    assert p_value(recorded, part) == pytest.approx(float(p_value(recorded[:50], run[0][:50])))
    canaries = [Canary(2, (("user", str(n)),), tuple(row)) for n, row in enumerate(recorded.tolist())]
    file = Canaries(data=("0" * 64,), runs_a_year=400, canaries=tuple(canaries))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for known, decides in ((50, True), (49, False)):
        after = file.judged([p if n < known else None for n, p in enumerate(run[0].tolist())], now, None)
        assert (after.verdicts, after.unknown, after.suspends) == (known, 100 - known, decides)
        assert (after.p is not None) == decides


def test_no_more_runs_decide_in_a_year_than_share_the_level():
    canaries = tuple([Canary(2, (("user", str(n)),), (0.5,) * 5) for n in range(LEAST)])
    file, now = Canaries(data=("0" * 64,), runs_a_year=3, canaries=canaries), datetime(2026, 1, 1, tzinfo=UTC)
    runs = [file.judged([0.5] * LEAST, now - timedelta(days=day), None) for day in (1, 2, 364)]
    file.refuse_too_many(runs[:2], now)
    file.refuse_too_many([*runs[:2], file.judged([0.5] * LEAST, now - timedelta(days=366), None)], now)
    for other in ({"p": None}, {"data": ("1" * 64,)}):
        file.refuse_too_many([*runs[:2], runs[2].model_copy(update=other)], now)
    with pytest.raises(UsageError):
        file.refuse_too_many(runs, now)


# --- recorded, run and served ---


def number(request: Request) -> int:
    texts = [request.question.text, *(message.content for message in request.messages)]
    return int(next(text for text in texts if "river " in text).split("river ")[1][:4])


JUDGES: dict[str, Callable[[int], float]] = {
    "good": lambda at: (0.8 if at % 4 else 0.2) + (at % 19) / 100,
    "blind": lambda at: 0.2 + (at * 7 % 79) / 100,
}


def models(judge: str = "good", refuses: Callable[[int], bool] = lambda _: False) -> FakeProvider:
    def script(request: Request) -> Any:
        at = number(request)
        if request.purpose == "judge":
            p_yes = JUDGES[judge](at)
            return RefusedError("no") if refuses(at) else reply("Yes" if p_yes >= 0.5 else "No, Danube", p_yes=p_yes)
        return f"Answer: {'Danube' if at % 4 or request.model == 'large' else 'Rhine'}"

    return FakeProvider(script)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log whose judge is good, and a policy that is certified on it."""
    return prepared(tmp_path_factory.mktemp("canaries"), LADDER, REGRET)


def prepared(folder: Path, strategy: dict[str, Any], promise: Promise) -> Path:
    settings = {"models": MODELS, "strategy": strategy, "provider": "fake", "traces": "off"}
    (folder / "cascade.json").write_text(json.dumps(settings))
    questions = [AskedQuestion(f"q{n}", Question(f"river {n:04}?"), ("Danube",)) for n in range(150)]
    collect(load(settings), questions, folder / "log.jsonl", providers={"fake": models()})
    fit(folder / "log.jsonl", promise, BY_JUDGE, config=config(folder), output=folder / "policy", tell=lambda _: None)
    return folder


@pytest.fixture
def bare(fitted: Path, tmp_path: Path) -> Path:
    """Return a copy without canaries."""
    return Path(shutil.copytree(fitted, tmp_path / "made"))


@pytest.fixture(scope="module")
def watched(fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[str]]:
    """Return a copy with canaries, the result of recording them, and what was told."""
    folder = Path(shutil.copytree(fitted, tmp_path_factory.mktemp("recorded") / "made"))
    return folder, *recorded(folder)


@pytest.fixture
def folder(watched: tuple[Path, Any, list[str]], tmp_path: Path) -> Path:
    """Return a copy with canaries."""
    return Path(shutil.copytree(watched[0], tmp_path / "made"))


def config(folder: Path, **changes: Any) -> CascadeConfig:
    return load({**json.loads((folder / "cascade.json").read_text()), **changes})


def verified(folder: Path, provider: FakeProvider, canaries: Any, log: Path | None = None, **options: Any) -> Any:
    messages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascade.providers.registry.create", lambda *_: provider)
        settings = {"config": config(folder), "tell": messages.append, **options}
        return verify(folder / "policy", log, canaries=canaries, **settings), messages


def recorded(folder: Path, judge: str = "good", **options: Any) -> Any:
    return verified(folder, models(judge), "record", folder / "log.jsonl", **options)


def serving(folder: Path, judge: str, refuses: Callable[[int], bool] = lambda _: False) -> Orchestrator:
    settings = config(folder, policy=str(folder / "policy"))
    return Orchestrator.from_config(settings, providers={"fake": models(judge, refuses)})


def test_where_a_judge_gives_no_verdict_the_guide_answers_without_a_certificate(bare):
    with serving(bare, "good", lambda at: at >= 200) as cascade:
        answers = cascade.ask("river 0101?"), cascade.ask("river 0300?")
    served = [answer.served and answer.served[1].request.model for answer in answers]
    assert served == ["small", "large"]
    assert [answer.certificate is None for answer in answers] == [False, True]


def test_canaries_are_recorded_once_and_their_cost_is_told(folder, watched):
    _, result, messages = watched
    assert (result.ok, result.failed, len(messages)) == (True, (), 1)
    (run,) = runs_of(folder / "policy")
    assert (run.verdicts, run.unknown, run.suspends, run.p) == (100, 0, False, 1.0)
    assert run.cost_nano_usd == 500 * 20 * 100
    canaries = Canaries.read(folder / "policy", run.data)
    assert ({len(each.recorded) for each in canaries.canaries}, canaries.jitter) == ({5}, 0)
    again, _ = verified(folder, models(), "run")
    assert again.ok
    assert runs_of(folder / "policy")[1].cost_nano_usd == 100 * 20 * 100
    with pytest.raises(UsageError):
        recorded(folder)


def test_a_judge_behind_the_same_name_suspends_the_certificate_and_the_guide_serves(folder):
    questions = [f"river {n:04}?" for n in range(300, 400)]
    with serving(folder, "blind") as unchecked, serving(folder, "blind") as cascade:
        certified = unchecked.many(questions)
        damage = np.mean([answer.text != "Danube" for answer in certified])
        assert all(answer.certificate is not None for answer in certified)
        assert damage > RISK  # what the certificate rules out, with the check off
        assert cascade.ask(questions[0]).certificate is not None
        result, _ = verified(folder, models("blind"), "run")
        assert isinstance(result.error, NotCertifiedError)
        served = cascade.many(questions)
        assert {answer.text for answer in served} == {"Danube"}
        assert all(answer.certificate is None and answer.uncovered for answer in served)
        assert Counter(call.request.model for answer in served for call in answer.calls) == {"large": 100}
        assert cascade.runtime.service.monitors.uncovered == {"canaries": 100}
        for withdrawn in (folder / "policy").glob("withdrawn-*"):
            withdrawn.unlink()
        assert cascade.ask(questions[0]).certificate is None  # for as long as the process lives
        with pytest.raises(UsageError):
            cascade.runtime.reload_policy()


def test_a_suspension_outlives_the_process_and_a_fit_of_the_same_requests_and_ends_with_new_ones(folder):
    verified(folder, models("blind"), "run")
    provider = models()
    result, _ = verified(folder, provider, "run")
    assert (result.failed, provider.requests) == (("canaries",), [])
    plain = verify(folder / "policy", folder / "log.jsonl", config=config(folder), tell=lambda _: None)
    assert plain.failed == ("canaries",)
    fit(folder / "log.jsonl", REGRET, BY_JUDGE, config=config(folder), output=folder / "policy", force=True)
    with serving(folder, "good") as cascade:
        assert cascade.ask("river 0301?").certificate is None
    required = config(folder, policy=str(folder / "policy"), guarantee={"required": True})
    strict = Orchestrator.from_config(required, providers={"fake": models()})
    with strict, pytest.raises(NotCertifiedError):
        strict.ask("river 0301?")
    write_rows(folder / "new.jsonl", [row for row in read_rows(folder / "log.jsonl") if row["episode_id"] != "q1"])
    fit(folder / "new.jsonl", REGRET, BY_JUDGE, config=config(folder), output=folder / "policy", force=True)
    with serving(folder, "good") as cascade:
        assert cascade.ask("river 0301?").certificate is not None
    with pytest.raises(UsageError):  # the new certificate has no canaries yet
        verified(folder, models(), "run")


@pytest.mark.parametrize(
    "strategy", [LADDER, CORRECTED, {"kind": "base_guide", "rounds": 2}], ids=["judge", "verify", "rounds"]
)
def test_a_judge_that_changed_since_the_log_suspends_at_once_also_one_that_corrects(tmp_path, strategy):
    prepared(tmp_path, strategy, Promise("error", RISK, 0.9))
    result, _ = recorded(tmp_path, "blind")
    assert (type(result.error), runs_of(tmp_path / "policy")[0].verdicts) == (NotCertifiedError, 100)
    with serving(tmp_path, "blind") as cascade:
        assert cascade.ask("river 0301?").certificate is None


def test_no_verdict_is_unknown_and_suspends_nothing(folder):
    down, _ = verified(folder, models("blind", lambda at: at % 2 == 0 or at % 3 == 0), "run")
    assert isinstance(down.error, ProviderError)
    run = runs_of(folder / "policy")[-1]
    assert (run.p, run.suspends, run.cost_nano_usd) == (None, False, None)  # a refusal may be billed
    assert run.unknown > 50
    some, _ = verified(folder, models("good", lambda at: at % 5 == 0), "run")
    assert some.ok
    assert runs_of(folder / "policy")[-1].unknown > 0
    with serving(folder, "good") as cascade:
        assert cascade.ask("river 0301?").certificate is not None


def test_what_cannot_have_canaries_is_refused_and_leaves_nothing(bare):
    log, hidden = bare / "log.jsonl", bare / "hashed.jsonl"
    write_rows(hidden, [{**row, "question": hashed(row["question"])} for row in read_rows(log)])
    other = config(bare, models={**MODELS, "judge": {**MODELS["judge"], "model": "decider-2"}})
    refusing = models("good", lambda _: True)
    for verb, named, options in (
        ("record", hidden, {}), ("record", log, {"runs_a_year": 0}), ("record", None, {}), ("run", None, {}),
        ("record", log, {"config": None}), ("record", log, {"config": other}), (None, None, {}), ("Run", None, {}),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            verified(bare, models(), verb, named, **options)
    with pytest.raises(UsageError):
        verified(bare, refusing, "record", log)
    assert not (bare / "policy" / CANARY_FILE).exists()
    assert runs_of(bare / "policy") == []


def test_files_that_were_changed_are_no_canaries_and_no_runs(folder):
    policy = folder / "policy"
    text = (policy / CANARY_FILE).read_text()
    (policy / CANARY_FILE).write_text(text.replace('"runs_a_year": 400', '"runs_a_year": 1'))
    with pytest.raises(ConfigError):
        verified(folder, models(), "run")
    with (policy / RUNS_FILE).open("a") as runs:
        runs.write('{"at": "half')
        runs.flush()
        assert len(runs_of(policy)) == 1
        runs.write(" a line\n")
    with pytest.raises(ConfigError):
        runs_of(policy)
