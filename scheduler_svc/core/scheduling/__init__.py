"""Which sequences run where, and what each executor computes next."""
