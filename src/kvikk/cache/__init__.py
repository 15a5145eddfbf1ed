"""The KV cache as bookkeeping: pools, block tables, keys, the prefix index, eviction. No tensor passes through."""
