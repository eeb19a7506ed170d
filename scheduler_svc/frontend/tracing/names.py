"""Names of spans, attributes and events: OpenTelemetry's conventions where they have one, else `baton.`

The GenAI conventions are version 0.1 of github.com/open-telemetry/semantic-conventions-genai; their constants in the
package `opentelemetry-semantic-conventions` are deprecated since they moved there, so they are written out here.
"""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
CHOICE_COUNT = "gen_ai.request.choice.count"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
SEED = "gen_ai.request.seed"
PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
STOP_SEQUENCES = "gen_ai.request.stop_sequences"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"  # in seconds
INPUT_TOKENS = "gen_ai.usage.input_tokens"  # with those that were cached
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"  # with those of thoughts
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
THOUGHT_TOKENS = "gen_ai.usage.reasoning.output_tokens"

METHOD = "http.request.method"
STATUS = "http.response.status_code"
ROUTE = "http.route"
PATH = "url.path"
SCHEME = "url.scheme"
REQUEST_ID = "http.response.header.x-request-id"
ERROR_TYPE = "error.type"

CLIENT = "baton.client"
NUM_PROMPTS = "baton.prompts"
COMPUTED_BY = "baton.model"
PROMPT = "baton.prompt"
SEQUENCE = "baton.sequence"
EXECUTOR = "baton.executor.name"
EPOCH = "baton.executor.epoch"
TOKENS = "baton.tokens"
CACHED = "baton.cached_tokens"
CAUSE = "baton.cause"
MARKS_LEFT_OUT = "baton.marks_left_out"

QUEUE_SPAN = "baton.queue"
PREFILL_SPAN = "baton.prefill"
DECODE_SPAN = "baton.decode"
CHUNK_EVENT = "baton.prefill.chunk"

CLIENT_GONE = "client_closed_request"  # error.type of a request whose client hung up
