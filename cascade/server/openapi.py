"""The OpenAPI document of the server: `GET /openapi.json`."""

from __future__ import annotations

from typing import Any

from cascade._names import __version__
from cascade.server.catalog import Catalog


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, some of them required."""
    return {"type": "object", "required": list(required), "properties": properties}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}
_OBJECT, _OBJECT_OR_NULL = {"type": "object"}, {"type": ["object", "null"]}
_OBJECTS = {"type": "array", "items": _OBJECT}
_SAID = {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL}
_ERROR = _object("error", error=_object(*_SAID, **_SAID))
_CLAUDE_ERROR = _object(
    *("type", "error"),
    type={"const": "error"},
    error={"type": "object", "required": ["type", "message"]},
    request_id=_TEXT,
)
_MODEL_FIELDS = {"id": _TEXT, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": _TEXT}
_MODEL = _object(*_MODEL_FIELDS, **_MODEL_FIELDS)
_HEADERS = {
    "x-cascade-bypass": "1: the guide answers at once.",
    "x-cascade-deadline-s": "The number of seconds after which the best answer so far is served.",
    "x-cascade-explain": "1: the response has a field `cascade` that explains the answer.",
    "x-cascade-group": "The group of the request: its conversation or its user.",
    "x-cascade-segment": "The segment, which has a certificate of its own: a tenant, a task.",
}
_REFUSED = {
    400: "The request is malformed, or a provider refused it.",
    401: "The key is missing or wrong.",
    403: "The key lacks a scope; or the server has no keys, and the host is not this machine.",
    404: "There is no such model.",
    408: "The request did not arrive in time.",
    409: "Traces are off, or no look was taken.",
    413: "The request is too large.",
    415: "The request is not JSON.",
    422: "The call alone could cost more than a cap, or no answer is sure enough to be served.",
    429: "A provider limits the rate, the budget is spent, or too many wrong keys came from this address.",
    502: "A provider sent something other than a completion, or refused the server's key.",
    503: "A provider cannot be reached, or too many requests are under way.",
    504: "A provider, or the whole request, took too long.",
}


def document(catalog: Catalog, *, modes: bool = False) -> dict[str, Any]:
    """Return the document, with the models that can be named.

    Args:
        catalog: the models.
        modes: whether the cascade has modes, and so the paths to show and change them.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "cascade", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": _answered(catalog, "messages", "choices")},
            "/v1/responses": {"post": _answered(catalog, "input", "output")},
            "/v1/messages": {"post": _answered(catalog, "messages", "content", error="ClaudeError")},
            "/v1/feedback": {"post": _FEEDBACK},
            "/v1/models": {"get": _get("All models.", {"type": "object"}, _refused(401, 403, 429))},
            "/v1/models/{name}": {"get": _get("One model.", _MODEL, _refused(401, 403, 404, 429), "name")},
            **(_cascades(catalog.name) if modes else {}),
            "/healthz": {"get": _get("The process is alive.", {"type": "object"}, {})},
            "/readyz": {"get": _get("Requests are served.", {"type": "object"}, {"503": {"description": "Stopping."}})},
            "/metrics": {"get": _get("Counts, as Prometheus reads them.", None, _refused(401, 403, 429))},
        },
        "components": {
            "schemas": {"Error": _ERROR, "ClaudeError": _CLAUDE_ERROR, "Model": _MODEL},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"key": []}, {"x-api-key": []}, {}],
    }


_ASKS: dict[str, dict[str, Any]] = {
    "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"]}},
    "input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
}


def _answered(catalog: Catalog, asks: str, answers: str, error: str = "Error") -> dict[str, Any]:
    fields = {"model": {"enum": list(catalog.routes)}, asks: _ASKS[asks]}
    more = {"stream": {"type": ["boolean", "null"]}, "stream_options": _OBJECT_OR_NULL}
    request = {**_object("model", asks, **fields, **more), "additionalProperties": True}
    return {
        "summary": "Answer a request. All other fields go to the models unchanged.",
        "parameters": [
            {"name": name, "in": "header", "description": says, "schema": {"type": "string"}}
            for name, says in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {
            "200": {
                "description": "The message that is served, whole or as chunks.",
                "content": {
                    **_json({"type": "object", "required": ["id", answers, "model"]}),
                    "text/event-stream": {"schema": {"description": "Events, each with JSON as its data."}},
                },
            },
            **_refused(*_REFUSED, error=error),
        },
    }


def _get(
    summary: str, schema: dict[str, Any] | None, refused: dict[str, Any], path: str | None = None
) -> dict[str, Any]:
    kind = "text/plain" if schema is None else "application/json"
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {kind: {"schema": schema or {"type": "string"}}}},
            **refused,
        },
    }
    if path is not None:
        found["parameters"] = [{"name": path, "in": "path", "required": True, "schema": {"type": "string"}}]
    return found


def _refused(*statuses: int, error: str = "Error") -> dict[str, Any]:
    content = _json({"$ref": f"#/components/schemas/{error}"})
    return {str(status): {"description": _REFUSED[status], "content": content} for status in statuses}


_FEEDBACK = {
    "summary": "Send feedback on an answer.",
    "requestBody": {
        "required": True,
        "content": _json(
            _object(
                "trace_id",
                trace_id={"type": "string", "minLength": 1, "maxLength": 100},
                right={"type": ["boolean", "null"]},
                score={"type": ["number", "null"], "minimum": 0, "maximum": 1},
                better=_TEXT_OR_NULL,
            )
        ),
    },
    "responses": {
        "200": {"description": "It is kept.", "content": _json(_OBJECT)},
        **_refused(400, 401, 403, 404, 408, 409, 413, 415, 429, 503),
    },
}


def _cascades(name: str) -> dict[str, Any]:
    """Return the paths that show and change the cascade's modes."""
    why = {"why": {"type": "string", "maxLength": 500}}
    mode, switch = {"mode": {"enum": ["observe", "enforce", "fallback"]}}, {"on": {"type": "boolean"}}
    listed = _object("object", "data", object={"const": "list"}, data={"type": "array", "items": _CASCADE})
    shown = "The cascade: mode, certificate, audits, looks, what the next look takes, who changed what."
    looked = "Take a look, and promote if a certificate holds and money is saved."
    moded = "Set the mode."
    killed = "Let the guide answer everything, or end that."
    return {
        "/v1/cascades": {"get": _get(shown, listed, _refused(401, 403, 429, 503))},
        "/v1/cascades/{name}/promote": {"post": _change(looked, {}, [], _PROMOTED, name)},
        "/v1/cascades/{name}/mode": {"post": _change(moded, mode | why, ["mode"], _CASCADE, name)},
        "/v1/cascades/{name}/kill": {"post": _change(killed, switch | why, ["on"], _CASCADE, name)},
    }


_CASCADE = _object(
    *("name", "mode", "killed", "certificate", "monitor", "rows", "looks", "plan", "changes"),
    name=_TEXT,
    mode={"enum": ["observe", "enforce", "fallback"]},
    killed={"type": "boolean"},
    promote={"enum": ["manual", "automatic"]},
    alarm=_TEXT_OR_NULL,
    certificate=_OBJECT_OR_NULL,
    monitor=_OBJECT_OR_NULL,
    rows=_OBJECT,
    plan=_OBJECT,
    looks=_OBJECTS,
    changes=_OBJECTS,
)
_PROMOTED = _object("promotion", "cascade", promotion=_OBJECT, cascade=_CASCADE)


def _change(
    summary: str, fields: dict[str, Any], required: list[str], answer: dict[str, Any], name: str
) -> dict[str, Any]:
    return {
        "summary": f"{summary} Needs a key with the scope admin.",
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"enum": [name]}}],
        "requestBody": {"required": True, "content": _json(_object(*required, **fields))},
        "responses": {
            "200": {"description": "The state after it.", "content": _json(answer)},
            **_refused(400, 401, 403, 404, 408, 409, 413, 415, 429, 503),
        },
    }
