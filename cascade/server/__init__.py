"""`cascade serve`: a cascade behind the APIs of OpenAI (chat completions, responses) and Anthropic (messages).

An application only has to change its base URL.
"""
