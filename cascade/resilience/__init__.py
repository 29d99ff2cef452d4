"""Deadlines, retries, circuit breakers, and the loop that makes calls and cancels them."""
