"""The description of the API for programs. Knows what lrurec.serving.http offers."""

from typing import Any

import msgspec

import lrurec
from lrurec.serving import bodies
from lrurec.serving.store.base import LONGEST_ID

_K = {"type": "integer", "minimum": 1, "maximum": bodies.MOST_RESULTS}
_BOOL = {"type": "boolean"}
_TEXT = {"type": "string"}
_LIST = {"type": "array", "items": _TEXT, "maxItems": bodies.MOST_IN_ADDRESS}
_ID = {"type": "string", "minLength": 1, "maxLength": LONGEST_ID}
_EITHER = {"type": ["string", "integer"]}
_LINE = {
    "type": "object",
    "required": ["item", "name", "score"],
    "properties": {
        "item": {"type": ["string", "integer"]},
        "name": {"type": ["string", "null"]},
        "score": {"type": "number"},
    },
}
_LINES = {"type": "array", "items": _LINE}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required | (optional or {})}


def _parameter(
    name: str, schema: dict[str, Any], where: str = "query", text: str = "", example: str | None = None
) -> dict[str, Any]:
    found = {"name": name, "in": where, "required": where == "path", "schema": schema}
    found |= {"example": example} if example else {}
    return found | ({"description": text} if text else {})


def _json(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _operation(
    summary: str,
    answer: dict[str, Any],
    *,
    role: str | None,
    parameters: list[dict[str, Any]] | None = None,
    body: list[str] | None = None,
    example: dict[str, Any] | None = None,
    errors: tuple[int, ...] = (),
) -> dict[str, Any]:
    said = {
        400: "a bad request",
        401: "a key is needed",
        403: "the key is not good for this, or the request is not for this host",
        404: "an unknown item, which is named, or a stranger",
        408: "the body took too long",
        413: "the body is too large",
        415: "the body must be application/json",
        503: "too many requests, or the store is away; try again after Retry-After seconds",
    }
    codes = {400, 403, 503, *errors} | ({401} if role else set()) | ({408, 413, 415} if body else set())
    error = {"$ref": "#/components/schemas/Error"}
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": _json(answer, "done")} | {str(c): _json(error, said[c]) for c in sorted(codes)},
    }
    if role:
        found["security"] = [{"key": []}]
        found["description"] = f"Needs a key with the role `{role}`, where the server has keys."
    if parameters:
        found["parameters"] = parameters
    if body:
        options = [{"$ref": f"#/components/schemas/{name}"} for name in body]
        found["requestBody"] = {
            "required": True,
            "content": {
                "application/json": {"schema": options[0] if len(options) == 1 else {"anyOf": options}}
                | ({"example": example} if example else {})
            },
        }
    return found


def description(example: str = "tea") -> dict[str, Any]:
    """OpenAPI 3.1; `example` is an item that there is."""
    _, schemas = msgspec.json.schema_components(bodies.SCHEMAS, ref_template="#/components/schemas/{name}")
    user, item = _parameter("id", _ID, "path", example="ann"), _parameter("id", _ID, "path", example=example)
    filters = [
        _parameter("k", _K),
        _parameter("filter_seen", _BOOL),
        _parameter("allow", _LIST, text="only these items; repeated, or separated by commas"),
        _parameter("deny", _LIST, text="none of these items"),
    ]
    events = {
        "type": "array",
        "items": _object({"item": _EITHER, "name": {"type": ["string", "null"]}, "time": {"type": "number"}}),
    }
    numbers = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    recommended = {"known": _BOOL, "recommendations": _LINES, "micros": _COUNT}
    plain = {"200": {"description": "text"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lrurec",
            "version": lrurec.__version__,
            "description": "Next-item recommendations that follow every event.",
        },
        "components": {
            "schemas": schemas | {"Error": _object({"error": _TEXT})},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "paths": {
            "/v1/events": {
                "post": _operation(
                    "Store events; they are on disk when the answer comes",
                    _object(
                        {"stored": _COUNT, "users": {"type": "object"}, "micros": _COUNT}, {"recommendations": _LINES}
                    ),
                    role="write",
                    parameters=[
                        _parameter(
                            "recommend", _K, text="also give so many recommendations to the user of the last event"
                        )
                    ],
                    body=["NewEvent", "NewEvents"],
                    example={"user": "ann", "item": example, "id": "order-17-line-2"},
                    errors=(404,),
                )
            },
            "/v1/users/{id}/recommendations": {
                "get": _operation(
                    "What to show a user next",
                    _object({"user": _TEXT} | recommended),
                    role="read",
                    parameters=[user, *filters],
                    errors=(404,),
                )
            },
            "/v1/recommendations": {
                "post": _operation(
                    "The same for a history in the body; nothing is stored",
                    _object(recommended),
                    role="read",
                    body=["Wish"],
                    example={"history": [example], "k": 5},
                    errors=(404,),
                )
            },
            "/v1/users/{id}": {
                "get": _operation(
                    "What is known of a user",
                    _object({"user": _TEXT, "length": _COUNT, "events": events}, {"state": numbers}),
                    role="read",
                    parameters=[
                        user,
                        _parameter("last", {"type": "integer", "minimum": 0, "maximum": bodies.MOST_ITEMS}),
                        _parameter("state", _BOOL),
                    ],
                    errors=(404,),
                ),
                "delete": _operation(
                    "Erase a user",
                    _object({"user": _TEXT, "forgotten": _BOOL}),
                    role="write",
                    parameters=[user],
                ),
            },
            "/v1/items": {
                "get": _operation(
                    "Items by a part of their title or id; without it, the popular ones",
                    _object(
                        {
                            "items": {
                                "type": "array",
                                "items": _object(
                                    {"item": {"type": ["string", "integer"]}, "name": {"type": ["string", "null"]}}
                                ),
                            }
                        }
                    ),
                    role="read",
                    parameters=[_parameter("search", {"type": "string", "maxLength": 200}), _parameter("limit", _K)],
                )
            },
            "/v1/items/{id}/similar": {
                "get": _operation(
                    "Items whose vectors point the same way",
                    _object({"item": _EITHER, "similar": _LINES}),
                    role="read",
                    parameters=[item, _parameter("k", _K)],
                    errors=(404,),
                )
            },
            "/v1/model": {
                "get": _operation(
                    "What is being served",
                    _object(
                        {
                            "artifact": _TEXT,
                            "items": _COUNT,
                            "names": _BOOL,
                            "index": _TEXT,
                            "memory": _BOOL,
                            "learns": _BOOL,
                            "learned": _COUNT,
                            "decay": numbers,
                        }
                    ),
                    role="read",
                )
            },
            "/v1/artifact": {
                "post": _operation(
                    "Go over to another artifact; no request fails meanwhile",
                    _object({"artifact": _TEXT, "items": _COUNT, "workers": _COUNT}),
                    role="admin",
                    body=["NewArtifact"],
                )
            },
            "/healthz": {"get": {"summary": "The process lives", "responses": plain}},
            "/readyz": {
                "get": {
                    "summary": "Artifact and store can be used",
                    "responses": plain | {"503": {"description": "not now"}},
                }
            },
            "/metrics": {
                "get": {
                    "summary": "For Prometheus",
                    "security": [{"key": []}],
                    "responses": plain
                    | {"401": {"description": "a key is needed"}, "403": {"description": "not with this key"}},
                }
            },
        },
    }
