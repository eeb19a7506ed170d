"""What runs on a borrowed GPU machine (tools/gpu_session.sh): tests by file, benchmarks, a swap; and its rehearsal."""
