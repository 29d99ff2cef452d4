"""The decision rules that serve: when to stop, and which answers to keep. `cascade.house` learns them."""
