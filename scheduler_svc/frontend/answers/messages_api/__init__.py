"""An answer as one of the messages of Anthropic's API."""
