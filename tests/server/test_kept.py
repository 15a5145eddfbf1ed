"""What is kept for later requests is bounded, and each tenant's own."""

from kvikk.server import kept
from kvikk.server.kept import Kept, KeptRequests
from kvikk.wire.fingerprint import Fingerprint


def entry(num_bytes: int) -> Kept:
    return Kept(Fingerprint("m", {}, {}, b""), b"x" * num_bytes, b"")


def test_the_oldest_of_a_tenant_make_room_and_nobody_elses() -> None:
    requests = KeptRequests(num_tenants=2)
    share = kept.KEPT_BYTES // 2
    requests.put("ada", "first", entry(1000))
    for number in range(8):
        requests.put("bob", f"b{number}", entry(share // 5))
    assert requests.find("ada", "first") is not None
    found = [number for number in range(8) if requests.find("bob", f"b{number}") is not None]
    assert found == [4, 5, 6, 7]
    assert requests.find("bob", "first") is None
    requests.put("bob", "huge", entry(share + 1))
    assert requests.find("bob", "huge") is None
    assert requests.find("bob", "b7") is not None


def test_what_is_used_stays_and_what_is_removed_is_gone() -> None:
    requests = KeptRequests(num_tenants=1)
    for name in ("a", "b"):
        requests.put("t", name, entry(kept.KEPT_BYTES // 5 * 2))
    assert requests.find("t", "a") is not None
    requests.put("t", "c", entry(kept.KEPT_BYTES // 5 * 2))
    assert [requests.find("t", name) is not None for name in "abc"] == [True, False, True]
    assert requests.remove("t", "a") is not None
    assert requests.remove("t", "a") is None
    assert requests.remove("nobody", "a") is None
