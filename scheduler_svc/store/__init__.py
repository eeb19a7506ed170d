"""What outlives requests: stored responses, files and batches, in SQLite. A library for several processes at once."""
