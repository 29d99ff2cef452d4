"""`cascade collect` and `cascade onboard`: who is asked, what is logged, and how they end."""

from __future__ import annotations

import json
import logging
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from cascade.cli import logs as module
from cascade.collection.collector import BASELINES
from cascade.errors import AuthenticationError
from cascade.logs.files import read_rows, write_rows
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Request

Cli = Callable[..., Any]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Write three questions with their answers."""
    path = tmp_path / "rivers.jsonl"
    rows = [{"question": f"Which river is number {n}?", "answer": "Danube", "id": f"q{n}"} for n in (1, 2, 3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Write a configuration of two priced, scripted models and two rounds."""
    path = tmp_path / "cascade.yaml"
    path.write_text(
        "models:\n"
        "  base: {model: small, max_tokens: 32, price: {input: 0.1, output: 0.4}}\n"
        "  guide: {model: large, max_tokens: 32, price: {input: 1, output: 4}}\n"
        "provider: {kind: fake, options: {replies: {small: ['Answer: Danube'], large: ['Yes']}}}\n"
        "strategy: {samples: 1, rounds: 2}\n"
    )
    return path


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], FakeProvider]:
    """Let a script answer in place of the configured replies."""

    def arrange(script: Any) -> FakeProvider:
        fake = FakeProvider(script)
        monkeypatch.setattr("cascade.providers.registry.create", lambda *_: fake)
        return fake

    return arrange


def rows(log: str = "log.jsonl") -> list[dict[str, Any]]:
    return list(read_rows(Path(log)))


@pytest.mark.usefixtures("settings", "questions")
def test_it_logs_all_steps_and_the_guide_alone_and_shows_them(cli):
    ran = cli("collect", "rivers.jsonl", "-o", "log.jsonl")
    assert ran.code == 0, ran.err
    assert "questions: 3 of 3" in ran.err
    assert {(row["walk"], row["dataset"]) for row in rows()} == {(None, "rivers"), ("guide only", "rivers")}
    assert [row["episode_id"] for row in rows()] == ["q1"] * 5 + ["q2"] * 5 + ["q3"] * 5
    assert not Path("log.jsonl.journal").exists()


@pytest.mark.usefixtures("settings", "questions")
def test_json_is_one_document_on_stdout_with_what_was_paid(cli):
    document = json.loads(cli("collect", "rivers.jsonl", "-o", "log.jsonl", "--json").out)
    paid = {row["signals"]["replay"]["request"]: row["cost_nano_usd"] for row in rows()}
    assert (document["questions"], document["rows"], document["unused_calls"]) == (3, 15, 0)
    assert (document["failures"], document["refused"], document["stopped"]) == ([], [], None)
    assert (document["made_calls"], document["reused_calls"]) == (len(paid), 15 - len(paid))
    assert document["spent_usd"] == pytest.approx(sum(paid.values()) / 1e9)


@pytest.mark.usefixtures("settings", "questions")
@pytest.mark.parametrize(
    ("flags", "walks"),
    [
        (("--limit", "2", "--dataset", "mine", "--matcher", "number:rel=0.1"), {"guide only"}),
        (("--baseline", "none"), set()),
        (("--baseline", "guide only", "--baseline", "LLM-exit, guide"), {"guide only", "LLM-exit, guide"}),
        (("--baseline", "all"), set(BASELINES)),
    ],
)
def test_which_baselines_are_logged_is_chosen(cli, flags, walks):
    assert cli("collect", "rivers.jsonl", "-o", "log.jsonl", *flags).code == 0
    assert {row["walk"] for row in rows()} - {None} == walks
    limited = "--limit" in flags
    assert ({row["dataset"] for row in rows()}, len({row["episode_id"] for row in rows()})) == (
        {"mine" if limited else "rivers"},
        2 if limited else 3,
    )


# --- how it ends ---


def second_fails(request: Request) -> Any:
    if "number 2?" in request.question.text:
        return AuthenticationError("[bold]no key[/bold]")
    return reply("Yes") if request.purpose == "judge" else "Answer: Danube"


@pytest.mark.usefixtures("settings", "questions")
def test_a_failed_question_is_5_and_named_and_the_cap_is_4(cli, scripted):
    scripted(second_fails)
    ran = cli("collect", "rivers.jsonl", "-o", "log.jsonl", "--json")
    failures = [{"question": "q2", "error": "AuthenticationError: [bold]no key[/bold]"}]
    assert (ran.code, json.loads(ran.out)["failures"], {row["episode_id"] for row in rows()}) == (
        5,
        failures,
        {"q1", "q3"},
    )
    assert cli("collect", "rivers.jsonl", "-o", "log.jsonl").code == 2  # it is there
    scripted({"small": ["Answer: Danube"], "large": ["Yes"]})
    assert cli("collect", "rivers.jsonl", "-o", "log.jsonl", "--resume", "--max-cost", "0.0001").code == 4
    assert cli("collect", "rivers.jsonl", "-o", "log.jsonl", "--resume").code == 0
    assert {row["episode_id"] for row in rows()} == {"q1", "q2", "q3"}


@pytest.mark.usefixtures("settings", "questions")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-cost", "0"), "--max-cost is an amount in USD above 0, not 0.0"),
        (("--max-cost", "much"), "--max-cost"),
        (("--baseline", "guide onli"), "LLM policy, guide; LLM-exit, base"),
        (("--baseline", "al"), "did you mean all?"),
        (("--matcher", "exactly"), "There is no matcher 'exactly'"),
        (("--limit", "0"), "--limit"),
        (("-c", "nowhere.yaml"), "nowhere.yaml"),
        (("demo-requests", "-o", "log.csv"), "must end in one of"),
    ],
)
def test_bad_usage_is_2_and_nothing_is_asked_or_written(cli, scripted, tmp_path, flags, message):
    fake = scripted(None)
    before = set(tmp_path.iterdir())
    ran = cli("collect", *(() if flags[0] == "demo-requests" else ("rivers.jsonl", "-o", "log.jsonl")), *flags)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert (fake.requests, set(tmp_path.iterdir())) == ([], before)


@pytest.mark.usefixtures("settings", "questions")
def test_an_interrupt_says_at_once_what_it_waits_for(cli, scripted, monkeypatch):
    """0.6: 115 s of silence."""
    announced = threading.Event()

    class Listens(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "--resume" in record.getMessage():
                announced.set()

    def script(request: Request) -> Any:
        if request.question.text == "Which river is number 2?":
            assert announced.wait(PATIENCE_S), "nothing was said while a call was under way"
        return reply("Answer: Danube")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    scripted(script)
    monkeypatch.setattr(module, "spending", interrupted)
    listener = Listens()
    logging.getLogger("cascade").addHandler(listener)
    ran = cli("collect", "rivers.jsonl", "-o", "log.jsonl", "--concurrency", "2")
    logging.getLogger("cascade").removeHandler(listener)
    assert ran.code in {1, 130}
    assert announced.is_set()


@pytest.mark.parametrize("long", [300, 245])
def test_a_name_that_no_file_can_have_is_one_error(cli, questions, settings, long):
    """0.5.0: a traceback; of 245 letters the log has a name and its journal none."""
    ran = cli("collect", str(questions), "-c", str(settings), "-o", "x" * long + ".jsonl")
    assert ran.code == 2
    assert ran.err.count("error:") == 1
    assert "cannot be written" in ran.err.replace("\n", " ")


@pytest.mark.usefixtures("questions")
def test_a_node_is_added_to_a_log_and_wrong_options_are_refused(cli, settings):
    text = settings.read_text().replace("{samples: 1, rounds: 2}", "{kind: ladder, models: [base, guide]}")
    settings.write_text(text)
    assert cli("collect", "rivers.jsonl", "-o", "log.jsonl").code == 0
    wider = text.replace("[base, guide]", "[base, third, guide]").replace("small: [", "middle: ['Inn'], small: [")
    settings.write_text(wider.replace("  guide:", "  third: {model: middle, price: {input: 1, output: 2}}\n  guide:"))
    ran = cli("collect", "log.jsonl", "--only", "third", "-o", "wider.jsonl", "--max-cost", "1", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["questions"], document["rows"], document["made_calls"]) == (0, 3, 9, 3)
    assert [row["source"] for row in rows("wider.jsonl")] == ["small", "middle", "large"] * 3
    for wrong in (
        ("--only", "fourth"),
        ("--only", "third", "--baseline", "none"),
        ("--only", "third", "--map", "id=name"),
    ):
        assert cli("collect", "log.jsonl", *wrong, "-o", "new.jsonl").code == 2


RIVERS = [f"river {n}" for n in range(120)]
PRICE = "price: {input: 0.1, output: 0.4}"


def old_rows(dataset: str = "log") -> Iterator[dict[str, Any]]:
    """Yield a ladder's log: the old model has every third right, the reference all but every tenth."""
    for n, river in enumerate(RIVERS):
        question = {"episode_id": f"{dataset}{n}", "question": f"Which is {river}?", "gold": [river], "horizon": 2}
        question |= {"candidate": 0, "dataset": dataset}
        for step, model, right in ((1, "old", n % 3 == 0), (2, "large", n % 10 > 0)):
            call = {"step": step, "source": model, "model": model, "answer": river if right else "none known"}
            yield question | call | {"correct": right, "cost_nano_usd": 10 ** (3 * step)}


@pytest.fixture
def new_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeProvider:
    """Script the new model: it knows the rivers with an even number, and is sure of them."""

    def says(request: Request) -> Any:
        river = request.question.text.removeprefix("Which is ").removesuffix("?")
        even = int(river.split()[1]) % 2 == 0
        return reply(f"Answer: {river if even else 'no idea'}", logprobs=[-0.01 if even else -2.0])

    fake = FakeProvider(says)
    monkeypatch.setattr("cascade.providers.fake.create", lambda _: fake)
    write_rows(tmp_path / "old.jsonl", old_rows())
    write_rows(tmp_path / "both.jsonl", [*old_rows("a"), *old_rows("b")])
    (tmp_path / "cascade.yaml").write_text(
        f"models:\n  base: {{model: new, {PRICE}}}\n  guide: large\nprovider: fake\n"
    )
    return fake


def test_only_the_new_model_is_asked_and_once(cli, tmp_path, new_model):
    command = ("onboard", "new", "old.jsonl", "-o", "probes.jsonl", "--risk", "0.1", "--concurrency", "1", "--json")
    ran = cli(*command, "--probes", "60")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert (report["model"], report["reference"], report["fit"]["requests"]) == ("new", "large", 60)
    assert ({request.model for request in new_model.requests}, len(new_model.requests)) == ({"new"}, 60)
    low, high = report["fit"]["cost_share_interval"]
    assert 0 < low <= report["fit"]["cost_share"] <= high < 1
    assert report["fit"]["attempt"] == 1
    assert {row["source"] for row in read_rows(tmp_path / "probes.jsonl")} == {"new", "large"}
    more = json.loads(cli(*command, "--probes", "80").out)  # the same requests and 20 more
    assert (len(new_model.requests), more["fit"]["requests"], more["fit"]["attempt"]) == (80, 80, 2)


def test_the_command_that_it_names_judges_the_probes_as_it_did(cli, tmp_path, new_model):
    """Before, it left out the matcher, and the command ended with 2: nothing said who was right."""
    write_rows(tmp_path / "old.jsonl", [row | {"correct": None} for row in old_rows()])
    ran = cli("onboard", "new", "old.jsonl", "-o", "probes.jsonl", "--risk", "0.1", "--matcher", "exact")
    following = shlex.split(ran.out.partition("Next: cascade ")[2].splitlines()[0])
    assert (len(new_model.requests), cli(*following).code) == (100, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nwe", "old.jsonl"), "did you mean new?"),
        (("guide", "old.jsonl"), "large is the log's reference already"),
        (("new", "both.jsonl"), "choose one: --where dataset=NAME"),
        (("new", "old.jsonl", "--promise", "regert"), "did you mean regret"),
    ],
)
def test_what_cannot_be_onboarded_is_2_and_nothing_is_asked(cli, new_model, arguments, says):
    ran = cli("onboard", *arguments, "-o", "probes.jsonl")
    assert (ran.code, new_model.requests) == (2, [])
    assert says in " ".join(ran.err.split())


def test_a_promise_of_agreement_needs_no_labels(cli, tmp_path, new_model):
    write_rows(tmp_path / "old.jsonl", [row | {"gold": None, "correct": None} for row in old_rows()])
    command = ("onboard", "new", "old.jsonl", "-o", "probes.jsonl", "--promise", "agreement", "--risk", "0.2")
    ran = cli(*command, "--probes", "80", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["fit"]["promise"]["kind"] == "agreement"
