"""What a certificate does not speak of: failed calls, lost signals, other names, steps that the calibration never had.

Version 0.5.0 left the certificate on such answers: with the last model of the demo ladder at 503, on 244 of 244, of
which 41 % broke the promise, without a warning or an alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cascade.config import load
from cascade.episodes.rows import datasets_of
from cascade.errors import (
    AuthenticationError,
    BudgetExceededError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    UsageError,
)
from cascade.logs.schema import Dropped, rows
from cascade.orchestrator import Orchestrator
from cascade.policies.directory import PolicyDirectory
from cascade.providers.fake import FakeProvider, reply
from cascade.serving.conditions import made_for
from cascade.types import Answer, Request
from unit.builders import TWO_MODELS
from unit.builders import TWO_RUNGS as LADDER
from unit.certified import SURE, certificate, directory

ROUNDS: Mapping[str, Any] = TWO_MODELS | {"strategy": {"kind": "base_guide", "rounds": 2}}
AUDITED = {"probability": 1, "seed": 1}
LOGPROBS = {"reply_mean_logprob": 100}
LADDER_SHOWN = [{"1": {"of": 100, "signals": LOGPROBS}}, {"1": {"of": 100, "signals": LOGPROBS}}]
ROUNDS_SHOWN = [{"2": {"of": 100, "signals": {"p_yes": 100, "verdict_mass": 100}}}] * 2

DOWN: list[Callable[[str], BaseException]] = [
    lambda model: ProviderUnavailableError(f"{model} answered 503", model=model),
    lambda model: AuthenticationError(f"{model} answered 401", model=model),
    lambda model: ProviderTimeoutError(f"{model} took too long", model=model),
]


def unsure(text: str) -> Any:
    return reply(text, logprobs=[-2.0] * len(text.split()))


def without_logprobs(text: str) -> Any:
    body = reply(text)
    body["choices"][0].pop("logprobs")
    return body


def ladder(
    folder: Path, script: Callable[[Request], Any], shown: Any = LADDER_SHOWN, **changes: Any
) -> tuple[Orchestrator, FakeProvider]:
    conditions = {**made_for(load(LADDER)), "shown": shown, **changes.pop("conditions", {})}
    kind = {"kind": "regret", "confidence": 0.9, "kappa": 0.5} | changes.pop("fields", {})
    where = directory(folder, certificate(**kind, made_for=conditions), policy=SURE)
    provider = FakeProvider(script)
    config = {**LADDER, "policy": where, "audits": AUDITED, **changes}
    return Orchestrator.from_config(config, providers={"fake": provider}), provider


def rounds(folder: Path, script: Callable[[Request], Any], shown: Any = ROUNDS_SHOWN, **changes: Any) -> Orchestrator:
    conditions = {**made_for(load(ROUNDS)), "shown": shown}
    where = directory(folder, certificate(made_for=conditions, kappa=0.3), many=2)
    config = {**ROUNDS, "policy": where, **changes}
    return Orchestrator.from_config(config, providers={"fake": FakeProvider(script)})


def reasons(answer: Answer) -> list[str]:
    head = "no certificate: "
    return [warning.removeprefix(head) for warning in answer.warnings if warning.startswith(head)]


# --- a model that is down


@pytest.mark.parametrize("down", DOWN)
@pytest.mark.parametrize("required", [False, True])
def test_a_ladder_whose_last_model_is_down(tmp_path, down, required):
    """0.5.0: certified, no warning, and the audit counted "the reference is wrong"."""

    def script(request: Request) -> Any:
        if request.model == "large":
            return down("large")
        return unsure("Answer: Rhine") if "hard" in request.question.text else "Answer: Danube"

    orchestrator, _ = ladder(tmp_path, script, guarantee={"required": required})
    with orchestrator:
        hard, easy = orchestrator.ask("a hard one?"), orchestrator.ask("an easy one?")
        assert (hard.text, hard.certificate) == ("Rhine", None)
        (reason,) = reasons(hard)
        assert reason.startswith("the call of large at step 2 failed (")
        assert any(warning.startswith("the call of large failed at step 2: ") for warning in hard.warnings)
        assert (easy.text, easy.certificate is not None) == ("Danube", True)
        status = orchestrator.runtime.service.monitors.status
        assert (status.answered, status.certified) == (2, 1)
        assert orchestrator.runtime.alarm is None


@pytest.mark.parametrize("last", [ProviderUnavailableError("down"), "Answer:", reply("A", finish_reason="length")])
def test_an_unsure_base_beside_a_last_model_without_an_answer_is_served(tmp_path, last):
    """0.5.0: text=None, no error, no warning, where the policy had kept nothing of the unsure step."""
    judged = {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5}
    script = {"small": [unsure("Answer: Rhine")], "large": [last]}
    with Orchestrator.from_config({**LADDER, "policy": judged}, providers={"fake": FakeProvider(script)}) as cascade:
        answer = cascade.ask("which?")
    assert (answer.text, answer.stopped) == ("Rhine", "horizon")
    assert "the policy kept no answer, and the last step gave none: the best answer is served" in (answer.warnings)


def test_where_no_step_brought_an_answer_a_warning_says_so():
    with Orchestrator.from_config(LADDER, providers={"fake": FakeProvider(lambda _: "Answer:")}) as cascade:
        answer = cascade.ask("which?")
    assert (answer.text, answer.warnings[-1]) == (None, "no step gave an answer")


@pytest.mark.parametrize("down", DOWN)
@pytest.mark.parametrize("role", ["base", "guide"])
def test_rounds_in_which_a_model_is_down(tmp_path, down, role):
    """0.5.0: stopped=horizon, the certificate shown, warnings=()."""

    def script(request: Request) -> Any:
        if request.role == role:
            return down(request.model)
        return reply("Yes", p_yes=0.99) if request.purpose == "judge" else "Answer: Danube"

    with rounds(tmp_path, script) as orchestrator:
        answer = orchestrator.ask("which?")
    assert (answer.text, answer.certificate) == ("Danube", None)
    assert any(text.startswith(f"the call of {role} failed at step 1") for text in answer.warnings), answer.warnings
    assert reasons(answer)[0].startswith(f"the call of {role} at step 1 failed (")


def test_a_guide_that_is_down_is_said_without_a_certificate_too():
    """0.5.0: under the default on_guide_error nothing was said."""

    def script(request: Request) -> Any:
        return ProviderUnavailableError("down") if request.role == "guide" else "Answer: Danube"

    with Orchestrator.from_config(ROUNDS, providers={"fake": FakeProvider(script)}) as orchestrator:
        answer = orchestrator.ask("which?")
    assert answer.text == "Danube"
    assert answer.warnings == ("the call of guide failed at step 1, 2: ProviderUnavailableError: down",)


def test_a_base_that_is_down_is_named_before_the_cap():
    """0.5.0: the error named the budget of the guide's call alone."""
    priced = {
        "base": {"model": "small", "price": {"input": 0.001, "output": 0.001}},
        "guide": {"model": "large", "price": {"input": 1000, "output": 1000}},
    }
    config = {**ROUNDS, "models": priced, "budget": {"per_question": 0.001}}
    provider = FakeProvider(lambda _: ProviderUnavailableError("small answered 503"))
    with (
        Orchestrator.from_config(config, providers={"fake": provider}) as orchestrator,
        pytest.raises(
            BudgetExceededError, match=r"^The call of base failed at step 1: .*small answered 503\. After that: "
        ),
    ):
        orchestrator.ask("which?")


# --- what the policy was fitted on is not there


ECHO = "small-2026-01-01"
SOME = [{"1": {"of": 100, "signals": {"reply_mean_logprob": 99}}}] * 2


@pytest.mark.parametrize(
    ("payload", "shown", "echoes", "outside"),
    [
        (without_logprobs("Answer: Danube"), LADDER_SHOWN, None, "reply_mean_logprob"),
        (without_logprobs("Answer: Danube"), SOME, None, None),  # the calibration lacked it too
        (reply("Answer: Danube", model="other"), LADDER_SHOWN, None, "small answered as other"),
        (reply("Answer: Danube", model=ECHO), LADDER_SHOWN, None, None),
        (reply("Answer: Danube", model=ECHO), LADDER_SHOWN, [ECHO], None),
        (reply("Answer: Danube", model="small-2026-02-02"), LADDER_SHOWN, [ECHO], "small answered as small-2026-02-02"),
        (reply("Answer: Danube", model="deployment-7"), LADDER_SHOWN, ["deployment-7"], None),
        (reply("Answer: Danube", model=None), LADDER_SHOWN, [ECHO], None),
    ],
)
def test_what_a_reply_lacks_and_the_name_that_it_bears(tmp_path, payload, shown, echoes, outside):
    """0.5.0: both models bore another name, and the certificate stayed."""
    echoed = {"echoes": None if echoes is None else {"small": echoes}}
    orchestrator, _ = ladder(tmp_path, lambda _: payload, shown, conditions=echoed)
    with orchestrator:
        answer = orchestrator.ask("which?")
    assert (answer.certificate is None) is (outside is not None)
    assert outside is None or outside in reasons(answer)[0]


@pytest.mark.parametrize(
    ("verdict", "outside"),
    [
        (without_logprobs("Yes"), "verdict_mass"),  # three samples stand in for log-probs: another law of P(yes)
        (without_logprobs("Rivers are lovely."), "step 1 "),
    ],
)
def test_a_verdict_that_is_not_the_one_that_was_calibrated(tmp_path, verdict, outside):
    """0.5.0: the certificate was shown, and warnings were ()."""
    with rounds(tmp_path, lambda request: verdict if request.purpose == "judge" else "Answer: Danube") as orchestrator:
        answer = orchestrator.ask("which?")
    assert (answer.text, answer.certificate) == ("Danube", None)
    assert any(outside in reason for reason in reasons(answer))


def test_where_a_certificate_is_required_a_step_outside_does_not_end_the_walk(tmp_path):
    def script(request: Request) -> Any:
        return reply("Answer: Rhine", model="other") if request.model == "small" else "Answer: Danube"

    orchestrator, _ = ladder(tmp_path, script, guarantee={"required": True})
    with orchestrator:
        answer = orchestrator.ask("which?")
    assert (len(answer.steps), answer.stopped, answer.certificate) == (2, "horizon", None)
    assert "Danube" in answer.answers
    assert "a certificate" not in answer.steps[1].reason
    assert "so the walk goes on" in " ".join(answer.steps[0].notes)


def test_the_name_that_a_reply_bears_holds_no_key(tmp_path):
    """It goes into warnings and traces."""
    orchestrator, _ = ladder(tmp_path, lambda _: reply("Answer: Danube", model="Bearer sk-abcdefghijklmnop"))
    with orchestrator:
        answer = orchestrator.ask("which?")
    assert reasons(answer)
    assert "abcdefghijklmnop" not in repr(answer)


# --- steps that the calibration had


def test_a_step_without_an_answer_is_inside_where_the_calibration_had_one(tmp_path):
    """The last model's replies are all cut. One of 100 calibration questions had such a step, and was counted."""
    shown = [LADDER_SHOWN[0], {"0": {"of": 1, "signals": {}}, "1": {"of": 99, "signals": {"reply_mean_logprob": 99}}}]

    def script(request: Request) -> Any:
        return reply("Answer: A", finish_reason="length") if request.model == "large" else unsure("Answer: Rhine")

    orchestrator, _ = ladder(tmp_path, script, shown)
    with orchestrator:
        assert orchestrator.ask("which?").certificate is not None


# --- prompts, addresses


def prompts(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "answer.txt").write_text(f"[user]\n{text}: {{question}}", "utf-8")


@pytest.fixture
def prompted(tmp_path: Path) -> tuple[dict[str, Any], Callable[[str], str]]:
    """Return a configuration, and what writes prompts and a policy that is certified for them: its certificate's id."""
    mine, where = tmp_path / "prompts", tmp_path / "policy"
    config = {**LADDER, "strategy": {**LADDER["strategy"], "prompts": str(mine)}, "policy": str(where)}

    def certify(text: str) -> str:
        prompts(mine, text)
        conditions = made_for(load({**config, "policy": {"kind": "fixed"}}))
        directory(where, certificate(kappa=0.5, made_for={**conditions, "shown": LADDER_SHOWN}), policy=SURE)
        return PolicyDirectory.read(where).certificates[""].id

    return config, certify


def test_a_policy_calibrated_for_new_prompts_is_served_with_them(tmp_path, prompted):
    """0.5.0: `reload_policy()` sent the old prompts under the new certificate."""
    config, certify = prompted
    first, provider = certify("Old"), FakeProvider(lambda _: "Answer: Danube")
    with Orchestrator.from_config(config, providers={"fake": provider}) as orchestrator:
        prompts(tmp_path / "prompts", "New")
        before = orchestrator.ask("which?")  # the files changed; what is sent did not
        assert "Old: " in provider.requests[-1].messages[-1].content
        second = certify("New")
        orchestrator.runtime.reload_policy()
        after = orchestrator.ask("which?")
        assert "New: " in provider.requests[-1].messages[-1].content
        assert [answer.certificate and answer.certificate.id for answer in (before, after)] == [first, second]
        prompts(tmp_path / "prompts", "Newest")
        orchestrator.runtime.reload_policy()
        assert len(reasons(orchestrator.ask("which?"))) == 1


def test_a_question_under_way_ends_with_the_prompts_and_the_certificate_that_it_began_with(prompted):
    config, certify = prompted
    certificates, sent = [certify("Old")], list[str]()

    def reloads(request: Request) -> Any:
        sent.append(request.messages[-1].content[:4])
        if len(sent) == 1:
            certificates.append(certify("New"))
            orchestrator.runtime.reload_policy()
        return unsure("Answer: Danube")

    with Orchestrator.from_config(config, providers={"fake": FakeProvider(reloads)}) as orchestrator:
        answers = orchestrator.ask("which?"), orchestrator.ask("which?")
    assert sent == ["Old:", "Old:", "New:", "New:"]
    assert [answer.certificate and answer.certificate.id for answer in answers] == certificates


def test_a_certificate_without_an_address_still_holds(tmp_path):
    old = {key: value for key, value in made_for(load(LADDER)).items() if key != "served_by"}
    where = tmp_path / "policy"
    directory(where, certificate(made_for=old, kappa=0.5), policy=SURE)
    config = {**LADDER, "policy": str(where), "guarantee": {"required": True}}
    with Orchestrator.from_config(config, providers={"fake": FakeProvider()}) as orchestrator:
        assert orchestrator.ask("which?").certificate is not None


CONFIG = LADDER | {"policy": {"kind": "fixed", "depth": 2}}


def audit_rows(script: Callable[[Request], Any], many: int = 3) -> list[dict[str, Any]]:
    with Orchestrator.from_config(CONFIG, providers={"fake": FakeProvider(script)}) as orchestrator:
        answers = [orchestrator.ask(f"question {number}?") for number in range(many)]
    return [{**row, "correct": True} for answer in answers for row in rows(answer, horizon=2, split="audit")]


def test_a_row_says_which_calls_of_its_question_failed():
    def script(request: Request) -> Any:
        return ProviderUnavailableError("key sk-abcdefghijkl") if request.model == "large" else "Answer: Danube"

    recorded = audit_rows(script, 1)
    assert [row["signals"]["replay"]["failed"] for row in recorded] == [[[2, "large", "ProviderUnavailableError"]]]
    assert "sk-" not in str(recorded)


def test_a_question_of_which_a_call_failed_is_left_out_of_a_log():
    """0.5.0: the last model counted as wrong there, so that such questions made a promise on regret easy to keep."""

    def script(request: Request) -> Any:
        down = request.model == "large" and "1" in request.question.text
        return ProviderUnavailableError("down") if down else "Answer: Danube"

    with pytest.raises(UsageError, match="the call of a model failed"):
        datasets_of([row for row in audit_rows(script) if "1" in row["question"]])
    dropped = Dropped()
    (read,) = datasets_of(audit_rows(script), dropped)
    assert read.log.n == 2
    assert dropped.count == 1
    assert "the call of a model failed" in dropped.describe()


def test_a_log_knows_the_names_that_replies_bore():
    (read,) = datasets_of(audit_rows(lambda request: reply("Answer: A", model=f"{request.model}-1")))
    assert read.facts.echoes == {"small": ("small-1",), "large": ("large-1",)}
