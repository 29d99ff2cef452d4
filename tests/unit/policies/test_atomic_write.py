"""Several files at once: all of them, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cascade.errors import UsageError
from cascade.files import write_whole
from cascade.policies.artifact import CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE, PolicyArtifact, write
from unit.policies.test_artifact import certified, files


def test_files_are_written_and_taken_away(tmp_path: Path) -> None:
    write_whole(tmp_path / "deep" / "er", {"a": b"1", "b": None})
    assert files(tmp_path / "deep" / "er") == {"a": b"1"}
    write_whole(tmp_path / "deep" / "er", {"a": None, "b": b"2"})
    assert files(tmp_path / "deep" / "er") == {"b": b"2"}
    assert (tmp_path / "deep" / "er" / "b").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_where_one_fails_all_are_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    (tmp_path / "a").write_bytes(b"old a")
    (tmp_path / "c").write_bytes(b"old c")
    calls, real = [0], os.replace

    def moved(source: str, target: str, **rest: object) -> None:
        calls[0] += 1
        if calls[0] == failing:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", moved)
    with pytest.raises(OSError, match="space"):
        write_whole(tmp_path, {"a": b"new a", "b": b"new b", "c": b"new c"})
    assert files(tmp_path) == {"a": b"old a", "c": b"old c"}
    assert calls[0] > failing - 1


def test_a_disk_that_is_full_leaves_all_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old a")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        write_whole(tmp_path, {"a": b"new a", "b": b"new b"})
    assert files(tmp_path) == {"a": b"old a"}


def test_a_policy_without_certificates_leaves_none_of_another(tmp_path: Path) -> None:
    write(tmp_path, certified())
    assert CERTIFICATE_FILE in files(tmp_path)
    write(tmp_path, PolicyArtifact({"kind": "threshold"}))
    assert set(files(tmp_path)) == {POLICY_FILE}


def test_files_beside_the_policy_have_plain_names(tmp_path: Path) -> None:
    write(tmp_path, certified(), files={"README.md": b"x"})
    assert set(files(tmp_path)) == {POLICY_FILE, CERTIFICATE_FILE, "README.md"}
    for name in ("../README.md", "a/b", POLICY_FILE, CERTIFICATE_FILE, "", ".", ".."):
        with pytest.raises(UsageError, match="cannot be the name of a file beside"):
            write(tmp_path, certified(), files={name: b""})
    assert MODEL_FILE not in files(tmp_path)
