"""What open pages are told of the service while it runs."""
