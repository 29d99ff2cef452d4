"""Estimators fitted to plain arrays: ridge, logistic regression, calibration, trees. They know nothing of logs."""
