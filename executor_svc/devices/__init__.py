"""What differs between computing on a CPU and on a GPU."""
