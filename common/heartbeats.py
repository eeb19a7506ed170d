"""When the two ends of a link give each other up. Both ends use the same numbers."""

HEARTBEAT_INTERVAL_S = 0.4
"""Each end sends a heartbeat this often, whatever else it sends."""
LOSS_TIMEOUT_S = 1.8
"""An end that has heard nothing for so long takes the other one for lost: four heartbeats were missed."""
