"""Logged questions: every call of every step, as rows for replay, fitting and comparison."""
