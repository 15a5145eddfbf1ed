"""Requests as they are made: a proxy in front of a provider, a transport inside of a program."""

from kvikk.audit.capture.transport import Transport

__all__ = ["Transport"]
