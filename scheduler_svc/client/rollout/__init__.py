"""`baton rollout`: what to replace next, and what to say of it."""
