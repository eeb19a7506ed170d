"""The background worker, a process of its own: runs what no client waits for, and keeps in the store what it gives."""
