"""Fixtures of the fault tests."""

from unit.cli.conftest import cli

from .bench import bench

__all__ = ["bench", "cli"]
