"""A configuration file is read as if an enemy wrote it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest

from cascade.config import load
from cascade.config.yamlfile import MAX_FILE_BYTES, read_yaml
from cascade.errors import ConfigError

NO_YAML = [
    "a: [",
    "a: {b: 1",
    "\ta: 1",
    "a: !!python/object/apply:os.system [echo]",
    "a: !!python/name:os.system",
    "a: 2026-13-45",
    "a: !!int abc",
    "a: !!map [b, c]",
    "a: !!binary 'é'",
    "a: *nowhere",
    "? [a, b]\n: 1",
    "{a: 1}: 2",
    "a: 1\n---\nb: 2",
    "a: " + "[" * 5_000,
    "a: \x00",
]


def read(folder: Path, text: str | bytes) -> object:
    path = folder / "cascade.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_yaml(path)


def refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    assert len(caught.value.problems) == 1
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_a_mapping_is_read(tmp_path):
    assert read(tmp_path, "a: {b: [1, 2.5, yes, null, text]}") == {"a": {"b": [1, 2.5, True, None, "text"]}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "holds no settings") for text in ("", "# nothing", "- a\n- b", "just words", "42")),
        (b"#" * (MAX_FILE_BYTES + 1), "larger than"),
        (b"a: \xff\xfe", "cannot be read"),
        ("a: &x {b: 1}\nc: *x", "aliases"),
        ("a: &a [*a]", "aliases"),  # a document that holds itself
        ("\n".join(["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]), "aliases"),
        ("a: " + "[" * 40 + "]" * 40, "deeper"),
        ("a: 1\nb: 2\na: 3", "'a' appears twice"),
        ("a: 1\nb: 2\na: 3", "line 3"),
        ("a:\n  - {b: 1, b: 2}", "appears twice"),
        *((text, "not valid YAML") for text in NO_YAML),
    ],
)
def test_what_is_no_plain_file_of_settings_is_one_problem(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


def test_a_missing_file_says_what_writes_one(tmp_path):
    with pytest.raises(ConfigError, match="cascade init"):
        read_yaml(tmp_path / "nothing.yaml")


def test_a_folder_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)


@pytest.mark.parametrize("text", ['api_key: "0123456789abcdef', "api_key: 0123456789abcdef: b"])
def test_the_line_at_fault_is_named_and_not_quoted(tmp_path, text):
    said = refusal(tmp_path, text)
    assert "0123456789abcdef" not in said
    assert "line" in said


def test_a_file_of_60_000_names_is_refused_quickly(tmp_path):
    """0.5.0: 28 s."""
    path = tmp_path / "cascade.yaml"
    path.write_text("".join(f"k{number}: {number}\n" for number in range(60_000)))
    with pytest.raises(ConfigError, match="more than 10000 names and values"):
        load(path)


def test_of_60_000_wrong_settings_the_first_are_said_and_the_others_counted(monkeypatch):
    compared, near = list[str](), difflib.get_close_matches

    def noted(word: str, *rest: Any, **more: Any) -> Any:
        compared.append(word)
        return near(word, *rest, **more)

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    with pytest.raises(ConfigError) as caught:
        load({"models": {"base": "a", "guide": "b"}, **{f"k{number}": 1 for number in range(60_000)}})
    assert len(compared) <= 100  # what is not said is not compared with the names that there are
    assert caught.value.problems[0].startswith("k0: there is no such setting")
    assert caught.value.problems[-1] == "and 59900 more problems; these come first"
