"""What decides. No socket, clock, thread, file or log in this folder or below it: messages and the time come in."""
