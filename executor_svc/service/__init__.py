"""The executor's process: socket, life in a fleet, and the threads of the step loop. No torch."""
