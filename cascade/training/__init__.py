"""Fits policies on logs: numpy, and scikit-learn where it is installed (`trees.py` alone)."""
