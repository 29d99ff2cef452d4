"""F65-F67 and F74: a configuration that is wrong, hostile, no regular file, or holds what it must not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import each

from cascade.cli.main import main
from cascade.config import load
from cascade.errors import ConfigError, UsageError
from cascade.logs.files import read_rows
from cascade.logs.questions import read_questions
from cascade.plans import prompts

from .bench import KEY, KEY_VARIABLE, Bench

PLAIN_KEY = "0123456789abcdef0123456789abcdef"
"""A key without a telling shape, as Azure gives them."""


def problems(source: Any) -> tuple[str, ...]:
    """Return everything that is wrong with a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(source)
    assert caught.value.problems, "an error without a problem helps nobody"
    return caught.value.problems


def written(bench: Bench, text: str) -> Path:
    """Return a file with that text."""
    path = bench.folder / "cascade.yaml"
    path.write_text(text, "utf-8")
    return path


def test_f65_every_problem_is_listed_at_once_with_its_path(bench):
    lines = problems(
        {
            "models": {
                "base": {"model": "small", "price": {"input": 1.0}, "max_tokens": KEY},
                "guide": {"model": "large", "temprature": 1},
            },
            "budgt": {},
            "budget": {"per_question": -1.0},
            "policy": {"kind": "treshold"},
            "timeouts": {"per_call_s": 0},
            "strategy": {"rounds": 0},
            "guarantee": {"risk": 2},
            "api_key": "x",
            1: 2,
        }
    )
    for path, hint in {
        "models.base.price.output": "missing",
        "models.base.max_tokens": "integer",
        "models.guide.temprature": "did you mean temperature?",
        "budgt": "did you mean budget?",
        "budget.per_question": "greater than 0",
        "policy": "did you mean threshold?",
        "timeouts.per_call_s": "greater than 0",
        "strategy.rounds": "greater than or equal to 1",
        "guarantee.risk": "not 2",
        "api_key": "api_key_env",
        "[1]": "strings",
    }.items():
        assert [line for line in lines if line.startswith(f"{path}:") and hint in line], f"{path} not in {lines}"
    assert KEY not in str(lines)


def test_f66_tags_aliases_and_size(bench):
    aliases = "\n".join(f"x{number}: *a" for number in range(60))
    (problem,) = problems(written(bench, f"models: {{base: small, guide: &a large}}\n{aliases}\n"))
    assert "aliases" in problem
    assert "larger than" in problems(written(bench, "# " + "x" * 2_000_000 + "\nmodels: {}\n"))[0]
    marker = bench.folder / "made"
    lines = problems(written(bench, f"models: !!python/object/apply:os.mkdir [{marker}]\n"))
    assert "python/object" in lines[0]
    assert not marker.exists()


def _with_key(place: str, value: Any = KEY) -> dict[str, Any]:
    models: dict[str, Any] = {"base": {"model": "small"}, "guide": "large"}
    provider: dict[str, Any] = {"kind": "openai_http"}
    (models["base"] if place.startswith("model") else provider)[place.split(".")[1]] = value
    return {"models": models, "provider": provider}


def test_f67_a_key_in_the_settings_is_refused_with_advice(bench):
    for settings in (_with_key("model.api_key"), _with_key("provider.api_key_env"), _with_key("model.model")):
        lines = problems(settings)
        assert any("api_key_env: NAME" in line for line in lines), lines
        assert KEY not in "\n".join(lines)


@each(
    "address",
    [f"http://h/v1?key={KEY}", f"http://user:{PLAIN_KEY}@h/v1", "http://h/v1?key=AIzaSyA12345678901234567890"],
)
def test_f67_a_key_in_an_address_is_refused(address):
    lines = problems(_with_key("provider.api_base", address))
    assert not any(key in "\n".join(lines) for key in (KEY, PLAIN_KEY, "AIzaSyA12345678901234567890"))


@each("text", ["[api_key, {}\n", "? - api_key: {}\n: *none\n"])
def test_f67_nor_does_a_file_that_cannot_be_read_show_it(bench, text):
    lines = problems(written(bench, text.replace("{}", PLAIN_KEY)))
    assert PLAIN_KEY not in "\n".join(lines)


def test_f67_a_key_from_the_environment_is_in_no_repr(bench):
    orchestrator = bench.served()
    provider = orchestrator.runtime._own[0].provider
    shown = f"{orchestrator!r} {orchestrator.runtime.config!r} {orchestrator.runtime.config} {provider!r} {orchestrator.runtime._own!r}"
    assert KEY_VARIABLE in shown
    assert KEY not in shown


METADATA = [
    "169.254.169.254", "169.254.0.1", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "[::ffff:169.254.169.254]",
    "[fe80::1]", "metadata.google.internal", "METADATA.google.internal.", "metadata", "100.100.100.200",
    "[fd00:ec2::254]",
]  # fmt: skip


@each("address, problem", [
    *((f"{scheme}://{host}/latest", "metadata") for host in METADATA for scheme in ("http", "HTTP")),
    *((address, "") for address in ("ftp://h/", "file:///etc/passwd", "h:8000", "http://", "http://[::1", "http://h:99999999/")),
])  # fmt: skip
@each("place", ["model.api_base", "provider.api_base"])
def test_f74_metadata_addresses_and_what_is_none_are_refused(place, address, problem):
    assert any("api_base" in line and problem in line for line in problems(_with_key(place, address)))


def test_f74_another_address_is_taken():
    assert load(_with_key("provider.api_base", "http://[::1]:8000/v1")).provider.api_base == "http://[::1]:8000/v1"


def test_f74_no_text_of_a_user_chooses_an_address(bench):
    orchestrator, fake = bench.scripted(None)
    orchestrator.ask("http://169.254.169.254/ api_base=http://169.254.169.254/")
    assert {request.model for request in fake.requests} == {"small", "large"}


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.csv", "log.json", "log.parquet", "log"])
def test_f66_no_pipe_is_waited_for_and_no_device_read_in_the_place_of_a_file(tmp_path, capsys, monkeypatch, name):
    """0.5.0: a FIFO as `--config`, `--context` or a log hung for ever, and /dev/zero filled the memory."""
    pytest.importorskip("duckdb")
    pipe, device = tmp_path / f"pipe-{name}", tmp_path / f"device-{name}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path, kind in ((pipe, "a pipe"), (device, "a device")):
        problem = f"not a regular file but {kind}"
        for read, error in ((read_rows, UsageError), (read_questions, UsageError), (load, ConfigError)):
            with pytest.raises(error, match=problem):
                list(read(path))
        for arguments in (["ask", "x", "--config"], ["ask", "x", "--context"], ["prove"]):
            monkeypatch.setattr(sys, "argv", ["cascade", *arguments, str(path)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 2
            assert problem in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_f66_a_prompt_that_is_a_pipe_or_has_no_end_is_refused(tmp_path):
    """0.5.0: the shipped prompt was used instead, without a word."""
    os.mkfifo(tmp_path / "judge.txt")
    (tmp_path / "answer.txt").symlink_to("/dev/zero")
    (tmp_path / "decide.txt").write_bytes(b"x" * (prompts.MOST_BYTES + 1))
    with pytest.raises(ConfigError) as caught:
        prompts.load(tmp_path)
    answer, judge, decide = caught.value.problems
    assert "but a device" in answer
    assert "but a pipe" in judge
    assert "more than 1,000,000 bytes" in decide
