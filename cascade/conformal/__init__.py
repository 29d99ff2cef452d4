"""Turns the doubts and losses of a log into a threshold with a promise. It works on numbers and calls no model."""
