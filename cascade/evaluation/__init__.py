"""Evaluate policies on logged questions."""
