"""HTTP: endpoints, the checks before a request is read, limits of connections, and server-sent events."""
