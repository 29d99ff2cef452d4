"""Logs: the rows of a log, files of them, and logs of other tools."""
