"""Optimal stopping with exact calibration (OSC): what its rules are fitted to, and the four estimators."""
