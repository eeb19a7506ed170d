"""OpenTelemetry spans of requests. Only `otel.py` imports OpenTelemetry, and only where traces are asked for."""
