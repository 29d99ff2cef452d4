"""Evaluate policies on logged questions and on simulated ones."""
