"""Served under a certificate: when it is handed out, when not and why, what audits do to it, and what comes after."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cascade.api.logs import LogOptions
from cascade.api.study import evaluate
from cascade.chat import ChatRequest
from cascade.config import load
from cascade.conformal.monitor import Monitor
from cascade.conformal.promise import Coverage, Kind
from cascade.conformal.scope import PLAIN, kind_of, seen
from cascade.episodes.opening import rows_of
from cascade.errors import BatchError, ConfigError, NotCertifiedError, ProviderUnavailableError, UsageError
from cascade.factory import build_strategy
from cascade.logs.files import write_rows
from cascade.orchestrator import Orchestrator
from cascade.policies.directory import PolicyDirectory, audits_on_record, record_audit, withdraw, withdrawal
from cascade.policies.policy import EXIT, Prompted
from cascade.providers.fake import FakeProvider, reply
from cascade.server.modes import Modes
from cascade.serving.certified import CertifiedPolicy, in_service
from cascade.serving.conditions import made_for
from cascade.types import Answer, Question, Request
from unit.builders import RIVER, TWO_MODELS
from unit.builders import TWO_RUNGS as LADDER
from unit.certified import SURE, certificate, directory

HI = {"role": "user", "content": "Hi"}
HARD, EASY = "Which river is hard?", "Which river is easy?"
SETTINGS: Mapping[str, Any] = TWO_MODELS | {"strategy": {"kind": "base_guide", "rounds": 3}}
ALWAYS: Mapping[str, Any] = {"probability": 1, "seed": 1}


def script(request: Request) -> Any:
    """Be sure and wrong in the first round of a hard question, right in all others."""
    if request.purpose == "judge":
        return reply("Yes", p_yes=0.97)
    hard = "hard" in request.question.text and request.step == 1
    return "Answer: Rhine" if hard else "Answer: Danube"


def settings(folder: Path | str, **changes: Any) -> dict[str, Any]:
    return {**SETTINGS, "policy": str(folder), **changes}


def opened(folder: Path | str, **changes: Any) -> Orchestrator:
    return Orchestrator.from_config(settings(folder, **changes), providers={"fake": FakeProvider(script)})


def fingerprint(**changes: Any) -> Mapping[str, Any]:
    return made_for(load({**SETTINGS, **changes}))


@pytest.fixture
def certified(tmp_path: Path) -> str:
    return directory(tmp_path / "policy", certificate(made_for=fingerprint()))


# --- handed out or not ---


def ask_easy(folder: Path | str, segment: str | None = None, **changes: Any) -> Answer:
    with opened(folder, **changes) as orchestrator:
        return orchestrator.ask(Question(EASY, segment=segment))


COVERED = "it promises coverage, and error is wanted"
PRICED = {"base": {"model": "small", "price": {"input": 1, "output": 2}}, "guide": "large"}
NONE = "the policy has none; make one with: cascade fit LOG"


@pytest.mark.parametrize(
    ("issued", "changes", "segment", "steps", "lacks"),
    [
        ([{}], {}, None, 1, None),
        ([{}], {"guarantee": {"promise": "coverage", "risk": 0.2}}, None, 1, None),  # more than is asked for
        ([{"segment": "law", "kappa": 0.01}, {"segment": "art"}], {}, "law", 3, None),
        ([{"segment": "law"}], {}, "art", 1, "the policy has none for the segment 'art'"),
        ([{}], {"models": {"base": "other", "guide": "large"}}, None, 1, "base is other; the certificate was made for"),
        ([{}], {"models": {"base": {"model": "small", "max_tokens": 9}, "guide": "large"}}, None, 1, "base.max_tokens"),
        ([{}], {"models": PRICED}, None, 1, "the price of small is "),
        ([{}], {"guarantee": {"promise": "error"}}, None, 1, COVERED),
        ([{}], {"guarantee": {"promise": "coverage", "risk": 0.05}}, None, 1, "its risk is 0.1, and 0.05 is wanted"),
        ([{}], {"guarantee": {"promise": "coverage", "confidence": 0.9}}, None, 1, "its confidence is none"),
        ([], {}, None, 3, NONE),
        ([], {"policy": {"kind": "fixed"}, "guarantee": {"promise": "coverage"}}, None, 1, NONE),
    ],
)
def test_a_certificate_is_handed_out_where_it_holds(tmp_path, issued, changes, segment, steps, lacks):
    folder = directory(tmp_path / "policy", *(certificate(made_for=fingerprint(), **each) for each in issued))
    answer, insists = ask_easy(folder, segment, **changes), {**changes.get("guarantee", {}), "required": True}
    assert (answer.text, len(answer.steps), answer.audited) == ("Danube", steps, False)
    if lacks is None:
        assert (answer.certificate, answer.warnings) == (PolicyDirectory.read(folder).certificates[segment or ""], ())
        assert answer.to_dict()["certificate"]["id"] == answer.certificate.id
        assert answer.steps[0].decision.kappa == answer.certificate.kappa
        assert ask_easy(folder, segment, **{**changes, "guarantee": insists}).certificate == answer.certificate
        return
    assert (answer.certificate, bool(answer.uncovered)) == (None, True)
    assert any(warning.startswith(f"no certificate: {lacks}") for warning in answer.warnings), answer.warnings
    with pytest.raises(NotCertifiedError) as refused:
        ask_easy(folder, segment, **{**changes, "guarantee": insists})
    assert (lacks in str(refused.value), refused.value.exit_code) == (True, 3)


OF_QUESTIONS, OF_CHATS = {"requests": seen([PLAIN] * 99)}, {"requests": seen([kind_of(ChatRequest([HI]))] * 99)}
CHAT_REQUEST = "the request is a chat request, and no request of the log is"
QUESTION = "the request is a question in cascade's own prompt, and no request of the log is"


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize(
    ("facts", "covers_chat", "reason"),
    [(OF_QUESTIONS, False, CHAT_REQUEST), (OF_CHATS, True, QUESTION)],
)
def test_a_question_and_a_chat_request_of_one_message_do_not_cover_each_other(
    tmp_path, facts, covers_chat, reason, required
):
    folder = directory(tmp_path / "policy", certificate(made_for={**made_for(load(LADDER)), **facts}), policy=SURE)
    fake = FakeProvider({"small": ["Danube"], "large": ["Danube"]})
    config = {**LADDER, "policy": folder, "guarantee": {"required": required}}
    with Orchestrator.from_config(config, providers={"fake": fake}) as orchestrator:
        ways = {True: lambda: orchestrator.chat([HI]), False: lambda: orchestrator.ask("Hi")}
        assert ways[covers_chat]().certificate is not None
        hot = orchestrator.chat([HI], temperature=2) if covers_chat and not required else None
        assert hot is None or hot.certificate is None  # of a kind that the calibration never had
        if required:
            with pytest.raises(NotCertifiedError, match=reason):
                ways[not covers_chat]()
        else:
            other = ways[not covers_chat]()
            assert (other.certificate, other.warnings[0]) == (None, f"no certificate: {reason}")


def serving(folder: Path, **guarantee: Any) -> CertifiedPolicy:
    """Return a policy whose certificate ends on 2026-12-01."""
    path = directory(folder, certificate(made_for=fingerprint(), expires="2026-12-01"))
    config = load(settings(path, **({"guarantee": guarantee} if guarantee else {})))
    return in_service(config, build_strategy(config)).default


def watching(orchestrator: Orchestrator) -> dict[str | None, Monitor]:
    """Return the monitors that have counted an audit, by the segment of their certificate."""
    assert orchestrator.runtime.service is not None
    monitors = {
        certificate.segment: orchestrator.runtime.service.monitors.of(certificate).monitor
        for certificate, _ in orchestrator.runtime.service.holding
    }
    return {segment: monitor for segment, monitor in monitors.items() if monitor is not None}


def test_audits_of_a_promise_that_a_single_answer_does_not_show_are_refused(tmp_path, monkeypatch):
    folder = directory(tmp_path, certificate(made_for=fingerprint()))
    monkeypatch.setattr(Kind, "monitored", False)
    with pytest.raises(ConfigError) as caught:
        opened(folder, audits=ALWAYS)
    assert len(caught.value.problems) == 1


def test_it_expires_at_the_end_of_its_last_day(tmp_path, monkeypatch):
    monkeypatch.setattr("cascade.serving.certified.today_utc", lambda: date(2026, 12, 1))
    ways: dict[str, dict[str, Any]] = {"guide": {}, "policy": {"uncovered": "policy"}, "required": {"required": True}}
    served = {name: serving(tmp_path / name, **given) for name, given in ways.items()}
    assert None not in [each.plan(RIVER).certificate for each in served.values()]
    monkeypatch.setattr("cascade.serving.certified.today_utc", lambda: date(2026, 12, 2))
    plan, alone = served["guide"].plan(RIVER), served["policy"].plan(RIVER)
    assert (plan.certificate, len(plan.warnings), "2026-12-01" in plan.warnings[0]) == (None, 1, True)
    assert (plan.policy, plan.strategy.models, plan.walk) == (None, ("large",), "guide only")  # the guide alone
    assert (alone.certificate, alone.policy.kappa) == (None, 0.3)
    with pytest.raises(NotCertifiedError, match="2026-12-01"):
        served["required"].plan(RIVER)
    with pytest.raises(NotCertifiedError, match="2026-12-01"):
        serving(tmp_path / "again", required=True)


def test_without_a_policy_directory_and_a_guarantee_nothing_is_lacking():
    with opened("", policy={"kind": "fixed"}) as orchestrator:
        answer = orchestrator.ask(EASY)
        assert (answer.warnings, orchestrator.runtime.alarm) == ((), None)
        assert orchestrator.record_outcome(answer, "Danube").counted is False


def test_a_batch_reports_a_refusal_for_each_question(tmp_path):
    lawful = certificate(made_for=fingerprint(), segment="law")
    questions = [Question(EASY, segment="law"), Question(EASY, segment="art")]
    orchestrator = opened(directory(tmp_path, lawful), guarantee={"required": True})
    with orchestrator, pytest.raises(BatchError) as failed:
        orchestrator.many(questions, concurrency=1)
    answer, refusal = failed.value.results
    assert answer.certificate.segment == "law"
    assert isinstance(refusal, NotCertifiedError)
    assert "the segment 'art'" in str(refusal)


def test_segments_have_their_own_thresholds_and_the_guide_answers_others(tmp_path):
    signed = [
        certificate(made_for=fingerprint(), segment=segment, kappa=kappa)
        for segment, kappa in (("law", 0.01), ("art", -math.inf))
    ]
    with opened(directory(tmp_path, *signed)) as orchestrator:
        law, art, other = (orchestrator.ask(Question(EASY, segment=segment)) for segment in ("law", "art", "maths"))
        status = orchestrator.runtime.service.monitors.status
    assert [len(answer.steps) for answer in (law, art, other)] == [3, 3, 1]
    assert [answer.certificate and answer.certificate.segment for answer in (law, art, other)] == ["law", "art", None]
    assert art.steps[0].decision.scores == (math.inf, math.inf)
    assert (other.served[0].model, status.uncertified_nano_usd) == ("large", other.cost_nano_usd)


# --- audits ---


def test_the_share_of_audits_is_the_one_asked_for_and_a_seed_repeats_it(certified):
    def drawn(seed: int | None) -> list[bool]:
        config = load(settings(certified, audits={"probability": 0.3, "seed": seed}))
        serving = in_service(config, build_strategy(config)).default
        return [serving.plan(replace(RIVER, group=str(number // 2))).audit for number in range(4_000)]

    first = drawn(7)
    assert first == drawn(7)
    assert first != drawn(8)
    assert drawn(None) != drawn(None)
    assert 500 < sum(first) < 700
    assert not any(first[1::2])  # of a group the first request alone


def test_audited_asks_are_recorded_as_audits(certified, tmp_path):
    url = f"sqlite:///{tmp_path / 'traces.db'}"
    audits = {"probability": 0.5, "seed": 3}
    with opened(certified, audits=audits, traces={"store": url}) as orchestrator:
        answers = [orchestrator.ask(Question(f"{HARD} {number}", segment="law")) for number in range(12)]
    rows = list(rows_of(url))
    audited = {row["question"] for row in rows if row["split"] == "audit"}
    assert audited == {answer.question.text for answer in answers if answer.audited}
    assert 0 < len(audited) < 12
    assert {row["split"] for row in rows} == {"audit", None}
    assert {row["segment"] for row in rows} == {"law"}
    assert {row["horizon"] for row in rows} == {3}
    served = {(row["split"], row["step"]) for row in rows if row["kept"]}
    assert served == {("audit", 1), (None, 1)}
    assert max(row["step"] for row in rows if row["split"] == "audit") == 3


def miss(orchestrator: Orchestrator, count: int, **more: Any) -> list[Any]:
    """Ask, and say what was right: three of four questions are hard, and their right answer comes in round two only."""
    questions = [f"{EASY if number % 4 == 3 else HARD} {number}" for number in range(count)]
    return [orchestrator.record_outcome(orchestrator.ask(question), "Danube", **more) for question in questions]


@pytest.mark.parametrize(("loss", "least", "most"), [(0.0, 0, 0), (0.5, 10, 30), (1.0, 40, 40)])
def test_a_graded_loss_is_a_miss_with_its_own_probability(certified, loss, least, most, monkeypatch):
    monkeypatch.setattr(Coverage, "served", lambda *_: loss)
    with opened(certified, audits=ALWAYS) as orchestrator:
        answers = [orchestrator.ask(f"{EASY} {number}") for number in range(40)]
        assert least <= sum(bool(orchestrator.record_outcome(each, "Danube").missed) for each in answers) <= most


def test_truths_of_audited_answers_are_counted(certified):
    with opened(certified, audits=ALWAYS) as orchestrator:
        hard, easy = orchestrator.ask(HARD), orchestrator.ask(EASY)
        assert orchestrator.record_outcome(hard, "Danube") == (True, True, "missed")
        assert orchestrator.record_outcome(easy, ["Donau", "the Danube"]) == (False, True, "not missed")
        again = orchestrator.record_outcome(easy, lambda text: text == "Danube")
        assert again == (False, False, "its group was counted before, and counts once")
        assert orchestrator.record_outcome(hard, "Volga").missed is False
        (monitor,) = watching(orchestrator).values()
        assert (monitor.audits, monitor.misses) == (2, 1)
        assert orchestrator.runtime.alarm is None


DOWN = {"small": ProviderUnavailableError("down"), "large": "Answer: Danube"}
GONE, REFUSED = ProviderUnavailableError("down", model="large"), reply("No", finish_reason="content_filter")


@pytest.mark.parametrize(
    ("changes", "provider", "late", "outcome"),
    [
        ({"audits": None}, None, 0, (None, "it was not drawn for an audit")),
        ({"guarantee": {"risk": 0.01, "uncovered": "policy"}}, None, 0, (None, "it was given without a certificate")),
        ({}, None, 0, (True, "missed")),
        ({}, None, 40, (True, "its certificate was withdrawn in the meantime")),
        # no step could follow the first, and 0.5.0 served it with a certificate
        ({}, lambda request: DOWN[request.model], 0, (None, "it was given without a certificate")),
    ],
)
def test_what_cannot_be_counted_is_not(certified, changes, provider, late, outcome):
    given = settings(certified, **{"audits": ALWAYS, **changes})
    with Orchestrator.from_config(given, providers={"fake": FakeProvider(provider or script)}) as orchestrator:
        answer = orchestrator.ask(HARD)
        miss(orchestrator, late)
        alarm = orchestrator.runtime.alarm
        result = orchestrator.record_outcome(answer, "Danube")
        assert (result.counted, result.reason) == (result.reason == "missed", outcome[1])
        assert result.missed is outcome[0] or outcome[0] is None
        assert orchestrator.runtime.alarm == alarm
        assert provider is None or (len(answer.steps), answer.audited, answer.certificate) == (1, True, None)


@pytest.mark.parametrize(
    ("fallback", "steps", "answers"),
    [
        ({}, 3, {"Danube", "Rhine"}),
        ({"fallback": "everything"}, 3, {"Danube", "Rhine"}),
        ({"fallback": "guide"}, 1, {"Rhine"}),
        (None, 0, set()),  # a certificate is required: the service ends
    ],
)
def test_an_alarm_withdraws_the_certificate_and_a_fallback_serves(certified, caplog, fallback, steps, answers):
    more = {"audits": {**ALWAYS, **(fallback or {})}, "guarantee": {"required": fallback is None}}
    with opened(certified, **more) as orchestrator, caplog.at_level(logging.ERROR, "cascade"):
        if fallback is None:
            with pytest.raises(NotCertifiedError, match="withdrawn"):
                miss(orchestrator, 40)
            return
        truths = miss(orchestrator, 40)
        counted = sum(truth.counted for truth in truths)
        assert 2 <= counted < 15
        assert not any(truth.counted for truth in truths[counted:])
        missed, alarm = sum(truth.missed for truth in truths[:counted]), orchestrator.runtime.alarm
        assert [part in alarm for part in (f"{missed} of {counted} questions", "at most 10 %")] == [True, True]
        answer = orchestrator.ask(HARD)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert (answer.certificate, answer.warnings) == (None, (f"no certificate: {alarm}",))
    assert (len([step for step in answer.steps if not step.audited]), {*answer.answers}) == (steps, answers)
    with opened(certified, **more) as restarted:
        assert (restarted.runtime.alarm, restarted.ask(EASY).certificate) == (alarm, None)


def test_an_alarm_that_is_not_on_record_is_logged_and_one_that_is_half_written_counts(tmp_path, certified, caplog):
    with opened(certified, audits=ALWAYS) as orchestrator, caplog.at_level(logging.WARNING, "cascade"):
        orchestrator.runtime.service.monitors.folder = str(tmp_path / "gone")
        miss(orchestrator, 40)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "WARNING"]
    for text, why in (("audits found 3", "audits found 3"), ("", "it was withdrawn")):
        withdraw(tmp_path, certificate().id, text)
        assert withdrawal(tmp_path, certificate()) == ("audits", why)
    for unread in (os.mkfifo, os.mkdir):  # neither can be read, for root neither
        (folder := tmp_path / unread.__name__).mkdir()
        unread(folder / f"withdrawn-{certificate().id}.txt")
        assert withdrawal(folder, certificate()) == ("audits", "it was withdrawn")
        unread(folder / "audits-id.txt")
        with pytest.raises(OSError):  # the reason is logged
            audits_on_record(folder, "id", 0)


def test_the_evidence_of_audits_is_that_of_all_processes_and_outlives_them(certified):
    for before in (0, 2):
        with opened(certified, audits=ALWAYS) as orchestrator:
            answers = [orchestrator.ask(f"{EASY} {number}") for number in range(before + 2)]
            assert [answer.audited for answer in answers] == [False] * before + [True] * 2
            assert all(orchestrator.record_outcome(answer, "Danube").counted for answer in answers[before:])
            assert watching(orchestrator)[None].audits == before + 2
    with opened(certified, audits=ALWAYS) as first, opened(certified, audits=ALWAYS) as other:
        both = [(process, process.ask(f"{EASY} 9")) for process in (first, other)]
        assert [process.record_outcome(answer, "Danube").counted for process, answer in both] == [True, False]
        assert [watching(process)[None].audits for process in (first, other)] == [5, 5]


def test_a_line_that_a_killed_process_left_half_written_is_no_audit(tmp_path):
    lines, begin = b"00000000000000aa 1\n00000000000000bb 0\n0000", 0
    (tmp_path / "audits-id.txt").write_bytes(lines)
    audits, begin = audits_on_record(tmp_path, "id", begin)
    assert audits == [("00000000000000aa", True), ("00000000000000bb", False)]
    record_audit(tmp_path, "id", "00000000000000cc", True)
    assert audits_on_record(tmp_path, "id", begin)[0] == [("00000000000000cc", True)]
    assert audits_on_record(tmp_path, "none", 7) == ([], 7)


def test_a_record_that_cannot_be_read_is_not_forgotten_in_silence(certified, caplog):
    record = Path(certified) / f"audits-{next(iter(PolicyDirectory.read(certified).certificates.values())).id}.txt"
    record.mkdir()  # it cannot be read, for root neither
    with opened(certified, audits=ALWAYS) as orchestrator, caplog.at_level(logging.WARNING, "cascade"):
        assert None not in [orchestrator.ask(EASY).certificate for _ in range(2)]
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        record.rmdir()
        record_audit(certified, record.stem.removeprefix("audits-"), "00000000000000aa", True)
        assert orchestrator.ask(EASY).certificate is not None
        assert watching(orchestrator)[None].misses == 1


def test_an_alarm_is_found_from_another_folder(certified, monkeypatch):
    monkeypatch.chdir(Path(certified).parent)
    with opened(Path(certified).name) as orchestrator:
        monkeypatch.chdir("/")
        withdraw(certified, certificate().data_sha256, "another judge")
        assert orchestrator.runtime.alarm == "another judge"


def test_service_is_resumed_with_a_new_certificate(certified, tmp_path):
    with opened(certified, audits=ALWAYS) as orchestrator:
        late = orchestrator.ask(HARD)
        miss(orchestrator, 40)
        with pytest.raises(UsageError, match="is the one that was withdrawn"):
            orchestrator.runtime.reload_policy()
        assert orchestrator.runtime.alarm is not None
        directory(Path(certified), certificate(made_for=fingerprint(), kappa=0.02, created="2026-11-22"))
        orchestrator.runtime.reload_policy()
        answer = orchestrator.ask(HARD)
        assert orchestrator.runtime.alarm is None
        assert (answer.certificate.kappa, answer.warnings, answer.text) == (0.02, (), "Danube")
        assert orchestrator.runtime.policy.kappa == 0.02
        assert orchestrator.record_outcome(late, "Danube").reason == "it was given under an earlier certificate"
        elsewhere = directory(tmp_path / "other", certificate(made_for=fingerprint(), kappa=0.5))
        orchestrator.runtime.reload_policy(elsewhere)
        assert orchestrator.runtime.policy.kappa == 0.5
        assert orchestrator.runtime.config.policy.path == elsewhere  # type: ignore[union-attr]


def test_any_orchestrator_can_take_a_policy_directory_later(certified):
    with opened("", policy={"kind": "fixed"}) as orchestrator:
        with pytest.raises(UsageError, match="names no policy directory"):
            orchestrator.runtime.reload_policy()
        orchestrator.runtime.reload_policy(certified)
        assert orchestrator.ask(EASY).certificate is not None


def test_an_alarm_of_one_segment_leaves_the_others_alone(tmp_path):
    now = fingerprint()
    folder = directory(tmp_path, *(certificate(made_for=now, segment=name) for name in ("law", "art", "maths")))
    with opened(folder, audits=ALWAYS) as orchestrator:
        for number in range(40):
            question = Question(f"{EASY if number % 4 == 3 else HARD} {number}", segment="law")
            orchestrator.record_outcome(orchestrator.ask(question), "Danube")
        assert watching(orchestrator)["law"].level == pytest.approx(0.05 / 3)
        assert watching(orchestrator).keys() == {"law"}
        assert orchestrator.ask(Question(HARD, segment="law")).certificate is None
        assert orchestrator.ask(Question(HARD, segment="art")).certificate is not None
        assert orchestrator.ask(Question(HARD, segment="maths")).warnings == ()
        for number in range(40):
            orchestrator.record_outcome(orchestrator.ask(Question(f"{HARD} {number}", segment="art")), "Danube")
        alarms = (orchestrator.runtime.alarm or "").split("; segment ")
        assert [alarm.partition(": it was")[0].removeprefix("segment ") for alarm in alarms] == ["art", "law"]


def test_audits_in_many_threads_are_all_counted(certified):
    with opened(certified, audits=ALWAYS) as orchestrator:
        answers = [orchestrator.ask(f"{EASY} {number}") for number in range(50)]
        start = threading.Barrier(8)

        def record(_: int) -> int:  # all threads tell of the same questions, and each counts once
            start.wait()
            return sum(orchestrator.record_outcome(answer, "Danube").counted for answer in answers)

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(record, range(8))) == 50
        (monitor,) = watching(orchestrator).values()
        assert (monitor.audits, monitor.misses) == (50, 0)


def test_a_drift_while_many_threads_ask_raises_one_alarm(certified, caplog):
    with opened(certified, audits=ALWAYS) as orchestrator:
        with caplog.at_level(logging.ERROR, "cascade"), ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: miss(orchestrator, 10), range(8)))
        assert orchestrator.runtime.alarm is not None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("columns", [None, frozenset({EXIT})])
@pytest.mark.parametrize("many", [49, 50])
def test_a_signal_that_the_policy_may_read_and_every_request_had_must_be_there(tmp_path, monkeypatch, columns, many):
    monkeypatch.setattr(Prompted, "columns", columns)  # None: as a class of one's own that says nothing
    about = {**made_for(load(LADDER)), "shown": [{"1": {"of": 50, "signals": {EXIT: many}}}] * 2}
    issued = certificate(kind="agreement", confidence=0.9, made_for=about)
    config = {**LADDER, "policy": directory(tmp_path / "policy", issued, policy=Prompted())}
    with Orchestrator.from_config(config, providers={"fake": FakeProvider(script)}) as orchestrator:
        assert (orchestrator.ask(EASY).certificate is None) == (many == 50)


# --- promises on the answer served ---


@pytest.mark.parametrize("right", [True, False])
def test_the_truth_about_the_reference_is_asked_for_where_no_step_is_its_own(tmp_path, right):
    folder = directory(tmp_path, certificate(kind="regret", confidence=0.9, made_for=fingerprint()))
    with opened(folder, audits=ALWAYS) as orchestrator:
        hard, easy = orchestrator.ask(HARD), orchestrator.ask(EASY)
        with pytest.raises(UsageError, match="reference_right="):
            orchestrator.record_outcome(hard, "Danube")
        assert orchestrator.record_outcome(hard, "Danube", reference_right=right).missed is right
        assert orchestrator.record_outcome(easy, "Danube").missed is False
        assert (watching(orchestrator)[None].audits, watching(orchestrator)[None].misses) == (2, right)


@pytest.mark.parametrize(
    ("kind", "last", "fields", "loss"),
    [
        ("agreement", "Answer: Danube", {}, 1),
        ("agreement", "Answer: the Rhine.", {}, 0),
        ("agreement", "Answer:", {}, 1),  # the guide gives no answer: another one differs
        ("agreement", REFUSED, {}, None),  # what it refuses and a failed call show nothing
        ("agreement", GONE, {}, None),
        ("agreement", GONE, {"fallbacks": ["c"]}, None),  # what answers in its place is not its output
        ("agreement", "Answer: no JSON", {"kappa": -5.0, "comparator": "json"}, 0),  # served by the guide
        ("regret", "Answer: Danube", {}, 1),
        ("regret", "Answer: Rhine", {}, 0),
        ("regret", "Answer:", {}, 0),  # no answer is not right
        ("regret", GONE, {}, None),
        ("error", REFUSED, {}, 1),
        ("error", GONE, {}, None),
    ],
)
def test_the_service_the_modes_and_a_log_find_the_same_loss(tmp_path, kind, last, fields, loss):
    models = {"base": "small", "guide": {"model": "large", "fallbacks": fields.pop("fallbacks", [])}, "c": "spare"}
    url, needs = f"sqlite:///{tmp_path}/traces.db", made_for(load({**LADDER, "models": models}))
    now = {"kappa": 5.0, "comparator": "exact", "reference": "large", "made_for": needs, **fields}
    folder = directory(tmp_path / "policy", certificate(kind=kind, confidence=0.9, **now), policy=SURE)
    config = {**LADDER, "models": models, "audits": ALWAYS, "policy": folder, "traces": {"store": url}}

    def answers(request: Request) -> Any:
        usual = {"small": "Answer: Rhine", "large": last, "spare": "Answer: Danube"}
        return "Answer: Danube" if "easy" in request.question.text else usual[request.model]

    with Orchestrator.from_config(config, providers={"fake": FakeProvider(answers)}) as orchestrator:
        replies = [orchestrator.ask(text) for text in (EASY, HARD)]
        counted = [orchestrator.record_outcome(answer, "Danube").counted for answer in replies]
        monitor, missing = watching(orchestrator)[None], orchestrator.runtime.service.monitors.status.missing
        modes = Modes._differs(SimpleNamespace(_orchestrator=orchestrator), replies[1])
    assert (monitor.audits, monitor.misses, missing) == ((1, 0, 1) if loss is None else (2, loss, 0))
    labelled = kind != "agreement"
    assert counted[1] is (labelled and loss is not None)
    assert labelled or modes == loss
    write_rows(tmp_path / "log.jsonl", [{**row, "gold": ["Danube"] if labelled else None} for row in rows_of(url)])
    log = LogOptions(str(tmp_path / "log.jsonl"), matcher="exact" if labelled else None)
    (row,) = evaluate(log, folder, audits=True, tell=lambda _: None).reports[0].document["certificates"]
    assert (row["audits"], row["lost"]) == ((1, 0) if loss is None else (2, loss))


# --- fallbacks ---


def test_the_guide_of_a_ladder_serves_alone_after_an_alarm(tmp_path):
    """It is on record as a walk of its own: no audit of the ladder, and none of its steps."""
    error = certificate(kind="error", confidence=0.9, kappa=5.0, made_for=made_for(load(LADDER)))
    url = f"sqlite:///{tmp_path / 'traces.db'}"
    folder = directory(tmp_path / "policy", error, policy=SURE)
    config = {**LADDER, "policy": folder, "audits": ALWAYS, "traces": {"store": url}}
    provider = FakeProvider({"small": ["Answer: Rhine"], "large": ["Answer: Danube"]})
    with Orchestrator.from_config(config, providers={"fake": provider}) as orchestrator:
        miss(orchestrator, 40)
        answer = orchestrator.ask(RIVER)
    assert (answer.text, [call.request.model for call in answer.calls]) == ("Danube", ["large"])
    assert (answer.audited, answer.certificate) == (False, None)
    (row,) = [row for row in rows_of(url) if row["question"] == RIVER.text]
    assert (row["walk"], row["split"], row["horizon"]) == ("last model only", None, 1)


def test_a_ladder_that_is_served_with_its_models_swapped_has_no_certificate(tmp_path):
    """A log of the ladder says which model answers which step, though nobody gave the configuration it was made with."""
    names = {name: {"name": name} for name in ("large", "small")}
    logged = {"strategy": None, "horizon": 2, "models": names, "step_models": ["small", "large"]}
    folder = directory(tmp_path / "policy", certificate(made_for=logged), policy=SURE)
    places: tuple[str, ...] = LADDER["strategy"]["models"]
    for models, holds in ((places, True), (places[::-1], False)):
        swapped = {**LADDER, "strategy": {"kind": "ladder", "models": models}, "policy": folder}
        provider = FakeProvider({"small": ["Answer: Rhine"], "large": ["Answer: Danube"]})
        with Orchestrator.from_config(swapped, providers={"fake": provider}) as orchestrator:
            answer = orchestrator.ask(RIVER)
        assert (answer.certificate is not None) is holds
        assert any("the order of the models is large, then small" in line for line in answer.warnings) is not holds
