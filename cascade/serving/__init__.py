"""A policy in service: its levels, its certificates, the audits of its answers, and what audits told of each."""
