"""No verdict is ever read as a yes."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path
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
from unit.made import RIVER, completion, yes_no

LN = math.log


YES, NO, NONE = (True, None), (False, None), (None, None)


@each(
    "text, read_as",
    [
        *((text, YES) for text in ("Yes", "yes.", "YES!", " Yes, that is right.", "**Yes**", '"Yes"', "\nYes\n")),
        *((text, YES) for text in ("Yes - the Danube.", "(yes)")),
        *((text, NO) for text in ("No", "No.", "No ...", "No, the answer is incorrect.", "No, it is wrong.")),
        ("No, that is not correct.", NO),  # to say that it is wrong is no correction
        ("no: Vienna", (False, "Vienna")),
        ("No, Vienna.", (False, "Vienna")),
        ("No — the correct answer is Vienna.", (False, "Vienna")),
        ("No. The answer is: Vienna", (False, "Vienna")),
        ("No, it's Vienna", (False, "Vienna")),
        ("No, it is Vienna", (False, "Vienna")),
        ("No, the right answer would be Vienna", (False, "Vienna")),
        ("**No** `Vienna`", (False, "Vienna")),
        ("No\n\nVienna\nbecause it lies there", (False, "Vienna")),
        ('No, "Vienna."', (False, "Vienna")),
        ("No, not correct. The correct answer is 12.", (False, "12")),
        ("No. It's wrong: 12", (False, "12")),
        ("No, incorrect, 12", (False, "12")),
        ("No, -5", (False, "-5")),
        ("No: 3.5", (False, "3.5")),
        ("No, yes", (False, "yes")),
        ("No, " + "x" * 5_000, (False, "x" * 5_000)),  # 0.5.0 cut it at 500 characters
        *((text, NONE) for text in ("", "   ", "I think so", "Yes and no", "Yes, but it is not the Danube", "Correct")),
        *((text, NONE) for text in ("Yes, this is incorrect", "Yes. Wrong.", "No, yes it is right", "Nope", "Nothing")),
        *((text, NONE) for text in ("Yesterday", "Ja", "oui", "The answer is yes", "True", "是")),
        # what is no whole JSON object
        *((text, NONE) for text in ('{"verdict": "yes"', '{"verdict": "yes"} and more', "{yes}", "{" * 1_500)),
        *((text, NONE) for text in ('{"verdict": "no", "verdict": "yes"}', '{"a":' * 400)),
    ],
)
def test_a_text_is_a_clear_yes_a_clear_no_or_no_verdict(text: str, read_as: tuple[bool | None, str | None]) -> None:
    assert read_text(text) == read_as


@pytest.mark.parametrize(
    "said",
    [
        "Yes, the answer should be London",
        "Yes, that's untrue",
        "Yes, that\u2019s untrue.",
        "Yes, London.",
        "Yes, it isn't",
        "Yes. The correct answer is London.",
        "Yes, the right answer would be London",
        "Yes, although Lyon is larger",
        "Yes, nearly.",
        '{"verdict": "yes", "answer": "London"}',
    ],
)
def test_a_yes_that_takes_itself_back_is_no_yes(said: str) -> None:
    """0.5.0: read as a yes to "Paris" in sampled verdicts."""
    assert read_text(said, "Paris") == (None, None)
    assert combine([completion(said)], "Paris").p_yes is None


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Yes.", "Paris"),
        ("Yes, that is right", "Paris"),
        ("Yes, Paris is the capital of France.", "Paris"),
        ("Yes, the answer is Paris", "Paris"),
        ("Yes. The answer is correct.", "Paris"),
        ("Yes, No Country for Old Men is right", "No Country for Old Men"),
    ],
)
def test_a_yes_may_say_why(said: str, answer: str) -> None:
    assert read_text(said, answer) == (True, None)


@pytest.mark.parametrize(
    ("said", "correction"),
    [
        ("No\n```python\nx = 1\n```", "```python\nx = 1\n```"),
        ("No. The correct answer is:\n\n- Danube\n- Rhine\n", "- Danube\n- Rhine"),
        ("No, that is wrong.", None),
    ],
)
def test_the_correction_of_an_answer_of_several_lines_is_whole(said: str, correction: str | None) -> None:
    """0.5.0: the first line was served as the guide's answer, and a fence lost its marks."""
    assert read_text(said, "- Elbe\n- Oder") == (False, correction)


def tok(text: str, logprob: float | None, **top: float) -> Token:
    return Token(text, logprob, tuple(top.items()))


def test_p_yes_is_renormalised_over_yes_and_no() -> None:
    p_yes, mass = read_logprobs([tok("Yes", LN(0.6), Yes=LN(0.6), No=LN(0.2), Maybe=LN(0.2))])
    assert p_yes == pytest.approx(0.75)
    assert mass == pytest.approx(0.8)


def test_every_spelling_of_a_word_counts() -> None:
    top = ((" Yes", LN(0.3)), ("YES", LN(0.2)), ("▁yes", LN(0.1)), ("No", LN(0.1)), ("no.", LN(0.1)))
    p_yes, mass = read_logprobs([Token("Yes", LN(0.3), top)])
    assert p_yes == pytest.approx(0.75)
    assert mass == pytest.approx(0.8)


def test_rounding_cannot_make_the_mass_more_than_one() -> None:
    assert read_logprobs([tok("Yes", 0.0, Yes=0.0, No=-9.0)])[1] == 1.0


def test_blank_tokens_before_the_verdict_are_passed_over() -> None:
    verdict = tok("Yes", LN(0.9), Yes=LN(0.9), No=LN(0.1))
    p_yes, _ = read_logprobs([tok("", 0.0), tok(" \n", 0.0), verdict])
    assert p_yes == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("tokens", "read_as"),
    [
        ([tok(" ", 0.0)] * 3 + [tok("Yes", 0.0, Yes=0.0)], (None, None)),  # only the first tokens are looked at
        ([], (None, None)),
        ([tok("The", LN(0.9), The=LN(0.9), A=LN(0.1)), tok("Yes", 0.0, Yes=0.0)], (None, 0.0)),
        ([tok("Yes", None, Yes=LN(0.9), No=LN(0.1))], (None, None)),
        ([tok("Yes", None)], (None, None)),
        ([tok("Yes", 0.0, Yes=0.0, No=-math.inf)], (1.0, 1.0)),
        ([tok("No", 0.0, Yes=-math.inf, No=0.0)], (0.0, 1.0)),
    ],
)
def test_the_log_probs_of_a_verdict(tokens: list[Token], read_as: tuple[float | None, float | None]) -> None:
    assert read_logprobs(tokens) == read_as


@pytest.mark.parametrize("said", ["Yes", "No"])
def test_a_token_without_alternatives_is_not_surer_than_its_own_probability(said: str) -> None:
    p_yes, _ = read_logprobs([tok(said, LN(0.6))])
    p_said = None if p_yes is None else (p_yes if said == "Yes" else 1 - p_yes)
    assert p_said is None or p_said <= 0.6 + 1e-9


def test_text_and_logprobs_are_read_together() -> None:
    verdict = read(yes_no(0.25, "No, Vienna."))
    assert verdict.p_yes == pytest.approx(0.25)
    assert verdict[1:3] == (False, "Vienna")
    assert verdict.mass == pytest.approx(1.0)
    assert verdict.method == "logprobs"


def test_without_logprobs_the_text_alone_gives_no_probability() -> None:
    assert read(completion("Yes")) == (None, True, None, None, "none")


def test_prose_is_no_verdict_whatever_its_first_token() -> None:
    verdict = read(yes_no(0.9, "Yes and no"))
    assert verdict[:3] == (None, None, None)
    assert verdict.method == "none"


@pytest.mark.parametrize(("share", "counts"), [(0.49, False), (0.5, True)])
def test_a_small_mass_of_yes_and_no_is_no_verdict(share: float, counts: bool) -> None:
    top = (("Yes", LN(share - 0.1)), ("No", LN(0.1)), ("Maybe", LN(1 - share)))
    verdict = read(completion("Yes", tokens=(Token("Yes", LN(share - 0.1), top),)))
    assert (verdict.p_yes is not None) is counts
    assert (verdict.says_yes is True) is counts
    assert verdict.mass == pytest.approx(share)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (("Yes", "No, Rhine", "Yes"), (2.5 / 4, True, None, None, "sampled")),  # half a vote of doubt
        (("Yes", "well"), (1.5 / 2, True, None, None, "sampled")),
        (("well", "hm"), NO_VERDICT),
        ((), NO_VERDICT),
        (("Yes", "No, Rhine"), (0.5, False, "Rhine", None, "sampled")),  # a tie is no yes
        (("No, Inn", "No, the Rhine", "No, Rhine.", "No"), (0.5 / 5, False, "the Rhine", None, "sampled")),
        (("No, Inn", "No, Rhine"), (0.5 / 3, False, "Inn", None, "sampled")),  # of equally common ones the first
    ],
)
def test_samples_are_counted(said: tuple[str, ...], verdict: tuple[Any, ...]) -> None:
    assert combine([completion(text) for text in said]) == verdict


@pytest.mark.parametrize(("answer", "stays"), [("Danube", False), ("no", True), ("No.", True), ("yes", False)])
def test_a_bare_yes_corrects_a_no_only(answer: str, stays: bool) -> None:
    verdict = read(completion("No, yes"))
    assert verdict.correction == "yes"
    assert sensible(verdict, answer) == (verdict if stays else NO_VERDICT)


def test_another_correction_is_sensible() -> None:
    for said in ("No, Inn", "No", "Yes"):
        verdict = read(completion(said))
        assert sensible(verdict, "Danube") == verdict


@pytest.mark.parametrize(
    ("tokens", "needs_samples"),
    [
        (None, True),
        ((tok("Yes", -0.1),), True),
        ((tok("Yes", -0.1, Yes=-0.1, No=-3.0),), False),
        ((tok("Yes", None),), False),
    ],
)
def test_log_probs_without_alternatives_need_samples(tokens: tuple[Token, ...] | None, needs_samples: bool) -> None:
    assert without_alternatives(completion("Yes", tokens=tokens)) is needs_samples


SMALL, LARGE = ModelUse("small", 64, 0.0, 11), ModelUse("large", 32, 0.2, 22)


@each(
    "text, action",
    [
        ("1", 1.0),
        ("2", 2.0),
        ("3", 3.0),
        (" 2.", 2.0),
        ("**3** - neither", 3.0),
        ("(1)", 1.0),
        ("[2]", 2.0),
        ("1 = the small model's answer is right", 1.0),
        ("2\n", 2.0),
        ("0", None),
        ("4", None),
        ("12", None),
        ("1.5", None),
        ("2,000", None),
        ("1..2", None),
        ("Action 1", None),
        ("one", None),
        ("", None),
        ("²", None),
        (" " * 60 + "1", None),
    ],
)
def test_a_reply_is_an_action_or_none(text: str, action: float | None) -> None:
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
def test_what_it_decides_is_done(decisions: list[str], text: str, steps: int, stopped: str) -> None:
    answer, _ = live(decisions)
    assert (answer.text, answer.answers, len(answer.steps), answer.stopped) == (text, (text,), steps, stopped)


def test_the_decisions_are_paid_for() -> None:
    answer, asked = live(["3", "2"])
    assert [one.purpose for one in asked] == ["answer", "judge", "decide"] * 2
    base, judge, decide = 40 * 100 + 4 * 400, 30 * 1_000 + 3 * 4_000, 50 * 1_000 + 1 * 4_000
    assert answer.cost_nano_usd == 2 * (base + judge + decide)


def test_a_prompted_policy_without_a_model_that_decides_is_refused_with_all_else_that_is_wrong() -> None:
    config = {
        "models": {"base": "small"},
        "provider": "fake",
        "strategy": {"rounds": 2},
        "policy": {"kind": "prompted"},
    }
    with pytest.raises(ConfigError) as caught:
        Orchestrator.from_config(config)
    said = str(caught.value)
    assert "policy: prompted needs a model that decides: strategy.decider: guide" in said
    assert "models.guide: the base_guide strategy needs it" in said


def test_a_ladder_has_nobody_who_decides() -> None:
    config = {
        "models": {"a": "x"},
        "provider": "fake",
        "strategy": {"kind": "ladder", "models": ["a"]},
        "policy": {"kind": "prompted"},
    }
    with pytest.raises(ConfigError, match="prompted needs a model that decides"):
        Orchestrator.from_config(config)


@pytest.mark.parametrize("decider", ["judge", "small", 1])
def test_the_decider_is_the_base_or_the_guide(decider: Any) -> None:
    with pytest.raises(ConfigError, match="decider"):
        Orchestrator.from_config(LIVE | {"strategy": {"decider": decider}})


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
def test_a_reply_is_reasoning_and_answer(text: str, reasoning: str, answer: str) -> None:
    assert split_reply(text) == (reasoning, answer)


def test_an_answer_of_one_line_is_tidied() -> None:
    assert tidy(' "`Danube`." ') == "Danube"
    assert tidy("3.5") == "3.5"


def test_an_answer_is_never_cut() -> None:
    """0.5.0: what stood beyond 2,000 characters was gone."""
    assert tidy("x" * 5_000) == "x" * 5_000


@pytest.mark.parametrize("line", ['x = "a"', "use `ls`", '"a" or "b"', '{"city": "Vienna"}', '["Danube", "Rhine"]'])
def test_quotes_that_belong_to_the_answer_stay(line: str) -> None:
    """0.5.0: `x = "a"` was served as `x = "a`."""
    assert tidy(line) == line


CODE = "```python\ndef f(x):\n    return x + 1  # Answer: 2\n```"
JSON = '{\n  "question": "Which river?",\n  "answer": "Danube",\n  "sure": true\n}'
BULLETS = "* The base answers.\n* The guide judges.\n\nIn short: both."
LISTED = "Q: Which river?\nA: the Danube.\nQuestion: And here?\nAnswer: the Rhine.\nQuestion: There?\nAnswer: the Elbe."


@each("whole", [CODE, JSON, f"```json\n{JSON}\n```", BULLETS, LISTED, "one\n\ntwo", "    indented\n  so"])
@each("form", ["Reasoning: so it is.\nAnswer: {}", "Reasoning: so it is.\nAnswer:\n{}\n", "{}\n"])
def test_an_answer_of_several_lines_is_whole(whole: str, form: str) -> None:
    """0.5.0: the first line (with "Answer:") or the last (without) was the answer; of code and JSON it was none."""
    reasoning, answer = split_reply(form.replace("{}", whole))
    assert answer == (whole if "Answer: {" not in form else whole.lstrip(" "))
    assert is_answer(answer)
    assert reasoning in {"", "so it is."}


def test_a_fence_around_the_whole_form_is_no_answer() -> None:
    assert split_reply("```\nReasoning: It flows.\nAnswer: Danube\n```") == ("It flows.", "Danube")


def test_the_shipped_log_reads_as_it_was_read() -> None:
    """Of 1,782 replies two differ; both repeat the prompt and hold no answer."""
    replies = {
        (row["text"], row["answer"])
        for row in read_rows(str(resources.files("cascade").joinpath("data/demo_log.parquet")))
        if row["signals"]["replay"]["purpose"] in {"answer", "direct"} and row["answer"]
    }
    assert len(replies) > 500
    other = [text for text, answer in replies if split_reply(text)[1] != answer]
    assert all("It can be mistaken. Think again" in text for text in other)


def test_a_long_text_that_opens_like_a_thought_is_an_answer() -> None:
    """0.5.0: the first 200 characters decided, so "Let's think …" made any text no answer."""
    assert is_answer(f"Let's think about rivers: {'the Danube flows, ' * 20}and so on.")


@each(
    "text, can_be",
    [
        *((text, True) for text in ("Danube", "42", "no", "日本", "None of them", "Answer B", "x")),
        *((text, False) for text in ("", ":", "...", "_", "Thought process:", "Reasoning", "Answer:", "N/A", "none")),
        *((text, False) for text in ("Let's think step by step", "Unknown.")),
    ],
)
def test_what_can_be_an_answer(text: str, can_be: bool) -> None:
    assert is_answer(text) is can_be


def test_the_shipped_prompts_end_with_the_users_turn() -> None:
    prompts = load()
    for template in (getattr(prompts, name) for name in prompts.__slots__):
        *fixed, last = template.fill("TEXT")
        assert last.role == "user"
        assert last.content.count("TEXT") == 1
        assert all(message.content and "{" not in message.content for message in fixed)


def test_text_is_put_in_as_it_is() -> None:
    template = Template((Message("system", "Be brief."),), "user", "Q: ", "!")
    filled = template.fill("{question} {0} %s {data}")
    assert filled == (Message("system", "Be brief."), Message("user", "Q: {question} {0} %s {data}!"))


def test_a_context_stands_before_the_question() -> None:
    assert question_text(Question("Which?", "Vienna.")) == "Text: Vienna.\n\nQuestion: Which?"


def test_sections_become_messages() -> None:
    template = parse(
        "[system]\nBe brief.\n\n[user]\nExample\n[assistant] \nA\n[user]\nQ: {question}\nNow.\n", "{question}"
    )
    assert template.fixed == (Message("system", "Be brief."), Message("user", "Example"), Message("assistant", "A"))
    assert (template.role, template.before, template.after) == ("user", "Q: ", "\nNow.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{question}", "no section"),
        ("", "no section"),
        ("[user]\nnothing", "exactly once"),
        ("[user]\n{question} {question}", "exactly once"),
        ("[system]\n{question}\n[user]\n{question}", "exactly once"),
        ("[user]\n{question}\n[assistant]\nno", "exactly once"),
    ],
)
def test_a_malformed_prompt_says_what_it_lacks(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text, "{question}")


def test_a_folder_replaces_the_prompts_that_it_holds(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("[user]\nMine: {question}")
    prompts = load(tmp_path)
    assert prompts.answer.fill("x") == (Message("user", "Mine: x"),)
    assert prompts.judge == load().judge


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.prompts: the folder .* does not exist"):
        load(tmp_path / "nothing")


def test_all_malformed_prompts_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("nothing")
    (tmp_path / "judge.txt").write_text("[user]\nnothing")
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path))
    assert [
        str(tmp_path / name) in said
        for name, said in zip(("answer.txt", "judge.txt"), caught.value.problems, strict=True)
    ] == [
        True,
        True,
    ]


def test_a_prompt_that_is_not_utf8_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_bytes(b"[user]\n{question} \xff")
    with pytest.raises(ConfigError, match=r"answer\.txt"):
        load(tmp_path)
