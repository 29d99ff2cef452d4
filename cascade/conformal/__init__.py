"""Scores and a threshold become decisions. Pure numbers: nothing here knows of language models."""
