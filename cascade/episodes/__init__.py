"""Logged questions: every call of every step, as rows to replay, fit on and compare."""
