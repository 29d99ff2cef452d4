"""No verdict is ever read as a yes."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any

import pytest
from cases import each

from cascade.errors import ConfigError
from cascade.logs.files import read_rows
from cascade.orchestrator import Orchestrator
from cascade.plans.base import ModelUse
from cascade.plans.prompts import Template, load, parse, question_text
from cascade.plans.reply import is_answer, split_reply, tidy
from cascade.plans.verdict import (
    NO_VERDICT,
    combine,
    read,
    read_action,
    read_logprobs,
    read_text,
    sensible,
    without_alternatives,
)
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Answer, Message, Question, Request, Token
from unit.builders import RIVER, completion, yes_no

LN = math.log


YES, NO, NONE = (True, None), (False, None), (None, None)


PARIS, LISTED_ANSWER = "Paris", "- Elbe\n- Oder"
FENCED = "```python\nx = 1\n```"


@each(
    "text, answer, read_as",
    [
        *((text, "", YES) for text in ("Yes", "yes.", "YES!", " Yes, that is right.", "**Yes**", '"Yes"', "\nYes\n")),
        *((text, "", YES) for text in ("Yes - the Danube.", "(yes)")),
        *((text, "", NO) for text in ("No", "No.", "No ...", "No, the answer is incorrect.", "No, it is wrong.")),
        ("No, that is not correct.", "", NO),  # to say that it is wrong is no correction
        *(
            (text, "", (False, "Vienna"))
            for text in ("no: Vienna", "No, Vienna.", "No, it's Vienna", "No, it is Vienna")
        ),
        *(
            (text, "", (False, "Vienna"))
            for text in ("No — the correct answer is Vienna.", "No. The answer is: Vienna")
        ),
        *((text, "", (False, "Vienna")) for text in ("No, the right answer would be Vienna", "**No** `Vienna`")),
        *((text, "", (False, "Vienna")) for text in ("No\n\nVienna\nbecause it lies there", 'No, "Vienna."')),
        *((text, "", (False, "12")) for text in ("No, not correct. The correct answer is 12.", "No. It's wrong: 12")),
        ("No, incorrect, 12", "", (False, "12")),
        ("No, -5", "", (False, "-5")),
        ("No: 3.5", "", (False, "3.5")),
        ("No, yes", "", (False, "yes")),
        ("No, " + "x" * 5_000, "", (False, "x" * 5_000)),  # 0.5.0 cut it at 500 characters
        *((text, "", NONE) for text in ("", "   ", "I think so", "Yes and no", "Yes, but it is not the Danube")),
        *((text, "", NONE) for text in ("Correct", "Yes, this is incorrect", "Yes. Wrong.", "No, yes it is right")),
        *(
            (text, "", NONE)
            for text in ("Nope", "Nothing", "Yesterday", "Ja", "oui", "The answer is yes", "True", "是")
        ),
        # what is no whole JSON object
        *((text, "", NONE) for text in ('{"verdict": "yes"', '{"verdict": "yes"} and more', "{yes}", "{" * 1_500)),
        *((text, "", NONE) for text in ('{"verdict": "no", "verdict": "yes"}', '{"a":' * 400)),
        # a yes may say why
        *((text, PARIS, YES) for text in ("Yes.", "Yes, that is right", "Yes, Paris is the capital of France.")),
        *((text, PARIS, YES) for text in ("Yes, the answer is Paris", "Yes. The answer is correct.")),
        ("Yes, No Country for Old Men is right", "No Country for Old Men", YES),
        # 0.5.0: the first line was served as the guide's answer, and a fence lost its marks
        (f"No\n{FENCED}", LISTED_ANSWER, (False, FENCED)),
        ("No. The correct answer is:\n\n- Danube\n- Rhine\n", LISTED_ANSWER, (False, "- Danube\n- Rhine")),
        ("No, that is wrong.", LISTED_ANSWER, NO),
    ],
)
def test_a_text_is_a_clear_yes_a_clear_no_or_no_verdict(text, answer, read_as):
    assert read_text(text, answer) == read_as if answer else read_text(text) == read_as


@each(
    "text",
    [
        *("Yes, the answer should be London", "Yes, that's untrue", "Yes, that\u2019s untrue.", "Yes, London."),
        *("Yes, it isn't", "Yes. The correct answer is London.", "Yes, the right answer would be London"),
        *("Yes, although Lyon is larger", "Yes, nearly.", '{"verdict": "yes", "answer": "London"}'),
    ],
)
def test_a_yes_that_takes_itself_back_is_no_yes(text):
    """0.5.0: read as a yes to "Paris" in sampled verdicts."""
    assert read_text(text, PARIS) == (None, None)
    assert combine([completion(text)], PARIS).p_yes is None


def tok(text: str, logprob: float | None, **top: float) -> Token:
    return Token(text, logprob, tuple(top.items()))


SPELT = ((" Yes", LN(0.3)), ("YES", LN(0.2)), ("▁yes", LN(0.1)), ("No", LN(0.1)), ("no.", LN(0.1)))


@each(
    "tokens, p_yes, mass",
    [
        ([tok("Yes", LN(0.6), Yes=LN(0.6), No=LN(0.2), Maybe=LN(0.2))], 0.75, 0.8),
        ([Token("Yes", LN(0.3), SPELT)], 0.75, 0.8),  # every spelling of a word counts
        ([tok("Yes", 0.0, Yes=0.0, No=-9.0)], 1 / (1 + math.exp(-9)), 1.0),  # a mass above 1 is rounding
        ([tok("", 0.0), tok(" \n", 0.0), tok("Yes", LN(0.9), Yes=LN(0.9), No=LN(0.1))], 0.9, 1.0),
        ([tok(" ", 0.0)] * 3 + [tok("Yes", 0.0, Yes=0.0)], None, None),  # only the first tokens are looked at
        ([], None, None),
        ([tok("The", LN(0.9), The=LN(0.9), A=LN(0.1)), tok("Yes", 0.0, Yes=0.0)], None, 0.0),
        ([tok("Yes", None, Yes=LN(0.9), No=LN(0.1))], None, None),
        ([tok("Yes", None)], None, None),
        ([tok("Yes", 0.0, Yes=0.0, No=-math.inf)], 1.0, 1.0),
        ([tok("No", 0.0, Yes=-math.inf, No=0.0)], 0.0, 1.0),
    ],
)
def test_the_log_probs_of_a_verdict(tokens, p_yes, mass):
    reading = read_logprobs(tokens)
    assert [value if value is None else pytest.approx(value) for value in (p_yes, mass)] == [*reading]
    assert (reading[1] or 0) <= 1


@pytest.mark.parametrize("text", ["Yes", "No"])
def test_a_token_without_alternatives_is_not_surer_than_its_own_probability(text):
    p_yes, _ = read_logprobs([tok(text, LN(0.6))])
    p_said = None if p_yes is None else (p_yes if text == "Yes" else 1 - p_yes)
    assert p_said is None or p_said <= 0.6 + 1e-9


@each(
    "given, wanted",
    [
        (yes_no(0.25, "No, Vienna."), (pytest.approx(0.25), False, "Vienna", pytest.approx(1.0))),
        (completion("Yes"), (None, True, None, None)),
        (yes_no(0.9, "Yes and no"), (None, None, None, pytest.approx(1.0))),
    ],
)
def test_text_and_logprobs_are_read_together(given, wanted):
    assert read(given) == wanted


@pytest.mark.parametrize(("share", "counts"), [(0.49, False), (0.5, True)])
def test_a_small_mass_of_yes_and_no_is_no_verdict(share, counts):
    top = (("Yes", LN(share - 0.1)), ("No", LN(0.1)), ("Maybe", LN(1 - share)))
    verdict = read(completion("Yes", tokens=(Token("Yes", LN(share - 0.1), top),)))
    assert (verdict.p_yes is not None) is counts
    assert (verdict.says_yes is True) is counts
    assert verdict.mass == pytest.approx(share)


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        (("Yes", "No, Rhine", "Yes"), (2.5 / 4, True, None, None)),  # half a vote of doubt
        (("Yes", "well"), (1.5 / 2, True, None, None)),
        (("well", "hm"), NO_VERDICT),
        ((), NO_VERDICT),
        (("Yes", "No, Rhine"), (0.5, False, "Rhine", None)),  # a tie is no yes
        (("No, Inn", "No, the Rhine", "No, Rhine.", "No"), (0.5 / 5, False, "the Rhine", None)),
        (("No, Inn", "No, Rhine"), (0.5 / 3, False, "Inn", None)),  # of equally common ones the first
    ],
)
def test_samples_are_counted(samples, verdict):
    assert combine([completion(text) for text in samples]) == verdict


@each(
    "text, answer, stays",
    [
        *(("No, yes", answer, stays) for answer, stays in (("Danube", 0), ("no", 1), ("No.", 1), ("yes", 0))),
        *((output, "Danube", 1) for output in ("No, Inn", "No", "Yes")),
    ],
)
def test_a_bare_yes_corrects_a_no_only(text, answer, stays):
    verdict = read(completion(text))
    assert sensible(verdict, answer) == (verdict if stays else NO_VERDICT)


@pytest.mark.parametrize(
    ("tokens", "needs_samples"),
    [
        (None, True),
        ((tok("Yes", -0.1),), True),
        ((tok("Yes", -0.1, Yes=-0.1, No=-3.0),), False),
        ((tok("Yes", None),), False),
    ],
)
def test_log_probs_without_alternatives_need_samples(tokens, needs_samples):
    assert without_alternatives(completion("Yes", tokens=tokens)) is needs_samples


SMALL, LARGE = ModelUse("small", 64, 0.0, 11), ModelUse("large", 32, 0.2, 22)


@each(
    "text, action",
    [
        *((text, 1.0) for text in ("1", "(1)", "1 = the small model's answer is right")),
        *((text, 2.0) for text in ("2", " 2.", "[2]", "2\n")),
        *((text, 3.0) for text in ("3", "**3** - neither")),
        *(
            (text, None)
            for text in ("0", "4", "12", "1.5", "2,000", "1..2", "Action 1", "one", "", "²", " " * 60 + "1")
        ),
    ],
)
def test_a_reply_is_an_action_or_none(text, action):
    assert read_action(text) == action


# --- live ---

MODELS = {
    "base": {"model": "small", "price": {"input": 0.1, "output": 0.4}},
    "guide": {"model": "large", "price": {"input": 1, "output": 4}},
}
LIVE = {
    "models": MODELS,
    "provider": "fake",
    "strategy": {"rounds": 3, "decider": "guide"},
    "policy": {"kind": "prompted"},
}


def live(decisions: list[str], **settings: Any) -> tuple[Answer, list[Request]]:
    left = list(decisions)

    def script(request: Request) -> Any:
        if request.purpose == "decide":
            return reply(left.pop(0) if len(left) > 1 else left[0], input_tokens=50, output_tokens=1)
        if request.purpose == "judge":
            return reply("No, Danube", p_yes=0.2, input_tokens=30, output_tokens=3)
        return reply("Answer: Rhine", input_tokens=40, output_tokens=4)

    fake = FakeProvider(script)
    with Orchestrator.from_config(LIVE | settings, providers={"fake": fake}) as orchestrator:
        return orchestrator.ask(RIVER), fake.requests


@pytest.mark.parametrize(
    ("decisions", "text", "steps", "stopped"),
    [
        (["1"], "Rhine", 1, "policy"),
        (["2"], "Danube", 1, "policy"),
        (["3", "1"], "Rhine", 2, "policy"),
        (["hm", "2"], "Danube", 2, "policy"),
        (["3"], "Danube", 3, "horizon"),
    ],
)
def test_what_it_decides_is_done(decisions, text, steps, stopped):
    answer, _ = live(decisions)
    assert (answer.text, answer.answers, len(answer.steps), answer.stopped) == (text, (text,), steps, stopped)


def test_the_decisions_are_paid_for():
    answer, requests = live(["3", "2"])
    assert [request.purpose for request in requests] == ["answer", "judge", "decide"] * 2
    base, judge, decide = 40 * 100 + 4 * 400, 30 * 1_000 + 3 * 4_000, 50 * 1_000 + 1 * 4_000
    assert answer.cost_nano_usd == 2 * (base + judge + decide)


PROMPTED = {"provider": "fake", "policy": {"kind": "prompted"}}


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        (PROMPTED | {"models": {"base": "small"}, "strategy": {"rounds": 2}}, ["models.guide", "policy"]),
        (PROMPTED | {"models": {"a": "x"}, "strategy": {"kind": "ladder", "models": ["a"]}}, ["policy"]),
        *((LIVE | {"strategy": {"decider": decider}}, ["strategy.decider"]) for decider in ("judge", "small", 1)),
    ],
)
def test_a_prompted_policy_needs_the_base_or_the_guide_to_decide(settings, problems):
    with pytest.raises(ConfigError) as caught:
        Orchestrator.from_config(settings)
    assert sorted(problem.partition(":")[0] for problem in caught.value.problems) == problems


@each(
    "text, reasoning, answer",
    [
        ("Reasoning: It flows.\nAnswer: Danube", "It flows.", "Danube"),
        ("It flows.\nFinal Answer: **Danube**.", "It flows.", "Danube"),
        ("**Answer:** Danube", "", "Danube"),
        ("- answer : Danube", "", "Danube"),
        ("Answer: Rhine\nWait.\nAnswer: Danube", "Answer: Rhine\nWait.", "Danube"),
        ("Answer:\nDanube\nbecause", "", "Danube\nbecause"),
        ("Answer:", "", ""),
        ("Danube", "", "Danube"),
        ("Reasoning: Danube", "", "Danube"),
        ("It flows.\nDanube", "", "It flows.\nDanube"),
        ("Reasoning: It flows.\nDanube", "It flows.", "Danube"),
        ("", "", ""),
        (" \n ", "", ""),
    ],
)
def test_a_reply_is_reasoning_and_answer(text, reasoning, answer):
    assert split_reply(text) == (reasoning, answer)


@each(
    "line, tidied",
    [
        (' "`Danube`." ', "Danube"),
        # 0.5.0: `x = "a"` was served as `x = "a`, and what stood beyond 2,000 characters was gone
        *((line, line) for line in ("3.5", "x" * 5_000, 'x = "a"', "use `ls`", '"a" or "b"')),
        *((line, line) for line in ('{"city": "Vienna"}', '["Danube", "Rhine"]')),
    ],
)
def test_an_answer_of_one_line_is_tidied_and_never_cut(line, tidied):
    assert tidy(line) == tidied


CODE = "```python\ndef f(x):\n    return x + 1  # Answer: 2\n```"
JSON = '{\n  "question": "Which river?",\n  "answer": "Danube",\n  "sure": true\n}'
BULLETS = "* The base answers.\n* The guide judges.\n\nIn short: both."
LISTED = "Q: Which river?\nA: the Danube.\nQuestion: And here?\nAnswer: the Rhine.\nQuestion: There?\nAnswer: the Elbe."


@each("whole", [CODE, JSON, f"```json\n{JSON}\n```", BULLETS, LISTED, "one\n\ntwo", "    indented\n  so"])
@each("form", ["Reasoning: so it is.\nAnswer: {}", "Reasoning: so it is.\nAnswer:\n{}\n", "{}\n"])
def test_an_answer_of_several_lines_is_whole(whole, form):
    """0.5.0: the first line (with "Answer:") or the last (without) was the answer; of code and JSON it was none."""
    reasoning, answer = split_reply(form.replace("{}", whole))
    assert answer == (whole if "Answer: {" not in form else whole.lstrip(" "))
    assert is_answer(answer)
    assert reasoning in {"", "so it is."}


def test_a_fence_around_the_whole_form_is_no_answer():
    assert split_reply("```\nReasoning: It flows.\nAnswer: Danube\n```") == ("It flows.", "Danube")


def test_the_shipped_log_reads_as_it_was_read():
    """Of 1,782 replies two differ; both repeat the prompt and hold no answer."""
    replies = {
        (row["text"], row["answer"])
        for row in read_rows(str(resources.files("cascade").joinpath("data/demo_log.parquet")))
        if row["signals"]["replay"]["purpose"] in {"answer", "direct"} and row["answer"]
    }
    assert len(replies) > 500
    other = [text for text, answer in replies if split_reply(text)[1] != answer]
    assert all("It can be mistaken. Think again" in text for text in other)


@each(
    "text, can_be",
    [
        *((text, True) for text in ("Danube", "42", "no", "日本", "None of them", "Answer B", "x")),
        # 0.5.0: the first 200 characters decided
        (f"Let's think about rivers: {'the Danube flows, ' * 20}and so on.", True),
        *((text, False) for text in ("", ":", "...", "_", "Thought process:", "Reasoning", "Answer:", "N/A", "none")),
        *((text, False) for text in ("Let's think step by step", "Unknown.")),
    ],
)
def test_what_can_be_an_answer(text, can_be):
    assert is_answer(text) is can_be


def test_the_shipped_prompts_end_with_the_users_turn():
    prompts = load()
    for template in (getattr(prompts, name) for name in prompts.__slots__):
        *fixed, last = template.fill("TEXT")
        assert last.role == "user"
        assert last.content.count("TEXT") == 1
        assert all(message.content and "{" not in message.content for message in fixed)


def test_text_is_put_in_as_it_is():
    template = Template((Message("system", "Be brief."),), "user", "Q: ", "!")
    filled = template.fill("{question} {0} %s {data}")
    assert filled == (Message("system", "Be brief."), Message("user", "Q: {question} {0} %s {data}!"))


def test_a_context_stands_before_the_question():
    assert question_text(Question("Which?", "Vienna.")) == "Text: Vienna.\n\nQuestion: Which?"


def test_sections_become_messages():
    template = parse(
        "[system]\nBe brief.\n\n[user]\nExample\n[assistant] \nA\n[user]\nQ: {question}\nNow.\n", "{question}"
    )
    assert template.fixed == (Message("system", "Be brief."), Message("user", "Example"), Message("assistant", "A"))
    assert (template.role, template.before, template.after) == ("user", "Q: ", "\nNow.")


@each(
    "text, lacks",
    [
        *((text, "no section") for text in ("{question}", "")),
        *((text, "exactly once") for text in ("[user]\nnothing", "[user]\n{question} {question}")),
        ("[system]\n{question}\n[user]\n{question}", "exactly once"),
        ("[user]\n{question}\n[assistant]\nno", "exactly once"),
    ],
)
def test_a_malformed_prompt_says_what_it_lacks(text, lacks):
    with pytest.raises(ValueError, match=lacks):
        parse(text, "{question}")


def test_a_folder_replaces_the_prompts_that_it_holds(tmp_path):
    (tmp_path / "answer.txt").write_text("[user]\nMine: {question}")
    prompts = load(tmp_path)
    assert prompts.answer.fill("x") == (Message("user", "Mine: x"),)
    assert prompts.judge == load().judge


@pytest.mark.parametrize(
    "files",
    [
        {"answer.txt": b"nothing", "judge.txt": b"[user]\nnothing"},
        {"answer.txt": b"[user]\n{question} \xff"},
        {},  # a folder that is not there
    ],
)
def test_all_prompts_that_cannot_be_read_are_named_at_once(tmp_path, files):
    folder = tmp_path if files else tmp_path / "nothing"
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load(folder)
    problems = [str(folder / name) for name in files] or [str(folder)]
    assert [name in problem for name, problem in zip(problems, caught.value.problems, strict=True)] == [True] * len(
        problems
    )
