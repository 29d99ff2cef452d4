"""Tables of one's own: flat ones need no mapping, of others what is missing is asked for."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from cascade.errors import UsageError
from cascade.identity import question_id
from cascade.logs.presets import ENDS
from cascade.logs.questions import AskedQuestion, read_questions
from cascade.logs.schema import Dropped, chat_of
from cascade.matching import get_matcher
from cascade.types import Question

pytest.importorskip("duckdb")

from unit.logs.reading import lines, picked, rows_of

HEAD = (
    "id,question,gold,small_answer,small_correct,small_cost_usd,small_logprob,large_answer,large_correct,large_cost_usd"
)
ROWS = (
    "q1,Which river runs through Vienna?,Danube,The Danube,true,0.0001,-0.12,The Danube,true,0.002",
    "q2,Which river runs through Graz?,Mur,The Inn,false,0.0001,-0.94,The Mur,true,0.002",
    "q3,Which river runs through Linz?,Danube,The Inn,0,0.0003,-1.5,The Danube,1,0.004",
)


def table(path: Path, *rows: str, head: str = HEAD) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_a_flat_table_is_read_by_its_documented_names(tmp_path):
    hints: list[str] = []
    rows = rows_of(table(tmp_path / "answers.csv", *ROWS), hints=hints)
    assert picked(rows, "episode_id", "step", "model", "answer", "correct", "cost_nano_usd") == [
        ("q1", 1, "small", "The Danube", True, 100_000),
        ("q1", 2, "large", "The Danube", True, 2_000_000),
        ("q2", 1, "small", "The Inn", False, 100_000),
        ("q2", 2, "large", "The Mur", True, 2_000_000),
        ("q3", 1, "small", "The Inn", False, 300_000),
        ("q3", 2, "large", "The Danube", True, 4_000_000),
    ]
    assert {row["dataset"] for row in rows} == {"answers"}
    assert {row["horizon"] for row in rows} == {2}
    assert [row["signals"] for row in rows[::2]] == [{"reply_mean_logprob": value} for value in (-0.12, -0.94, -1.5)]
    assert rows[0]["gold"] == ["Danube"]
    assert [line for line in hints if "small_logprob" in line and "small_correct" in line]


@pytest.mark.parametrize("column", ["small_cost_cents", "small.cost.ct", "costCents", "PRICE_PENCE"])
def test_a_column_of_cents_is_no_usd_and_id_is_the_episodes(tmp_path, column):
    source = table(tmp_path / "t.csv", *[f"{row},7" for row in ROWS], head=f"{HEAD},{column}")
    for target in ("small.cost_usd", "cost_usd"):
        with pytest.raises(UsageError, match=re.escape(column)):
            rows_of(source, columns={target: column})
    assert [row["episode_id"] for row in rows_of(source, columns={"id": "question"})[:1]] == [ROWS[0].split(",")[1]]
    assert rows_of(source, columns={"small.input_tokens": column})[0]["input_tokens"] == 7


@pytest.mark.parametrize(("end", "value"), [("latency_ms", 250), ("ms", 250), ("reply_min_logprob", -250)])
def test_the_longest_documented_end_of_a_name_counts_and_no_time_is_negative(tmp_path, end, value):
    source = table(tmp_path / "t.csv", f"{ROWS[0]},250", f"{ROWS[0]},-250", head=f"{HEAD},small_{end}")
    rows = rows_of(source)
    values = [row["latency_ms"] or row["signals"].get("reply_min_logprob") for row in rows if row["model"] == "small"]
    assert [figure for figure in values if figure is not None] == [value]


@pytest.mark.parametrize("before", ["", "\n\n", " \n"])
def test_columns_without_a_name_blank_lines_before_the_header_and_the_header_again_are_no_values(tmp_path, before):
    source = tmp_path / "t.csv"  # as pandas' to_csv writes its index, and a comma that ends each line another column
    source.write_text(before + "\n".join([f",{HEAD},", *[f"{at},{row}," for at, row in enumerate(ROWS)], f",{HEAD},"]))
    expected = rows_of(table(tmp_path / "u.csv", *ROWS), dataset="t")
    assert rows_of(source, dataset="t") == expected


@pytest.mark.parametrize("grade", ["5", "-1", "100", "100%", "0.98"])
def test_grades_of_another_scale_are_refused_for_1_need_not_be_right_there(tmp_path, grade):
    head = "question,a_answer,a_correct,b_answer,b_correct"
    source = table(tmp_path / "t.csv", "q,x,1,y,1", f"r,x,1,y,{grade}", head=head)
    with pytest.raises(UsageError, match=grade):
        rows_of(source)


@pytest.mark.parametrize(("right", "wrong"), [("up", "down"), ("WAHR", "FALSCH"), ("richtig", "falsch"), ("👍", "👎")])
def test_thumbs_and_the_truths_of_spreadsheets_are_read(tmp_path, right, wrong):
    thumbs = {"a": right, "b": wrong, "c": "NA"}
    given = [{"model": name, "question": "q", "answer": "x", "thumb": thumb} for name, thumb in thumbs.items()]
    rows = rows_of(lines(tmp_path / "t.jsonl", *given), columns={"correct": "thumb"})
    assert sorted(picked(rows, "model", "correct")) == [("a", True), ("b", False), ("c", None)]


@pytest.mark.parametrize("mapped", [False, True])
def test_labels_of_which_none_is_read_are_an_error_that_names_one_unless_all_say_unknown(tmp_path, mapped):
    name = "verdict" if mapped else "a_correct"
    columns = {"a.correct": name} if mapped else {}
    head = f"question,a_answer,{name},b_answer"
    with pytest.raises(UsageError, match=f"{name} holds refund"):
        rows_of(table(tmp_path / "t.csv", "q,x,refund,y", "r,x,,y", head=head), columns=columns)
    for read in ("falsch", "yes"):  # refund may be the other verdict: what is read alone would be one-sided
        with pytest.raises(UsageError, match=f"{name} holds refund"):
            rows_of(table(tmp_path / "t.csv", "q,x,refund,y", f"r,x,{read},y", head=head), columns=columns)
    rows = rows_of(table(tmp_path / "t.csv", "q,x,NA,y", "r,x,None,y", head=head), columns=columns)
    assert {row["correct"] for row in rows} == {None}


OF_PYTHON = (
    "question,model,answer",
    "question,a_answer,b_answer",
    "model,answer,question",
    "question,model,answer,gold",
)


@pytest.mark.parametrize("head", OF_PYTHON)
def test_a_question_an_answer_and_a_label_in_the_notation_of_python_are_noted(tmp_path, head):
    answers = (""""('x', -0.2)\"""", """"[{'a': 1}]\"""", """['x'] or ['y']?""", "(x)")
    rows = [f"{'x,' * head.count(',')}{answer}" for answer in answers]
    rows_of(table(tmp_path / "t.csv", *rows, head=head), dropped=(dropped := Dropped()))
    assert [count for reason, count in dropped.notes.items() if "Python" in reason] == [2]


def test_nan_is_a_missing_text_and_no_accepted_answer(tmp_path):
    record = {"question": "q", "gold": float("nan"), "a_answer": float("nan"), "b_answer": "NaN"}
    stored = "SELECT 'q' AS question, 'nan'::FLOAT AS gold, gold::DOUBLE AS a_answer, 'NaN' AS b_answer"
    pytest.importorskip("duckdb").sql(stored).write_parquet(str(tmp_path / "t.parquet"))
    paths = [lines(tmp_path / f"{at}.json", given) for at, given in enumerate((record, json.dumps([record])))]
    for path in (*paths, tmp_path / "t.parquet"):
        assert picked(rows_of(path), "gold", "answer") == [(None, None), (None, "NaN")]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_whole_table_in_one_object_is_no_record(tmp_path, indent):
    by_row = {"0": {"question": "a", "small_answer": "x"}, "1": {"question": "b", "small_answer": "y"}}
    by_column = {"question": {"0": "a"}, "small_answer": {"0": "x"}, "large_answer": {"0": "x"}}
    for whole in (by_row, by_column, {"columns": ["question"], "data": [["a"]]}, {"schema": {}, "data": []}):
        (tmp_path / "t.json").write_text(json.dumps(whole, indent=indent))
        with pytest.raises(UsageError, match="orient='records'"):
            rows_of(tmp_path / "t.json")


def comma(cell: str) -> str:
    """Return a cell as a program writes it in a locale with decimal commas."""
    return cell.replace(".", ",")


@pytest.mark.parametrize(
    ("name", "before", "separator", "encoding"),
    [
        ("t.csv", "", "|", "utf-8"),
        ("t.csv", "", "\t", "utf-8"),
        ("t.tsv", "", ";", "utf-8"),
        ("t.csv", "sep=;\r\n", ";", "utf-8"),  # Excel's
        ("t.csv", "sep=,\n", ",", "utf-8-sig"),
        ("t.csv", "", ";", "cp1252"),
        ("t.csv", "", ",", "cp1252"),
    ],
)
def test_a_table_as_spreadsheets_write_it_holds_the_same(tmp_path, name, before, separator, encoding):
    given = [ROWS[0].replace("Danube", "Köln – “ü”"), *ROWS[1:]]
    expected = rows_of(table(tmp_path / "u.csv", *given), dataset="t")
    written = [row.replace(",", separator) for row in [HEAD, *given]]
    written = list(map(comma, written)) if separator == ";" else written
    (tmp_path / name).write_bytes((before + "\n".join(written)).encode(encoding))
    dropped = Dropped()
    assert rows_of(tmp_path / name, dropped=dropped, dataset="t") == expected
    assert (dropped.count, dropped.notes.total()) == (0, encoding == "cp1252")


@pytest.mark.parametrize("first", ["q", "q" * (1 << 20)])  # the next lines are read with it, or later
@pytest.mark.parametrize("ends", ["\r\n", "\n"])
def test_lines_with_other_ends_than_the_first_are_rows_too(tmp_path, ends, first):
    rows = [f"{first},x,y", '"two\r\nlines","a\rb",y', '"three\nlines",x,y\rr,x,z']
    (tmp_path / "t.csv").write_bytes(ends.join(["question,a_answer,b_answer\n", *rows]).replace("\n\r", "\r").encode())
    questions = [row["question"] for row in rows_of(tmp_path / "t.csv")[::2]]
    assert questions == [first, "two\r\nlines", "three\nlines", "r"]


@pytest.mark.parametrize(("separator", "cost"), [(";", 1_234_000_000), ("|", None)])
def test_a_comma_is_decimal_among_semicolons_and_may_be_one_elsewhere(tmp_path, separator, cost):
    row = ["q", "x", "1,234", "-1,250", "y", "2,5"]
    head = ["question", "a_answer", "a_cost_usd", "a_logprob", "b_answer", "b_cost_usd"]
    first, second = rows_of(table(tmp_path / "t.csv", separator.join(row), head=separator.join(head)))
    assert (first["cost_nano_usd"], second["cost_nano_usd"], second["answer"]) == (cost, 2_500_000_000, "y")
    assert first["signals"] == (None if cost is None else {"reply_mean_logprob": -1.25})


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("t.csv", "question,a_answer,b_answer\rq,x,y\r", "LF"),
        ("t.csv", "question,a_answer,b_answer\nq,x,y\n".encode("utf-16-le"), "UTF-16"),
        ("t.csv", "question,Question,a_answer\nq,r,x\n", "Question"),
        ("t.txt", "question,a_answer\nq,x\n", "csv"),
        ("t.csv.zst", b"\x28\xb5\x2f\xfd", "packed"),
        ("t.xlsx", b"PK\x03\x04", "CSV"),
    ],
)
def test_a_file_that_is_not_read_is_refused_with_what_to_do(tmp_path, name, data, what):
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(UsageError, match=what):
        rows_of(tmp_path / name)


def test_every_form_of_a_file_holds_the_same(tmp_path):
    source = table(tmp_path / "t.csv", *ROWS)
    expected = rows_of(source, dataset="t")
    records = [dict(zip(HEAD.split(","), row.split(","), strict=True)) for row in ROWS]
    lines(tmp_path / "t.jsonl", *records)
    (tmp_path / "t.json").write_text(json.dumps(records, indent=1))
    (tmp_path / "page.json").write_text(json.dumps({"data": records, "meta": {"page": 1}}))
    (tmp_path / "ui.json").write_text(json.dumps({"data": records, "total": 3, "page": 1, "total_pages": 1}))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(source.read_bytes()))
    (tmp_path / "t.tsv").write_text(source.read_text().replace(",", "\t"))
    lines(tmp_path / "semi" / "t.csv", source.read_text().replace(",", ";"))
    pytest.importorskip("duckdb").sql(f"SELECT * FROM read_csv('{source}')").write_parquet(str(tmp_path / "t.parquet"))
    names = ("t.jsonl", "t.json", "page.json", "ui.json", "t.csv.gz", "t.tsv", "semi", "t.parquet")
    assert {name for name in names if rows_of(tmp_path / name, dataset="t") != expected} == set()


@pytest.mark.parametrize(
    ("head", "row", "columns", "lines_to_paste"),
    [
        # the names of a question or a model are not guessed (L10)
        ("question,llm,final_answer,cost", "q,m,a,1", {}, ["answer=final_answer", "model=llm", "cost_usd=cost ("]),
        ("prompt,a_answer,b_answer", "q,x,y", {}, ["--map question=prompt"]),
        ("question,small answer,large answer", "q,x,y", {}, ["--map answer=FIELD", "--map model=FIELD"]),
        ("question,my answer,model", "q,x,m", {}, ["--map 'answer=my answer'"]),
        ("$ai_input,ResponseMessages", "q,x", {}, ["question=$ai_input", "answer=ResponseMessages", "cascade collect"]),
        ("RequestMessages,$ai_output_choices", "q,x", {}, ["=RequestMessages", "answer=$ai_output_choices"]),
        ("request.input,request.model,response.model", "q,m,m", {}, ["question=request --map", "model=request.model"]),
        ("data.input,data.output,llm", "q,x,m", {}, ["question=data.input --map", "answer=data.output"]),
        ("prompt,response,response.body.choices,llm", "q,x,y,m", {}, ["--map answer=response.body --map"]),
        ("question,a_answer,b_answer", "q,x,y", {"gold": "target"}, ["target"]),
        ("question,a_answer,b_answer", "q,x,y", {"golden": "a_answer"}, ["golden"]),
    ],
)
def test_what_is_missing_is_asked_for_with_a_line_to_paste(tmp_path, head, row, columns, lines_to_paste):
    with pytest.raises(UsageError) as error:
        rows_of(table(tmp_path / "t.csv", row, head=head), columns=columns)
    assert [line for line in lines_to_paste if line not in str(error.value)] == []


def test_no_line_to_paste_gives_all_calls_a_field_of_one_model_or_takes_a_label_or_a_score_for_a_truth(tmp_path):
    runs = {name: {"content": "x", "cost": 1} for name in ("small", "large")}
    path = lines(tmp_path / "t.jsonl", {"prompt": "q", "label": "refund", "score": 0.98, "responses": runs})
    with pytest.raises(UsageError) as error:
        rows_of(path)
    assert re.findall(r"--map (?:correct|cost_usd|answer|model)=(\w+)", str(error.value)) == ["FIELD", "FIELD"]


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("small_cost", "--map small.cost_usd=small_cost"),
        ("small_price", "--map small.cost_usd=small_price"),
        ("small_is_correct", "--map small.correct=small_is_correct"),
        ("small_score", "--map small.signals.score=small_score"),
        ("small_cost_cents", "as small.cost_usd"),
        ("expected", "--map gold=expected"),
    ],
)
def test_a_column_that_is_not_read_has_a_line_for_what_its_name_means(tmp_path, field, line):
    hints: list[str] = []
    rows_of(table(tmp_path / "t.csv", "q,a,b,0.5", head=f"question,small_answer,large_answer,{field}"), hints=hints)
    assert [text for text in hints if line in text]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"small.correct": "small_score"}, (True, {})),
        ({"small.signals.score": "small_score", "small.correct": "ok"}, (False, {"score": 1.0})),
    ],
)
def test_a_mapping_settles_a_doubtful_column(tmp_path, columns, expected):
    head = "question,small_answer,small_score,ok,large_answer"
    first, _ = rows_of(table(tmp_path / "t.csv", "q,a,1,no,b", head=head), columns=columns)
    assert (first["correct"], first["signals"] or {}) == expected


def test_nested_fields_are_mapped_by_their_paths(tmp_path):
    record = {"in": {"text": "q?"}, "runs": {"s1": {"out": "a", "usd": 0.001}, "l": {"out": "b", "usd": 0.1}}}
    columns = {"question": "in.text", "l.answer": "runs.l.out", "s.answer": "runs.s1.out", "s.cost_usd": "runs.s1.usd"}
    path = lines(tmp_path / "t.jsonl", record)
    with pytest.raises(UsageError, match=r"runs\.l\.out"):
        rows_of(path, columns={"question": "in.text", "l.answer": "runs.l.oot", "s.answer": "runs.l.out"})
    rows = rows_of(path, columns=columns | {"l.cost_usd": "runs.l.usd"})
    assert picked(rows, "question", "model", "answer", "cost_nano_usd")[1] == ("q?", "l", "b", 100_000_000)


def test_ids_and_labels_stay_texts(tmp_path):
    long, date = "12345678901234567890123", "2024-1-6"
    head = "id,question,gold,a_answer,b_answer"
    record = f'{{"id": {long}, "question": "q", "gold": "{date}", "a_answer": "{date}", "b_answer": "007"}}'
    cells = table(tmp_path / "t.csv", f"{long},q,{date},{date},007", head=head)
    for path in (cells, lines(tmp_path / "t.jsonl", record)):
        first, second = rows_of(path)
        assert (first["episode_id"], first["gold"], first["answer"], second["answer"]) == (long, [date], date, "007")


@pytest.mark.parametrize("sent", [None, {"temperature": 0}])
@pytest.mark.parametrize(
    "answer",
    ['["x", "y"]', "[]", '{"total": 5}', '{"text": "x", "n": 1}', '{"content": "x"}', '{"output": ["x"]}',
     '[{"role": "ceo", "name": "Ann"}]', '{"message": {"to": "Ann"}}', '{"tool_calls": []}'],
)  # fmt: skip
def test_an_answer_in_json_is_no_message_and_stays_as_it_is(tmp_path, sent, answer):
    """Before, `["x", "y"]` and `["x", "z"]` were both x, and where a request was named, `{"total": 5}` was no answer."""
    message = {"role": "assistant", "content": "Rome"}
    path = lines(tmp_path / "t.jsonl", {"question": "q", "a_answer": answer, "b_answer": json.dumps(message)})
    assert [row["answer"] for row in rows_of(path, request=sent)] == [answer, "Rome"]


def test_calls_of_models_become_steps_by_their_costs(tmp_path):
    calls = [
        {"model": model, "question": f"q{at}", "answer": f"{model}{at}", "cost_usd": cost}
        for at in range(3)
        for model, cost in (("large", 0.02), ("small", 0.001))
    ]
    rows = rows_of(lines(tmp_path / "calls.jsonl", *calls))
    assert sorted(picked(rows[:2], "step", "model", "answer")) == [(1, "small", "small0"), (2, "large", "large0")]
    assert len({row["episode_id"] for row in rows}) == 3
    again = rows_of(lines(tmp_path / "again.jsonl", *calls, *calls))
    assert len({row["episode_id"] for row in again}) == 6
    assert {row["group"] for row in again} == {None}  # equal questions are one group where the log is read


def test_a_model_at_two_efforts_is_two_models_as_the_server_names_them(tmp_path):
    bodies = {0.1: {"model": "mini"}, 3: {"model": "o4", "reasoning_effort": "high"}}
    bodies |= {1: {"model": "o4", "reasoning_effort": "low"}, 2: {"model": "o4"}}
    sent = {cost: body | {"messages": [{"role": "user", "content": "q"}]} for cost, body in bodies.items()}
    calls = [{"sent": body, "answer": "x", "cost_usd": cost} for cost, body in sent.items()]
    path, columns = lines(tmp_path / "t.jsonl", *calls), {"question": "sent", "model": "sent.model"}
    rows = rows_of(path, columns=columns)
    models = ["mini", "o4@low", "o4", "o4@high"]
    assert [(row["model"], chat_of(row).options) for row in rows] == [(model, {}) for model in models]
    without = rows_of(lines(tmp_path / "v.jsonl", *calls[1::2]), columns=columns)
    assert picked(without, "step", "model") == [(1, "o4"), (2, "o4@high")]
    ladder = rows_of(path, columns=columns, models=["mini", "o4@high"])
    assert [len({row["episode_id"] for row in rows}), len(ladder)] == [1, 2]
    (alone,) = rows_of(lines(tmp_path / "u.jsonl", calls[1]), columns=columns)
    assert (alone["model"], chat_of(alone).options) == ("o4", {"reasoning_effort": "high"})


def test_one_file_for_each_model_is_joined_on_the_question(tmp_path):
    for model, right in (("small", 2), ("large", 3)):
        answers = [{"question": f"q{at}", "answer": f"{model}{at}", "correct": at < right} for at in range(3)]
        lines(tmp_path / model / "answers.jsonl", *random.Random(model).sample(answers, 3))
    rows = rows_of(tmp_path / "small" / "answers.jsonl", tmp_path / "large" / "answers.jsonl")
    assert sorted(picked(rows, "question", "step", "model", "answer")) == [
        (f"q{at}", step, model, f"{model}{at}") for at in range(3) for step, model in ((1, "small"), (2, "large"))
    ]
    assert [sum(row["correct"] for row in rows if row["model"] == model) for model in ("small", "large")] == [2, 3]


@pytest.mark.parametrize("target", ["question_id", "id", "episode_id"])
def test_files_of_models_are_joined_on_an_id_and_a_model_that_lacks_a_row_leaves_its_step(tmp_path, target):
    small = [{"id": at, "question": f"q{at}", "answer": f"small{at}"} for at in (0, 2, 2)]
    large = [{"id": at, "answer": f"large{at}"} for at in (2, 1, 0)]
    files = [lines(tmp_path / f"{name}.jsonl", *rows) for name, rows in (("small", small), ("large", large))]
    rows = rows_of(*files, columns={target: "id"})
    assert sorted(picked(rows, "episode_id", "step", "model", "answer")) == [
        ("0", 1, "small", "small0"),
        ("0", 2, "large", "large0"),
        ("1", 2, "large", "large1"),
        ("2", 1, "small", "small2"),
        ("2", 2, "large", "large2"),
        ("2#2", 1, "small", "small2"),
    ]
    assert {row["question"] for row in rows if row["episode_id"] == "0"} == {"q0"}
    with pytest.raises(UsageError, match="question_id=FIELD"):  # nothing joins them
        rows_of(*files)


@pytest.mark.parametrize("of", ["a.", ""])
def test_every_documented_end_of_a_column_can_be_mapped_in_both_kinds_of_a_table(tmp_path, of):
    values = {end: "-1" if end.endswith("logprob") else "1" for end in ENDS} | {"message_faults": "0"}
    head = f"question,model,b_answer,{','.join(f'{end} (of a)' for end in ENDS)}"
    columns = {f"{of}{end}": f"{end} (of a)" for end in ENDS} | ({"b.answer": "b_answer"} if of else {})
    row, *_ = rows_of(table(tmp_path / "t.csv", f"q,m,y,{','.join(values.values())}", head=head), columns=columns)
    own = {ENDS[end].removeprefix("signals."): float(value) for end, value in values.items()}
    read = {**row, **row["signals"], "answer": 1, "cost_usd": 1, "latency_s": 1}
    assert {name: read[name] for name in own} == own


def test_costs_and_names_by_hand(tmp_path):
    head = "question,a_answer,b_answer,b_cost_usd"
    dropped, by_hand = Dropped(), {"costs": {"a": 7, "b": 9, "c": 1}, "rename": {"a": "openai/a", "d": "e"}}
    rows = rows_of(table(tmp_path / "t.csv", "q,x,y,0.5", head=head), dropped=dropped, **by_hand)
    assert picked(rows, "model", "source", "cost_nano_usd", "cost_source") == [
        ("openai/a", "openai/a", 7, "given by hand"),
        ("b", "b", 500_000_000, "the table"),
    ]
    assert dropped.notes.total() == 3  # the costs of b and c, the name d
    with pytest.raises(UsageError, match="if they are one"):
        rows_of(tmp_path / "t.csv", rename={"a": "x", "b": "x"})


def test_a_model_without_values_was_not_asked_unless_a_later_one_was(tmp_path):
    head = "question,a_answer,b_answer,c_answer"
    rows = rows_of(table(tmp_path / "t.csv", "q1,x,,", "q2,,y,", head=head))
    assert picked(rows, "question", "model", "answer") == [("q1", "a", "x"), ("q2", "a", None), ("q2", "b", "y")]


def test_sums_below_a_table_second_headers_and_rows_below_a_merged_cell_are_no_question_and_no_cost(tmp_path):
    flat = ("id,question,a_answer,a_cost_usd,b_correct", "i,q,x,1,", "j,,,1,no", "Sum,,,2,", ",Sum,,2,")
    calls = ("episode_id,question,model,answer,cost_usd", "i,q,a,x,1", "j,,a,y,1", ",,b,merged,1", ",,TOTAL,,2")
    for head, *rows in (flat, calls):
        path = table(tmp_path / "t.csv", "Id,prompt,Reply,cost,correct", *rows, head=head)
        read = rows_of(path, dropped=(dropped := Dropped()))
        assert ({row["episode_id"] for row in read}, sorted(dropped.rows.values())) == ({"i", "j"}, [1, 2])


def test_a_question_that_is_asked_again_is_an_episode_of_its_own(tmp_path):
    dropped, head = Dropped(), "id,question,a_answer,b_answer"
    rows = rows_of(table(tmp_path / "t.csv", "i,q,x,", "j,p,u,v", "i,q,y,z", head=head), dropped=dropped)
    assert ["/".join(row) for row in picked(rows, "episode_id", "answer")] == ["i/x", "j/u", "j/v", "i#2/y", "i#2/z"]
    assert sorted(dropped.notes.values()) == [1, 2]  # b was not asked; two calls of another run


def test_cached_tokens_are_never_counted_twice_and_input_that_may_have_them_or_not_is_unknown(tmp_path):
    head = "question,answer,input_tokens,cache_read_input_tokens,output_tokens,total_tokens,model"
    counts = {"10,12,42,a": 30, "10,12,52,a": 40, "10,12,,a": None, "0,12,,a": 30, "10,12,42,b": 40, "50,12,,b": 80}
    rows = rows_of(
        table(tmp_path / "t.csv", *map('"q{0}",x,30,{0}'.format, counts), head=head), dropped=(dropped := Dropped())
    )
    assert {row["question"][1:]: row["input_tokens"] for row in rows} == counts
    assert [count for why, count in dropped.notes.items() if "total_tokens" in why] == [1]


def test_bad_cells_become_null_and_are_counted(tmp_path):
    dropped, bad = Dropped(), "q4,Bad?,Mur,The Inn,maybe,free,0.94,x,no,nan"
    odd = ("q5,short", "q6,a,b,c,d,e,f,g,h,i,j", 'q7,"a mark that takes the lines after it', ROWS[0])
    rows = rows_of(table(tmp_path / "t.csv", *ROWS, bad, *odd), dropped=dropped)
    assert picked(rows[-2:], "correct", "cost_nano_usd", "signals") == [(None, None, None), (False, None, None)]
    assert dropped.count == 4
    assert dropped.notes.total() == 4  # a truth, two amounts, a log-prob above 0


# --- one's own ---


def test_fields_with_other_names_are_mapped(tmp_path):
    path = lines(tmp_path / "q.jsonl", {"prompt": "Which river?", "meta": {"target": "Danube"}, "answers": ["Rhine"]})
    (entry,) = read_questions(path, mapped={"question": "prompt", "answer": "meta.target"})
    assert (entry.question.text, entry.gold) == ("Which river?", ("Danube",))
    for wrong in ({"question": "promt"}, {"questoin": "prompt"}):
        with pytest.raises(UsageError, match="did you mean"):
            read_questions(path, mapped=wrong)


WHICH = question_id("Which river?", None)
WHOLE = {"id": 7, "question": "Which?", "context": "A text.", "group": "rivers"}
NAMED = {"question_id": "fact-1", "question": "x", "context": None, "answers": ["y"], "group": "g"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": " Which river? "}, AskedQuestion(WHICH, Question("Which river?"), group=WHICH)),
        (
            WHOLE | {"answers": ["Danube", "the Danube"], "split": "log", "kind": "fact"},
            AskedQuestion("7", Question("Which?", "A text."), ("Danube", "the Danube"), "rivers", "log"),
        ),
        (NAMED, AskedQuestion("fact-1", Question("x"), ("y",), "g")),  # the form of the demo
        (
            {"_id": "p", "question": "x", "type": "comparison", "context": ["Ada, 1901. ", "Bob, 1902."]},
            AskedQuestion("p", Question("x", "Ada, 1901.\n\nBob, 1902."), (), "p", None),
        ),
    ],
)
def test_everything_that_a_line_says_is_kept(tmp_path, row, expected):
    (actual,) = read_questions(lines(tmp_path / "q.jsonl", row))
    assert actual == expected
    (tmp_path / "listed.json").write_text(json.dumps([row]))
    assert read_questions(tmp_path / "listed.json") == [actual]


@pytest.mark.parametrize(
    ("fields", "gold"),
    [
        ({"answer": "Danube"}, ("Danube",)),
        ({"answer": 4}, ("4",)),
        ({"answer": 0}, ("0",)),
        ({"answer": "[4, 1]"}, ("[4, 1]",)),
        ({"answers": ["a", "b", "a"]}, ("a", "b")),
        ({"gold": ["a"]}, ("a",)),
        *((fields, ()) for fields in ({"answer": None}, {"answer": ""}, {"answers": []}, {})),
    ],
)
def test_answers_come_in_many_forms(tmp_path, fields, gold):
    (entry,) = read_questions(lines(tmp_path / "q.jsonl", {"question": "x"} | fields), dropped := Dropped())
    assert (entry.gold, dropped.notes.total()) == (gold, 0 if gold else 1)


# --- choices ---


CITIES, DIGITS, LETTERS = ("Which city?", ["Graz", "Vienna"]), ("7 - 4?", ["0", "3", "1"]), ("?", ["x", "y"])


@pytest.mark.parametrize(
    ("question", "fields", "gold"),
    [
        *((CITIES, {"answer": answer}, ("B", "Vienna")) for answer in ("B", "b", "Vienna", 1, "1")),
        (CITIES, {"answer": ["A", "B"]}, ("A", "Graz", "B", "Vienna")),
        (CITIES, {"answer": None}, ()),
        (DIGITS, {"answer": "1"}, ("C", "1")),  # a choice that looks like a number is meant by its text
        (DIGITS, {"answer": 1}, ("B", "3")),
        (LETTERS, {"answer": "B", "choices": '["x", "y"]'}, ("B", "y")),
    ],
)
def test_a_right_choice_is_its_letter_and_its_text(tmp_path, question, fields, gold):
    row = {name: value for name, value in ({"choices": question[1]} | fields).items() if name != "choices" or value}
    (entry,) = read_questions(lines(tmp_path / "q.jsonl", {"question": question[0], **row}))
    listed = [f"{letter}. {text}" for letter, text in zip("ABC", question[1], strict=False)]
    assert (entry.question.text, entry.gold, entry.matcher) == ("\n".join([question[0], *listed]), gold, "label")


def test_a_question_that_a_set_holds_twice_is_asked_twice_in_one_group(tmp_path):
    first, second = read_questions(lines(tmp_path / "q.jsonl", {"question": "x"}, {"question": "x"}))
    assert (second.id, second.group) == (f"{first.id}-2", first.id)


# --- what is wrong ---


def test_all_problems_are_named_at_once(tmp_path):
    path = lines(
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
        {"question": "x", "answer": [{"a": 1}]},
        {"id": "a", "question": "y"},
    )
    with pytest.raises(UsageError) as raised:
        read_questions(path)
    message = str(raised.value)
    assert message.startswith(f"{path} cannot be asked: 10 problems:\n")
    for line in (
        "q.jsonl:2: it has no field question; did you mean quesion?",
        "q.jsonl:3: the question is empty",
        "q.jsonl:4: not a JSON object",
        "q.jsonl:5: the answer 'E' is not among the 2 choices",
        "q.jsonl:6: the answer '2' is not among the 2 choices",
        "q.jsonl:7: there are 1 choices",
        "q.jsonl:8: the choices are not a list of texts",
        "q.jsonl:9: the context is neither a text nor a list of texts",
        "q.jsonl:10: an answer is not a text",
        "q.jsonl:11: the id a is that of q.jsonl:1",
    ):
        assert f"\n  - {line}" in message


def test_only_the_first_twenty_are_listed(tmp_path):
    with pytest.raises(UsageError, match="50 problems") as raised:
        read_questions(lines(tmp_path / "q.jsonl", *[{"question": ""}] * 50))
    assert str(raised.value).count("\n  - ") == 20
    assert str(raised.value).endswith("and 30 more")


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("q.jsonl", "", "no question"),
        ("q.csv", "question\n", "no question"),
        ("q.json", "[]", "no question"),
        ("q.csv", "id,question\n1,x\n2\n", r"q\.csv:3: "),  # a torn line
        ("q.jsonl", None, "no file"),
    ],
)
def test_a_file_without_questions_says_so(tmp_path, name, text, match):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=match):
        read_questions(tmp_path / name)


def test_an_odd_byte_is_no_reason_not_to_ask(tmp_path):
    (tmp_path / "q.jsonl").write_bytes(b'{"question": "Caf\xe9?"}\n')
    assert read_questions(tmp_path / "q.jsonl")[0].question.text == "Caf\ufffd?"


@pytest.mark.parametrize(
    ("fields", "gold"),
    [
        ({"gold": []}, ("[]",)),
        ({"gold": None, "category": "relevance"}, ("[]",)),
        ({"gold": None, "category": "live_irrelevance"}, ("[]",)),
        ({"gold": None, "category": "live_relevance"}, ()),
        ({"gold": None}, ()),
        ({}, ()),
    ],
)
def test_no_call_is_an_accepted_answer_of_a_request_with_tools(tmp_path, fields, gold):
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
    path = lines(tmp_path / "requests.jsonl", {"custom_id": "r1", "body": body} | fields)
    (entry,) = read_questions(path, dropped := Dropped())
    assert (entry.gold, bool(dropped.notes)) == (gold, not gold)
    if gold:
        judge = get_matcher(entry.matcher or "")
        assert judge.matches("None of the tools can do that.", entry.gold) is True
        assert judge.matches('[{"name": "f", "arguments": {}}]', entry.gold) is False
