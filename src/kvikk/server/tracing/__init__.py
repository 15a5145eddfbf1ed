"""A request as spans of a distributed trace, for OpenTelemetry collectors. Off unless asked for."""
