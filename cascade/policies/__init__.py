"""When to stop and which answers to keep: the decision rules as they are served. `cascade.training` learns them."""
