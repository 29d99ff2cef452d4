"""A policy, a log and a guarantee that is asked for become a certified policy; and a certificate is checked again."""
