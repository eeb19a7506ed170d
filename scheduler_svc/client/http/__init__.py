"""The service's HTTP interface as a client uses it: connections, streams, and how a broken one is resumed."""
