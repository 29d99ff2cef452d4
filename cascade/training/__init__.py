"""Fit policies on logs with numpy. scikit-learn is optional: only `trees.py` uses it."""
