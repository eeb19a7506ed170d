"""The work of `baton batch`: files of requests, and how they are sent."""
