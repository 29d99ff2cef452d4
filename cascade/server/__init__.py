"""`cascade serve`: a cascade behind OpenAI's chat completions and responses, and Anthropic's messages.

An application only has to change its base URL.
"""
