"""Every message that crosses a socket, one tagged union for each direction.

Arrays travel as `bytes` in little-endian order: int32 unless a field says otherwise. Structs are encoded as
msgpack arrays, `[tag, field, ...]`, in the order written here, so **appending or reordering a field changes the
protocol**: raise `PROTOCOL_VERSION` with it. Types and ranges are checked while decoding (msgspec); what one
field says about another is checked in `common.plan`.
"""

# A new message goes into one of these files and into its direction's union there; nothing is listed again here.
from common.messages.base import *  # noqa: F403
from common.messages.executors import *  # noqa: F403
from common.messages.frontends import *  # noqa: F403
from common.messages.keeper import *  # noqa: F403
from common.messages.kept import *  # noqa: F403
from common.messages.live import *  # noqa: F403
from common.messages.status import *  # noqa: F403
from common.messages.steps import *  # noqa: F403
