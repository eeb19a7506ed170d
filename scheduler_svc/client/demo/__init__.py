"""The work of `baton demo`: what happens to the executors while an answer is streamed."""
