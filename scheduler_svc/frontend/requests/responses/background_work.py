"""What the background worker needs to run a response, as the store keeps it."""

from typing import Self

import msgspec
from msgspec.structs import replace

from common import messages as m
from common.errors import BatonError
from scheduler_svc.frontend.answers.responses.events import ResponseSpec
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.requests.tokenized_request import charged, core_request_id


class BackgroundWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A response that waits for the worker, or is with it.

    Attributes:
        version: of this struct. Work of another version cannot be done.
        submit: with the context of its answer, and without an address, which is not stored.
    """

    version: int
    spec: ResponseSpec
    submit: m.Submit

    def encode(self) -> bytes:
        """The bytes for the store, without the head."""
        return _encoder.encode(replace(self, spec=self.spec.with_head(b"")))

    def sent_for(self, client: ApiClient) -> Self:
        """Return the work with its request as this client sends it now: its limits may have changed since, and earlier
        releases called clients by their names."""
        submit = replace(
            self.submit,
            request_id=core_request_id(client.id, self.spec.response_id, 0),
            client=client.id,
            client_name=client.name,
            client_limit=client.max_open_requests,
            weight=client.weight,
        )
        return replace(self, submit=charged([submit], client)[0])

    @classmethod
    def decode(cls, data: bytes) -> "BackgroundWork":
        """The reverse. Raises BatonError for what another version of Baton wrote."""
        try:
            work = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise BatonError(
                f"this version of Baton cannot go on with work that another one stored: {error}"
            ) from error
        if work.version != WORK_VERSION:
            raise BatonError(f"stored work has version {work.version}, this version of Baton does {WORK_VERSION}")
        return work


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BackgroundWork)
WORK_VERSION = 1
