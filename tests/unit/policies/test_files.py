"""The files of a policy directory: where none can be written or read, one line says so, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cascade import files as module
from cascade.errors import ConfigError, UsageError
from cascade.files import there, writable
from cascade.policies.artifact import CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE, write
from cascade.policies.reading import read
from unit.policies.test_artifact import certified, files


def test_where_a_directory_can_be_written_nothing_is_left_behind(tmp_path: Path) -> None:
    writable(tmp_path / "deep" / "er")
    assert files(tmp_path) == {}
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "a").write_bytes(b"1")
    writable(tmp_path / "held")
    assert files(tmp_path / "held") == {"a": b"1"}


def test_a_place_where_nothing_can_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(UsageError, match="is a file, so no policy directory can be written there"):
        writable(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        writable(tmp_path / "file" / "policy")
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        writable(tmp_path / ("x" * 300))
    with pytest.raises(UsageError, match="Name the policy directory to be written: --output DIR"):
        writable("")


def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.tempfile, "TemporaryDirectory", refused)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        writable(tmp_path / "deep" / "er")
    assert not (tmp_path / "deep").exists()
    monkeypatch.setattr("tempfile.mkdtemp", refused)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        write(tmp_path, certified())


def test_a_directory_that_may_not_be_looked_into_is_no_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, certified())
    real = Path.stat

    def closed(path: Path, **rest: bool) -> os.stat_result:
        if path.name == POLICY_FILE:
            raise PermissionError(13, "Permission denied")
        return real(path, **rest)

    monkeypatch.setattr(Path, "stat", closed)
    with pytest.raises(ConfigError, match="it cannot be read: Permission denied"):
        there(tmp_path / POLICY_FILE)
    with pytest.raises(ConfigError, match="Permission denied; restore the file"):
        read(tmp_path)


@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    write(tmp_path, certified())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ConfigError, match="restore the file as it was, and readable, or make the policy again"
    ) as caught:
        read(tmp_path)
    assert caught.value.source == str(tmp_path / name)
    assert name in str(caught.value)
    assert MODEL_FILE not in str(caught.value)
