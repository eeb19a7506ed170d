"""Files and batches in the OpenAPI document."""

from scheduler_svc.frontend.http.openapi_operation import JSON, Json, Operation

BYTES, FORM = "application/octet-stream", "multipart/form-data"
_FILE, _BATCH = "/v1/files/{file_id}", "/v1/batches/{batch_id}"
_TEXT: Json = {"type": "string"}
_FILES_PAGE: dict[str, Json] = {
    "after": _TEXT,
    "limit": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 10_000},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "purpose": _TEXT,
}
_BATCHES_PAGE: dict[str, Json] = {
    "after": _TEXT,
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
}
UPLOAD: Json = {
    "description": "POST /v1/files.",
    "type": "object",
    "properties": {
        "file": {"type": "string", "contentMediaType": BYTES},
        "purpose": {"enum": ["batch"]},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
    },
    "required": ["file", "purpose"],
}
BATCH_OPERATIONS = (
    Operation("post", "/v1/files", "Keep a file.", "Upload", {JSON: "FileObject"}, body_type=FORM),
    Operation("get", "/v1/files", "The files of a key.", answers={JSON: "FileList"}, query=_FILES_PAGE),
    Operation("get", _FILE, "A file, without its content.", answers={JSON: "FileObject"}),
    Operation("delete", _FILE, "Forget a file.", answers={JSON: "DeletedFile"}),
    Operation("get", f"{_FILE}/content", "A file's bytes.", answers={BYTES: ""}),
    Operation("post", "/v1/batches", "Answer the requests of a file.", "BatchRequest", {JSON: "Batch"}),
    Operation("get", "/v1/batches", "The batches of a key.", answers={JSON: "BatchList"}, query=_BATCHES_PAGE),
    Operation("get", _BATCH, "A batch.", answers={JSON: "Batch"}),
    Operation("post", f"{_BATCH}/cancel", "End a batch.", answers={JSON: "Batch"}),
)
