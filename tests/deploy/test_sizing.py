"""Sizes that docs/sizing.md promises, and those of the manifests."""

import re

import pytest

from tests.deploy.manifests import ALL, ROOT, of_kind, options

GIB, MIB = 2**30, 2**20
PAGE = (ROOT / "docs" / "sizing.md").read_text()
BESIDE_STORE = 4 * GIB  # for the journal, and for what the store's file has beyond what counts


def claimed(manifest):
    """Bytes of the scheduler's own volume."""
    (claim,) = manifest["spec"]["volumeClaimTemplates"]
    return int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * GIB


@pytest.mark.parametrize("overlay", ALL)
def test_a_schedulers_claim_holds_what_its_keys_may_store(overlay):
    (promised,) = re.findall(
        r"the scheduler's claim is (\d+) GiB and its\s+`--store-limit` (\d+), which is enough for (\d+) keys", PAGE
    )
    gib, limit, num_keys = map(int, promised)
    schedulers = [one for one in of_kind(overlay, "StatefulSet") if "baton-scheduler" in one["metadata"]["name"]]
    assert schedulers
    for scheduler in schedulers:
        assert (claimed(scheduler), int(options(scheduler)["--store-limit"])) == (gib * GIB, limit)
    assert num_keys == (gib * GIB - BESIDE_STORE) // (limit * MIB)


def test_the_journal_has_room_until_somebody_has_seen_the_alert():
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
    (told_at,) = re.findall(r"baton_journal_bytes\{[^}]*\} > (\S+)", alerts)
    assert 1.5 * float(told_at) < BESIDE_STORE - 256 * MIB
