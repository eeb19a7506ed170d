"""What a client may ask for, checked, and turned into what the core is asked: token ids and sampling parameters."""
