"""Answers under way: the link to the core, and what each request has been told."""
