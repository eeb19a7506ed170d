"""Grammars: what texts a request allows, as the library that masks tokens reads it, and checked before it does."""
