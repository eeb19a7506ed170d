"""The server's end of ZeroMQ's wire protocol, without I/O: bytes in, messages out. docs/security.md says why."""
