"""The OpenAPI description of the API, made from the table of endpoints."""

from __future__ import annotations

from typing import Any

from trellis.explore.endpoints import ENDPOINTS, Endpoint
from trellis.explore.fields import REQUIRED, Field

LATER = "map", "classes", "smooth", "infill"  # may have to be asked again
ERRORS = {
    "400": "A field is wrong, or the model has no such answer",
    "401": "The token is missing",
    "403": "The request comes from a page of another site",
    "413": "The body is too large",
    "503": "The model is busy",
}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation(endpoint)
    about = {"title": "Trellis explorer", "version": version or "0", "description": "Questions about trained models."}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"schemas": {"Error": error_schema()}}}


def operation(endpoint: Endpoint) -> dict[str, Any]:
    """One request: its parameters or body, and its responses."""
    found: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "responses": responses(endpoint),
    }
    if endpoint.method == "GET":
        return found | {"parameters": [parameter(endpoint, field) for field in endpoint.fields]}
    required = [field.name for field in endpoint.fields if field.default is REQUIRED]
    body: dict[str, Any] = {"type": "object", "additionalProperties": False}
    body |= {"properties": {field.name: schema(field) for field in endpoint.fields}}
    body |= {"required": required} if required else {}
    return found | {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


def parameter(endpoint: Endpoint, field: Field) -> dict[str, Any]:
    in_path = f"{{{field.name}}}" in endpoint.path
    place = {"in": "path" if in_path else "query", "required": in_path or field.default is REQUIRED}
    return {"name": field.name, **place, "schema": schema(field)}


def schema(field: Field) -> dict[str, Any]:
    """The JSON schema of a field, with its default."""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return field.schema() | ({} if field.default is REQUIRED else {"default": default})


def responses(endpoint: Endpoint) -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    found = {"200": {"description": "The answer", "content": {"application/json": {"schema": {"type": "object"}}}}}
    found |= {"202": {"description": "Not computed yet"}} if endpoint.name in LATER else {}
    return found | {status: {"description": text, **error} for status, text in ERRORS.items()}


def error_schema() -> dict[str, Any]:
    return {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
