"""F66: what a user names as a file and is a pipe or a device is refused at once, wherever a file is read."""

from __future__ import annotations

import os
import sys

import pytest

from cascade.cli.main import main
from cascade.config import load
from cascade.errors import ConfigError, UsageError
from cascade.logs.files import read_rows
from cascade.logs.questions import read_questions
from cascade.plans import prompts

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there are no such files")


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.csv", "log.json", "log.parquet", "log"])
def test_f66_no_pipe_is_waited_for_and_no_device_read_in_the_place_of_a_file(tmp_path, capsys, monkeypatch, name):
    """0.5.0: a FIFO as `--config`, `--context` or a log hung for ever, and /dev/zero filled the memory."""
    pytest.importorskip("duckdb")
    pipe, device = tmp_path / f"pipe-{name}", tmp_path / f"device-{name}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path, kind in ((pipe, "a pipe"), (device, "a device")):
        said = f"not a regular file but {kind}"
        for read, error in ((read_rows, UsageError), (read_questions, UsageError), (load, ConfigError)):
            with pytest.raises(error, match=said):
                list(read(path))
        for arguments in (["ask", "x", "--config"], ["ask", "x", "--context"], ["prove"]):
            monkeypatch.setattr(sys, "argv", ["cascade", *arguments, str(path)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 2
            assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


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
