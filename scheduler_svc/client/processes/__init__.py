"""Services as child processes on this machine."""
