"""A journal of each version of the format, as a scheduler of that version has left it, and what is to be read."""
