"""The work of `baton responses`: what is asked for, how responses are shown, and how one is followed."""
