"""What policies are worth: on logged questions, and on simulated ones."""
