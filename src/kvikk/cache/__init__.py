"""The KV cache as bookkeeping: pools, block tables, keys, the prefix index, eviction.

No tensor passes through, and no token but to be hashed. Read ``keys``, ``pool``, ``prefix``,
``state``, ``keeping``, ``opening``, ``manager``, in this order.
"""
