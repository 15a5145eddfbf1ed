"""Requests, scheduler, steps: tokens in, tokens out."""
