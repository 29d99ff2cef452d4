"""Addresses that must not be asked, keys that must not stand in a file, words that are nearly right."""

from __future__ import annotations

import math

import pytest
from cases import each

from cascade.checks import checked_base, did_you_mean, is_link_local, is_secret_name, secret_problems, share_problems


@each(
    "address, problem",
    [
        *(
            (address, None)
            for address in (
                "http://127.0.0.1:8080/v1",
                "https://api.openai.com/v1",
                "http://localhost",
                "http://[::1]:80/v1",
            )
        ),
        ("HTTPS://a.b/v1", None),
        *(
            (address, "starts with http")
            for address in ("", "localhost:8080", "ftp://a.b", "file:///etc/passwd", "http://", "https:///v1")
        ),
        *(
            (address, "api_key_env")
            for address in ("http://user@a.b/v1", "http://:pw@a.b/v1", "http://a.b/v1?key=AIza", "http://a.b/v1#token")
        ),
        *((f"http://a.b/v1/chat/completions{end}", r"write http://a\.b/v1$") for end in ("", "/")),
    ],
)
def test_an_address_is_returned_as_it_is_or_refused(address: str, problem: str | None) -> None:
    if problem is None:
        assert checked_base(address) == address
        return
    with pytest.raises(ValueError, match=problem):
        checked_base(address)


METADATA = [
    "169.254.169.254", "169.254.0.1", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "::ffff:169.254.169.254",
    "fe80::1", "metadata.google.internal", "METADATA.google.internal.", "metadata", "100.100.100.200",
    "fd00:ec2::254",
]  # fmt: skip


@each("host", METADATA)
def test_no_spelling_of_a_metadata_address_is_asked(host: str) -> None:
    assert is_link_local(host)
    bracketed = f"[{host}]" if ":" in host else host
    with pytest.raises(ValueError, match="metadata"):
        checked_base(f"http://{bracketed}/latest")


@each("host", ["127.0.0.1", "10.0.0.1", "example.org", "169.253.169.254", "::1", "metadata.example.org"])
def test_other_hosts_are_not_metadata(host: str) -> None:
    assert not is_link_local(host)


@each("name", ["api_key", "apikey", "API_KEY", "key", "token", "Secret", "password", "authorization"])
@each("value", ["x", "", 12345, None, ["x"], {"a": "x"}])
def test_a_setting_named_like_a_key_is_refused_whatever_it_holds(name: str, value: object) -> None:
    problems = list(secret_problems({"models": {"base": {name: value}}}))
    assert len(problems) == 1
    assert problems[0].startswith(f"models.base.{name}: ")
    assert "api_key_env" in problems[0]


@pytest.mark.parametrize("name", ["api_key_env", "max_tokens", "monkey", "token_count", 1, None])
def test_other_names_are_not_names_of_keys(name: object) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value",
    ["sk-abcdefghijklmnop", "use gsk_abcdefghijklmnop0 here", "AIzaSyA1234567890abcdefghijk", "Bearer abcdefgh12"],
)
def test_a_value_of_a_keys_shape_is_refused_and_not_shown(value: str) -> None:
    problems = list(secret_problems({"a": [{"b": value}]}))
    assert [problem.split(":")[0] for problem in problems] == ["a[0].b"]
    assert value not in problems[0]


@pytest.mark.parametrize("value", ["sk-short", "OPENAI_API_KEY", "openai/gpt-4o-mini", "task-oriented-assistant-x", 7])
def test_an_ordinary_value_is_no_key(value: object) -> None:
    assert not list(secret_problems({"a": value}))


def test_the_nearest_word_is_offered_with_the_others_if_they_are_few() -> None:
    assert did_you_mean("treshold", ["threshold", "fixed"]) == "; did you mean threshold? Known: fixed, threshold"
    many = [f"word{n:02}" for n in range(17)]
    assert did_you_mean("word1", many) in {f"; did you mean word{n}?" for n in range(10, 17)} | {
        "; did you mean word01?"
    }


def test_where_nothing_is_near_all_words_are_named() -> None:
    assert did_you_mean("zzz", ["threshold", "fixed"]) == "; known: fixed, threshold"


def test_shares_are_held_against_their_range_with_its_ends_or_without() -> None:
    good = {"one": 0.5, "two": 1e-300, "three": None}
    assert share_problems(**good) == share_problems(ends=True, **good) == share_problems(ends=True, a=0, b=1.0) == []
    assert share_problems(alpha=0, delta=1.0) == [
        "alpha must lie between 0 and 1, not 0",
        "delta must lie between 0 and 1, not 1",
    ]
    for wrong in (-1e-9, 1 + 1e-9, math.nan, math.inf):
        assert len(share_problems(a=wrong)) == len(share_problems(ends=True, a=wrong)) == 1
