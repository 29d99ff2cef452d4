"""Turn the doubts and losses of a log into a threshold with a promise. This works on numbers and calls no model."""
