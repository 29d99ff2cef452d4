"""HotpotQA with a search tool: the agent, and what is made of the log that `cascade collect` writes with it."""
