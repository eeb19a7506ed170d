"""The scheduler's process: sockets, files, child processes, and the loop that waits for them. All I/O of the core."""
