"""What goes over the wire: request and response bodies and event streams, to and from plain records."""
