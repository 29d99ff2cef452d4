"""Policies played on logs: comparisons on random splits, diagnoses, and checks of certificates."""
