"""Logs: the rows of a log, their files, and imports of other tools' logs."""
