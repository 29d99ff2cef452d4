"""When to stop and which answers to keep. Decision rules as they are served; how they are learned is elsewhere."""
