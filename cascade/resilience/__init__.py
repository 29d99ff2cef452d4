"""Deadlines, retries, concurrency limits, circuit breakers, and stopping of calls."""
