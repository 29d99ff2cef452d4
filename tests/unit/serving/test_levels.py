"""ImportOptions at a level of a policy: which one serves, under which certificate, and what audits of one do to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cascade.config import load
from cascade.config.schema import AuditsConfig
from cascade.conformal.certificate import Certificate
from cascade.errors import ConfigError, NotCertifiedError, UsageError
from cascade.factory import build_strategy
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.serving.certified import in_service
from cascade.serving.conditions import made_for
from cascade.serving.monitors import CertificateMonitors, judge
from cascade.types import Answer, Question, Request
from unit.builders import TWO_MODELS, roundtrip
from unit.certified import certificate
from unit.certified import directory as written

SETTINGS: Mapping[str, Any] = TWO_MODELS | {"strategy": {"kind": "base_guide", "rounds": 3}}
QUESTION = "Which river runs through Vienna?"
KAPPAS = {"low": 0.9, "medium": 0.4, "high": 0.1}
ALPHAS = {"low": 0.2, "medium": 0.1, "high": 0.05}
ALWAYS: Mapping[str, Any] = {"probability": 1, "seed": 1}


def script(request: Request) -> Any:
    """Leave a doubt of 0.5 in the first round, of 0.3 in the second, and none in the third."""
    if request.purpose == "judge":
        return reply("Yes", p_yes={1: 0.5, 2: 0.7, 3: 1.0}[request.step])
    return f"Answer: {('Rhine', 'Elbe', 'Danube')[request.step - 1]}"


def level(risk: float, kappa: float, **fields: Any) -> Certificate:
    """Return a certificate of a policy that goes on while it doubts by kappa or more."""
    return certificate(risk=risk, kappa=kappa, **({"made_for": made_for(load(dict(SETTINGS)))} | fields))


def three(**fields: Any) -> dict[str, Certificate]:
    return {name: level(ALPHAS[name], KAPPAS[name], **fields) for name in ALPHAS}


def write(folder: str | Path, certificates: Mapping[str, Certificate], default: str) -> str:
    levels = [replace(each, covers="level", name=name) for name, each in certificates.items()]
    return written(Path(folder), *levels, default=default)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return write(tmp_path / "policy", three(), "medium")


def opened(folder: str, **changes: Any) -> Orchestrator:
    given = {**SETTINGS, "policy": folder, **changes}
    return Orchestrator.from_config(given, providers={"fake": FakeProvider(script)})


def certified(answer: Answer) -> float | None:
    return None if answer.certificate is None else answer.certificate.promise.risk


# --- which level serves ---


@pytest.mark.parametrize(("name", "steps"), [("low", 1), ("medium", 2), ("high", 3)])
def test_a_level_serves_at_its_own_threshold_under_its_own_certificate(directory, name, steps):
    with opened(directory) as orchestrator:
        answer = orchestrator.ask(QUESTION, level=name)
    assert (answer.level, len(answer.steps), certified(answer)) == (name, steps, ALPHAS[name])
    assert answer.warnings == ()
    assert answer.steps[0].decision is not None
    assert answer.steps[0].decision.kappa == KAPPAS[name]


def test_the_default_level_serves_where_none_is_asked_for(directory):
    with opened(directory) as orchestrator:
        answer = orchestrator.ask(QUESTION)
        assert list(orchestrator.runtime.levels) == ["low", "medium", "high"]
        assert orchestrator.runtime.levels == ALPHAS
    assert (answer.level, certified(answer)) == ("medium", 0.1)
    assert "\nlevel: medium\n" in answer.explain()
    assert answer.to_dict()["level"] == "medium"
    assert roundtrip(answer) == answer


async def test_all_ways_to_ask_take_a_level(directory):
    async with opened(directory) as orchestrator:
        answers = [
            await orchestrator.aask(QUESTION, level="low"),
            (await asyncio.to_thread(lambda: list(orchestrator.stream(QUESTION, level="low"))))[-1],
            [event async for event in orchestrator.astream(QUESTION, level="low")][-1],
            *await asyncio.to_thread(lambda: orchestrator.many([QUESTION] * 3, level="low")),
            *await orchestrator.amany([QUESTION] * 3, level="low"),
        ]
    for answer in answers:
        assert isinstance(answer, Answer)
        assert (answer.level, len(answer.steps), certified(answer)) == ("low", 1, 0.2)


def test_levels_do_not_mix_in_threads(directory):
    names = ["low", "high", "medium"] * 20
    with opened(directory) as orchestrator, ThreadPoolExecutor(6) as pool:
        answers = [*pool.map(lambda name: orchestrator.ask(QUESTION, level=name), names)]
    assert [answer.level for answer in answers] == names
    assert [certified(answer) for answer in answers] == [ALPHAS[name] for name in names]


@pytest.mark.parametrize("ways", ["ask", "stream", "many"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "lwo"}, "There is no level 'lwo'; did you mean low? There is low (risk 0.2), medium"),
        ({"level": "cheapest"}, "There is no level 'cheapest'. There is low (risk 0.2), medium (risk 0.1), high"),
    ],
)
def test_an_unknown_level_is_refused_at_no_cost(directory, ways, options, message):
    provider = FakeProvider(script)
    config = {**SETTINGS, "policy": directory}
    with Orchestrator.from_config(config, providers={"fake": provider}) as orchestrator:
        questions = [QUESTION] if ways == "many" else QUESTION
        with pytest.raises(UsageError) as refused:
            getattr(orchestrator, ways)(questions, **options)
    assert message in str(refused.value)
    assert not provider.requests


def test_a_policy_without_levels_says_how_to_make_some(tmp_path):
    written(Path(tmp_path / "policy"), level(0.1, 0.5))
    for policy in (str(tmp_path / "policy"), {"kind": "fixed"}):
        with opened(policy) as orchestrator:  # type: ignore[arg-type]  # settings are a policy too
            assert orchestrator.runtime.levels == {}
            assert orchestrator.ask(QUESTION).level is None
            assert "level" not in orchestrator.ask(QUESTION).explain()
            with pytest.raises(
                UsageError, match=r"no levels, and the level 'low' was asked for; .* cascade fit LOG .* --levels"
            ):
                orchestrator.ask(QUESTION, level="low")


# --- what the configuration asks for ---


def test_the_risk_in_the_configuration_is_asked_of_the_default_level(directory):
    with opened(directory, guarantee={"promise": "coverage", "risk": 0.1, "required": True}) as orchestrator:
        for name, alpha in ALPHAS.items():
            assert certified(orchestrator.ask(QUESTION, level=name)) == alpha
    with opened(directory, guarantee={"promise": "coverage", "risk": 0.05}) as orchestrator:
        answer = orchestrator.ask(QUESTION)
        assert answer.certificate is None
        assert answer.warnings == ("no certificate: its risk is 0.1, and 0.05 is wanted",)
        assert certified(orchestrator.ask(QUESTION, level="low")) == 0.2
    with pytest.raises(NotCertifiedError, match=r"Level 'medium': .* its risk is 0\.1, and 0\.05 is wanted"):
        opened(directory, guarantee={"promise": "coverage", "risk": 0.05, "required": True})


def test_a_kind_is_asked_of_every_level(directory):
    with opened(directory, guarantee={"promise": "error"}) as orchestrator:
        for name in ALPHAS:
            answer = orchestrator.ask(QUESTION, level=name)
            assert answer.certificate is None
            assert answer.warnings[0].startswith("no certificate: it promises coverage")
    with pytest.raises(NotCertifiedError, match="A certificate is required"):
        opened(directory, guarantee={"promise": "error", "required": True})


def test_a_level_that_expires_is_refused_alone_where_one_is_required(tmp_path, monkeypatch):
    levels = three()
    levels["low"] = level(0.2, 0.9, expires="2026-11-22")
    write(tmp_path, levels, "medium")
    config = load({**SETTINGS, "policy": str(tmp_path), "guarantee": {"required": True}})
    monkeypatch.setattr("cascade.serving.certified.today_utc", lambda: date(2026, 11, 21))
    served = in_service(config, build_strategy(config))
    assert served.at("low").plan(Question(QUESTION)).certificate is not None
    monkeypatch.setattr("cascade.serving.certified.today_utc", lambda: date(2026, 11, 23))
    with pytest.raises(NotCertifiedError, match="it expired on 2026-11-22"):
        served.at("low").plan(Question(QUESTION))
    assert served.default.plan(Question(QUESTION)).certificate is not None


# --- audits ---


def audit(orchestrator: Orchestrator, name: str, times: int, *, missed: bool) -> None:
    """Ask other questions, and audit each: of one question a monitor counts one audit."""
    for number in range(times):
        answer = orchestrator.ask(f"{QUESTION} Number {number}.", level=name)
        assert answer.audited
        orchestrator.record_outcome(answer, lambda text, answers=answer.answers: (text in answers) != missed)


def counted(orchestrator: Orchestrator) -> dict[str | None, tuple[int, float]]:
    """Return of each level, None of a policy without, how many audits its monitor counted, and the monitor's level."""
    service = orchestrator.runtime.service
    assert service is not None
    monitors = {
        level or None: service.monitors.of(each.certificates[0]).monitor for level, each in service.by_level.items()
    }
    return {level: (monitor.audits, monitor.level) for level, monitor in monitors.items() if monitor is not None}


def test_an_alarm_at_one_level_withdraws_that_levels_certificate_alone(directory):
    with opened(directory, audits=ALWAYS) as orchestrator:
        audit(orchestrator, "low", 40, missed=True)
        assert orchestrator.runtime.alarm.startswith("level low: it was withdrawn")
        withdrawn = orchestrator.ask(QUESTION, level="low")
        assert (withdrawn.certificate, withdrawn.level) == (None, "low")
        assert "no certificate: it was withdrawn" in withdrawn.warnings[0]
        assert set(withdrawn.answers) == {"Danube", "Elbe", "Rhine"}  # everything is kept
        for name in ("medium", "high"):
            assert certified(orchestrator.ask(QUESTION, level=name)) == ALPHAS[name]
        audit(orchestrator, "medium", 40, missed=True)
        alarms = orchestrator.runtime.alarm.split("; level ")
    assert [alarm.partition(":")[0] for alarm in alarms] == ["level low", "medium"]


def test_the_monitors_of_all_levels_share_the_chance_of_a_false_alarm(directory):
    with opened(directory, audits={**ALWAYS, "level": 0.06}) as orchestrator:
        for name in ALPHAS:
            audit(orchestrator, name, 1, missed=False)
        assert counted(orchestrator) == {name: (1, pytest.approx(0.02)) for name in ALPHAS}


def test_a_seed_draws_the_audits_of_all_levels_together(directory):
    """Not the first question of every level, the second of none: levels of one seed would be audited alike."""

    def drawn(names: list[str]) -> list[bool]:
        with opened(directory, audits={"probability": 0.5, "seed": 3}) as orchestrator:
            questions = [(f"{QUESTION} Number {number}.", name) for number, name in enumerate(names)]
            return [orchestrator.ask(question, level=name).audited for question, name in questions]

    assert drawn(["low", "medium", "high"] * 4) == drawn(["medium"] * 12)


# --- other directories, later ---


def test_recalibrated_levels_are_served_from_the_next_question_on(directory, tmp_path):
    with opened(directory, audits=ALWAYS) as orchestrator:
        audit(orchestrator, "low", 2, missed=False)
        early = orchestrator.ask(QUESTION, level="high")
        write(directory, three() | {"high": level(0.04, 0.05)}, "low")
        orchestrator.runtime.reload_policy()
        assert orchestrator.ask(QUESTION).level == "low"
        assert certified(orchestrator.ask(QUESTION, level="high")) == 0.04
        outcome = orchestrator.record_outcome(early, "Danube")
        assert (outcome.counted, outcome.reason) == (False, "it was given under an earlier certificate")
        written(Path(tmp_path / "plain"), level(0.1, 0.5))
        orchestrator.runtime.reload_policy(tmp_path / "plain")
        assert orchestrator.runtime.levels == {}
        assert orchestrator.ask(QUESTION).level is None
        assert orchestrator.record_outcome(early, "Danube").counted is False
        orchestrator.runtime.reload_policy(directory)
        assert list(orchestrator.runtime.levels) == ["low", "medium", "high"]


def test_what_audits_found_stays_with_the_certificate_whatever_serves(directory, tmp_path):
    written(Path(tmp_path / "plain"), level(0.1, 0.5))
    with opened(directory, audits={**ALWAYS, "level": 0.06}) as orchestrator:
        audit(orchestrator, "low", 5, missed=False)
        audit(orchestrator, "high", 2, missed=False)
        write(directory, three() | {"high": level(0.04, 0.05)}, "high")  # another default, and another certificate
        orchestrator.runtime.reload_policy()
        assert counted(orchestrator) == {"low": (5, pytest.approx(0.02))}
        orchestrator.runtime.reload_policy(tmp_path / "plain")
        assert counted(orchestrator) == {}
        orchestrator.runtime.reload_policy(directory)
        assert counted(orchestrator) == {"low": (5, pytest.approx(0.02))}


def broken(folder: str) -> None:
    (Path(folder) / "policy.json").write_text("{}")


def void(folder: str) -> None:
    write(folder, three(made_for={"strategy": {"kind": "ladder"}}), "medium")


@pytest.mark.parametrize(("change", "error"), [(broken, ConfigError), (void, NotCertifiedError)])
def test_levels_that_cannot_be_served_leave_the_old_ones_in_service(directory, change, error):
    with opened(directory, guarantee={"required": True}) as orchestrator:
        before = orchestrator.ask(QUESTION, level="low").certificate
        change(directory)
        with pytest.raises(error):
            orchestrator.runtime.reload_policy()
        assert orchestrator.ask(QUESTION, level="low").certificate == before


def test_a_withdrawn_certificate_comes_back_as_no_level(directory):
    with opened(directory, audits=ALWAYS) as orchestrator:
        audit(orchestrator, "low", 40, missed=True)
        with pytest.raises(UsageError, match="is the one that was withdrawn"):
            orchestrator.runtime.reload_policy()
        write(directory, three() | {"low": level(0.2, 0.8)}, "medium")
        orchestrator.runtime.reload_policy()
        assert certified(orchestrator.ask(QUESTION, level="low")) == 0.2
        assert orchestrator.runtime.alarm is None
        write(directory, three(), "medium")
        with pytest.raises(UsageError, match="is the one that was withdrawn"):
            orchestrator.runtime.reload_policy()  # not even with another one in between


MISSES = [number % 3 == 0 for number in range(12)]


def named(name: str, **fields: Any) -> Certificate:
    return certificate(segment=name, **fields)


def asking(level: float) -> CertificateMonitors:
    return CertificateMonitors(AuditsConfig(probability=1, level=level))


@pytest.mark.parametrize("rank", [{"losses": 39}, {"losses": 11}, {"losses": 11, "confidence": 0.9}])
def test_a_monitor_at_another_level_is_the_one_that_ran_at_it_from_the_start(rank):
    first = named("a", n=399, **rank)
    monitors = asking(0.06)
    monitors.share([first])
    for place, missed in enumerate(MISSES):
        monitors.count(first, missed, f"q{place}")
    monitors.share([first, named("b"), named("c")])
    monitor, alone = monitors.of(first).monitor, asking(0.02)
    alone.share([first])
    for place, missed in enumerate(MISSES):
        alone.count(first, missed, f"q{place}")
    assert monitor.alarmed_after is None  # nor would it at the lower level, where an alarm needs more
    assert monitor == alone.of(first).monitor
    assert monitor.risk == pytest.approx(0.1 if "confidence" in rank else 0.1377, abs=1e-4)  # ties leave fewer losses
    assert monitor.level == pytest.approx(0.02)


def test_the_levels_in_service_add_up_to_the_one_that_is_asked_for():
    first, second, third = (named(name) for name in "abc")
    monitors = asking(0.06)
    for serving in ([first], [first, second, third], [second], [second, third]):
        monitors.share(serving)
        for promise in serving:
            monitors.count(promise, False, "q")
        each = [monitors.of(promise).monitor for promise in serving]
        assert sum(monitor.level for monitor in each if monitor is not None) == pytest.approx(0.06)


def test_an_alarm_stays_whatever_serves():
    first, other = named("a"), named("b")
    monitors = asking(0.05)
    monitors.share([first])
    place = 0
    while not monitors.withdrawn:
        monitors.count(first, True, f"q{place}")
        place += 1
    alarm = monitors.of(first).alarm
    monitors.share([other])
    monitors.share([first, other])
    assert {*monitors.withdrawn} == {first.id}
    assert monitors.of(first).alarm == alarm
    assert monitors.count(first, True, "another").reason == "its certificate was withdrawn in the meantime"


def test_a_truth_is_judged_by_the_matcher():
    assert judge("3.14", "number:rel=0.01")("3.15") is True
