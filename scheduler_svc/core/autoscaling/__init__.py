"""How many executors the service wants, by how full their steps are and what waits. Pure."""
