"""Fixtures of the fault tests."""

from .bench import bench

__all__ = ["bench"]
