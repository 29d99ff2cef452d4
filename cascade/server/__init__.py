"""`cascade serve`: a cascade behind OpenAI's chat completions and responses, and Anthropic's messages.

An application changes only its address.
"""
