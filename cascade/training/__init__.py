"""Fit policies on logs with numpy. scikit-learn is optional: only the boosted trees use it."""
