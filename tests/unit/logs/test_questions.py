"""Questions are read in every form they come in, and a file that cannot be asked says all that is wrong with it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.identity import question_id
from cascade.logs.questions import AskedQuestion, read_questions
from cascade.logs.schema import Dropped
from cascade.matching import get_matcher
from cascade.types import Question


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


# --- one's own ---


def test_fields_with_other_names_are_mapped(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", {"prompt": "Which river?", "meta": {"target": "Danube"}, "answers": ["Rhine"]})
    (asked,) = read_questions(path, mapped={"question": "prompt", "answer": "meta.target"})
    assert (asked.question.text, asked.gold) == ("Which river?", ("Danube",))
    for wrong in ({"question": "promt"}, {"questoin": "prompt"}):
        with pytest.raises(UsageError, match="did you mean"):
            read_questions(path, mapped=wrong)


def test_a_question_needs_only_its_text(tmp_path: Path) -> None:
    (asked,) = read_questions(jsonl(tmp_path / "q.jsonl", {"question": " Which river? "}))
    name = question_id("Which river?", None)
    assert asked == AskedQuestion(name, Question("Which river?"), group=name)


def test_everything_that_a_line_says_is_kept(tmp_path: Path) -> None:
    row = {"id": 7, "question": "Which?", "answers": ["Danube", "the Danube"], "context": "A text.", "group": "rivers"}
    (asked,) = read_questions(jsonl(tmp_path / "q.jsonl", row | {"split": "log", "kind": "fact"}))
    gold = ("Danube", "the Danube")
    assert asked == AskedQuestion("7", Question("Which?", "A text."), gold, "rivers", "log", "fact")


@pytest.mark.parametrize(
    ("fields", "gold"),
    [
        ({"answer": "Danube"}, ("Danube",)),
        ({"answer": 4}, ("4",)),
        ({"answer": 0}, ("0",)),
        ({"answer": "[4, 1]"}, ("[4, 1]",)),
        ({"answers": ["a", "b", "a"]}, ("a", "b")),
        ({"answers": {"text": ["a", "b"], "answer_start": [1, 2]}}, ("a", "b")),
        ({"gold": ["a"]}, ("a",)),
        ({"answer": None}, ()),
        ({"answer": ""}, ()),
        ({"answers": []}, ()),
        ({}, ()),
    ],
)
def test_answers_come_in_many_forms(tmp_path: Path, fields: dict[str, Any], gold: tuple[str, ...]) -> None:
    dropped = Dropped()
    (asked,) = read_questions(jsonl(tmp_path / "q.jsonl", {"question": "x"} | fields), dropped)
    assert asked.gold == gold
    assert dropped.notes.total() == (0 if gold else 1)


def test_the_demos_own_form_is_read(tmp_path: Path) -> None:
    row = {"question_id": "fact-1", "question": "x", "context": None, "answers": ["y"], "group": "g"}
    (asked,) = read_questions(jsonl(tmp_path / "q.jsonl", row))
    assert (asked.id, asked.question.context, asked.group, asked.matcher) == ("fact-1", None, "g", None)


def test_a_table_is_read_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_bytes(
        b"\xef\xbb\xbfid,question,answers,choices,context\r\n"
        b'1,"Two\nlines, with a comma","[""a"", ""b""]",,\r\n'
        b'2,Which?,2,"[""1"", ""2""]",A text.\r\n'
    )
    first, second = read_questions(path)
    assert (first.id, first.question.text, first.gold) == ("1", "Two\nlines, with a comma", ("a", "b"))
    assert (second.question, second.gold) == (Question("Which?\nA. 1\nB. 2", "A text."), ("B", "2"))


def test_packed_and_listed_files_are_read(tmp_path: Path) -> None:
    rows = [{"question": "x"}, {"question": "y"}]
    (tmp_path / "q.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(b'{"question": "x"}\n{"question": "y"}'))
    (tmp_path / "q.csv.gz").write_bytes(gzip.compress(b"question\nx\ny\n"))
    for name in ("q.json", "q.jsonl.gz", "q.csv.gz"):
        assert [one.question.text for one in read_questions(tmp_path / name)] == ["x", "y"]


# --- choices ---


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("B", ("B", "Vienna")),
        ("b", ("B", "Vienna")),
        ("Vienna", ("B", "Vienna")),
        (1, ("B", "Vienna")),
        ("1", ("B", "Vienna")),
        (["A", "B"], ("A", "Graz", "B", "Vienna")),
        (None, ()),
    ],
)
def test_a_right_choice_is_its_letter_and_its_text(tmp_path: Path, answer: Any, gold: tuple[str, ...]) -> None:
    row = {"question": "Which city?", "choices": ["Graz", "Vienna"], "answer": answer}
    (asked,) = read_questions(jsonl(tmp_path / "q.jsonl", row))
    assert asked.question.text == "Which city?\nA. Graz\nB. Vienna"
    assert (asked.gold, asked.matcher) == (gold, "label")


def test_a_choice_that_looks_like_a_number_is_meant_by_its_text(tmp_path: Path) -> None:
    row = {"question": "7 - 4?", "choices": ["0", "3", "1"], "answer": "1"}
    assert read_questions(jsonl(tmp_path / "q.jsonl", row))[0].gold == ("C", "1")
    assert read_questions(jsonl(tmp_path / "q.jsonl", row | {"answer": 1}))[0].gold == ("B", "3")


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": {"label": ["A", "B"], "text": ["x", "y"]}},
        {"A": "x", "B": "y", "C": None},
        {"choices": '["x", "y"]'},
    ],
)
def test_choices_come_in_many_forms(tmp_path: Path, fields: dict[str, Any]) -> None:
    (asked,) = read_questions(jsonl(tmp_path / "q.jsonl", {"question": "?", "answer": "B"} | fields))
    assert (asked.question.text, asked.gold) == ("?\nA. x\nB. y", ("B", "y"))


# --- published sets ---

HOTPOT = {
    "_id": "5a7a06935542990198eaf050",
    "question": "Which writer was born first?",
    "answer": "Ada Writer",
    "type": "comparison",
    "level": "medium",
    "supporting_facts": [["Ada Writer", 0], ["Bob Writer", 0]],
    "context": [["Ada Writer", ["Ada was born in 1901.", " She wrote."]], ["Bob Writer", ["Bob was born in 1902."]]],
}
PARAGRAPHS = "Ada Writer\nAda was born in 1901. She wrote.\n\nBob Writer\nBob was born in 1902."


def test_hotpotqa_is_read_as_it_is_published(tmp_path: Path) -> None:
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps([HOTPOT]))
    (asked,) = read_questions(tmp_path / "hotpot_dev_distractor_v1.json")
    assert asked.question == Question("Which writer was born first?", PARAGRAPHS)
    assert (asked.id, asked.gold, asked.kind) == (HOTPOT["_id"], ("Ada Writer",), "comparison")
    assert asked.matcher is None


def test_hotpotqa_in_columns_is_the_same(tmp_path: Path) -> None:
    titles, sentences = zip(*HOTPOT["context"], strict=True)  # type: ignore[call-overload]
    row = {**HOTPOT, "id": HOTPOT["_id"], "context": {"title": titles, "sentences": sentences}}
    assert read_questions(jsonl(tmp_path / "q.jsonl", row))[0].question.context == PARAGRAPHS


def test_mmlus_form_with_an_index_is_read(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = {"question": ["Which?"], "subject": ["anatomy"], "choices": [["a", "b", "c", "d"]], "answer": [2]}
    pq.write_table(pa.table(rows), tmp_path / "test.parquet")
    (asked,) = read_questions(tmp_path / "test.parquet")
    assert (asked.gold, asked.kind) == (("C", "c"), "anatomy")


def test_a_question_that_a_set_holds_twice_is_asked_twice_in_one_group(tmp_path: Path) -> None:
    first, second = read_questions(jsonl(tmp_path / "q.jsonl", {"question": "x"}, {"question": "x"}))
    assert (second.id, second.group) == (f"{first.id}-2", first.id)


# --- what is wrong ---


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "q.jsonl",
        {"id": "a", "question": "x"},
        {"quesion": "x"},
        {"question": "  "},
        "not json",
        {"question": "x", "choices": ["a", "b"], "answer": "E"},
        {"question": "x", "choices": ["a", "b"], "answer": 2},
        {"question": "x", "choices": ["a"]},
        {"question": "x", "choices": "a or b"},
        {"question": "x", "context": {"a": 1}},
        {"question": "x", "context": [["title", "text"]]},
        {"question": "x", "answer": [{"a": 1}]},
        {"id": "a", "question": "y"},
    )
    with pytest.raises(UsageError) as raised:
        read_questions(path)
    said = str(raised.value)
    assert said.startswith(f"{path} cannot be asked: 11 problems:\n")
    for line in (
        "q.jsonl:2: it has no field question; did you mean quesion?",
        "q.jsonl:3: the question is empty",
        "q.jsonl:4: not a JSON object",
        "q.jsonl:5: the answer 'E' is not among the 2 choices",
        "q.jsonl:6: the answer '2' is not among the 2 choices",
        "q.jsonl:7: there are 1 choices",
        "q.jsonl:8: the choices are not a list of texts",
        "q.jsonl:9: the context is neither a text nor paragraphs",
        "q.jsonl:10: a paragraph of the context",
        "q.jsonl:11: an answer is not a text",
        "q.jsonl:12: the id a is that of q.jsonl:1",
    ):
        assert f"\n  - {line}" in said


def test_only_the_first_twenty_are_listed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="50 problems") as raised:
        read_questions(jsonl(tmp_path / "q.jsonl", *[{"question": ""}] * 50))
    assert str(raised.value).count("\n  - ") == 20
    assert str(raised.value).endswith("and 30 more")


@pytest.mark.parametrize(("name", "text"), [("q.jsonl", ""), ("q.csv", "question\n"), ("q.json", "[]")])
def test_a_file_without_questions_says_so(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="there is no question in it"):
        read_questions(tmp_path / name)


def test_a_table_with_a_torn_line_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("id,question\n1,x\n2\n")
    with pytest.raises(UsageError, match=r"q\.csv:3: "):
        read_questions(tmp_path / "q.csv")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        read_questions(tmp_path / "nothing.jsonl")


def test_an_odd_byte_is_no_reason_not_to_ask(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_bytes(b'{"question": "Caf\xe9?"}\n')
    assert read_questions(tmp_path / "q.jsonl")[0].question.text == "Caf\ufffd?"


@pytest.mark.parametrize(
    ("said", "gold"),
    [
        ({"gold": []}, ("[]",)),
        ({"gold": None, "category": "relevance"}, ("[]",)),
        ({"gold": None, "category": "live_irrelevance"}, ("[]",)),
        ({"gold": None, "category": "live_relevance"}, ()),
        ({"gold": None}, ()),
        ({}, ()),
    ],
)
def test_no_call_is_an_accepted_answer_of_a_request_with_tools(
    tmp_path: Path, said: dict[str, object], gold: tuple[str, ...]
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps({"custom_id": "r1", "body": body} | said))
    dropped = Dropped()
    (asked,) = read_questions(path, dropped)
    assert asked.gold == gold
    assert bool(dropped.notes) == (not gold)
    if gold:
        judge = get_matcher(asked.matcher or "")
        assert judge.matches("None of the tools can do that.", asked.gold) is True
        assert judge.matches('[{"name": "f", "arguments": {}}]', asked.gold) is False
