"""The router's way in and out: connections, a request's life, replicas, limits.

It knows HTTP and load; what a replica holds and who is best for a prompt it asks a placement.
"""
