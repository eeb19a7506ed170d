"""Services as child processes on this machine: started, watched, stopped."""
