"""The ledger across machines: replicas account for attempts, whoever sent those joins and adds up.

    ingress                                     replica
    FleetLedger.open ──── the request ────────► Outbox.began
                                                … the engine runs it …
    FleetLedger.receive ◄── Batch ───────────── Outbox.settled   with the answer's last piece
    FleetLedger.ask ─────── Ask ──────────────► Outbox.collect   every now and then
    FleetLedger.receive ◄── Batch ─────────────

Nothing here sends or waits, and any message may be lost, late, doubled or out of order: what an
``Ask`` does not acknowledge is sent again, and a record counts once.
"""
