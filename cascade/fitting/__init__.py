"""Fitting: which requests of a log a policy learns from, which policy is chosen, and what is certified."""
