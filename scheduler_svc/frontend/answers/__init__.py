"""Answers: from the core's tokens to OpenAI's objects. No socket and no HTTP in here."""
