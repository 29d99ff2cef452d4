"""What comes from outside, made safe: files that a user names, text for a prompt, keys in any text."""
