"""What happened, counted, and how it is reported to operators."""
