"""Answers of the Responses API: its objects, and its events. No I/O in here."""
