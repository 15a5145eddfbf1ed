"""What goes over the wire: bodies and event streams, to and from plain records."""
