"""How many executors the service wants, by what waits and arrives and not by how busy processors are. Pure."""
