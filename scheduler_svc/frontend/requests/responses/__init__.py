"""Requests of the Responses API: what they may contain, and the conversation that each stands for."""
