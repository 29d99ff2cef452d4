"""Make a certified policy from a policy, a log and a guarantee, and check certificates again."""
