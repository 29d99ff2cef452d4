"""Logged questions: every call of every step, as rows that replay, fitting and comparison read."""
