"""What runs of batches share."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.background.line_gate import LineGate
from scheduler_svc.frontend.background.patient_store import PatientStore
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.batches.line_endpoints import LineEndpoint
from scheduler_svc.frontend.requests.reader import RequestReader

RETRY_S = 0.5


@dataclass(frozen=True)
class BatchTools:
    """How batches are run.

    Attributes:
        endpoints: make lines ready, by the endpoint of their batch.
        keys: say who may still send requests.
        limit_bytes: that each owner may have in the store; 0 for no limit.
        flush_s: how long a result waits at most until it is written, with those that come meanwhile.
        retry_s: seconds after what passes.
        look_s: between two looks at the core, for how many lines there is room.
        rescan_s: between two looks at the store, for what a frontend could not tell.
    """

    link: CoreLink
    reader: RequestReader
    endpoints: Mapping[str, LineEndpoint]
    store: PatientStore
    gate: LineGate
    keys: ApiKeys
    limit_bytes: int
    flush_s: float = 0.2
    retry_s: float = RETRY_S
    look_s: float = 0.25
    rescan_s: float = 15.0
