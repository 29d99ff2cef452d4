"""Files that lie about their size, or have no end, cost neither memory nor time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade import files
from cascade.config import load
from cascade.errors import ConfigError
from cascade.policies.directory import PolicyDirectory
from cascade.safety import read_bounded

Cli = Callable[..., Any]
posix = pytest.mark.skipif(os.name == "nt", reason="there are no such files")


def test_a_file_is_read_up_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_bounded(path, 10) == b"x" * 10
    assert read_bounded(path, 9) is None


@posix
def test_a_policy_file_that_is_a_device_or_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """0.5.0: MemoryError for model.safetensors -> /dev/zero, and a hang for a FIFO: `st_size` was trusted."""
    device, pipe = tmp_path / "model.safetensors", tmp_path / "policy.json"
    device.symlink_to("/dev/zero")
    os.mkfifo(pipe)
    for path in (device, pipe):
        with pytest.raises(ConfigError, match="not a regular file but a"):
            files.content(path)
    with pytest.raises(ConfigError, match="not a regular file but a pipe"):
        PolicyDirectory.read(tmp_path)


@posix
def test_a_configuration_without_an_end_is_refused() -> None:
    """0.5.0: read until the memory was full."""
    with pytest.raises(ConfigError, match="not a regular file but a device"):
        load("/dev/zero")


@posix
def test_a_configuration_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As in `cascade ask -c <(make-config)`."""
    reading, writing = os.pipe()
    os.write(writing, b"models: {base: a, guide: b}\nprovider: fake\n")
    os.close(writing)
    try:
        assert load(f"/dev/fd/{reading}").models["base"].model == "a"
    finally:
        os.close(reading)
