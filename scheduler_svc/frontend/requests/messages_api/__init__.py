"""Anthropic's Messages: what clients may ask for, and the chat that it is."""
