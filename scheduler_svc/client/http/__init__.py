"""The service's HTTP interface as a client uses it."""
