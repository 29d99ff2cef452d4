"""Policies played on logs: comparisons on random splits, diagnoses, evaluations, audits."""
