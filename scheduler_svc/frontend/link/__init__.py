"""The socket to the core: what is sent, and where what comes back waits for the answer it belongs to."""
