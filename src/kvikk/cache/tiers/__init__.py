"""Slower places for blocks: host memory, disk, a store that engines share.

``tier`` is the seam, ``stored_block`` what a block looks like at rest, ``lower`` all the tiers of
one engine together. Nothing here knows of pools, sequences or schedules, and no method raises for
what a tier does: a block that cannot be had is a miss.
"""
