"""The command line, to hold the functions against."""

from unit.cli.conftest import _commands_are_made_once, cli

__all__ = ["_commands_are_made_once", "cli"]
