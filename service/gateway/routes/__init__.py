"""The ASGI application: all routes, and their OpenAPI document.

- `app`: routes, request ids, and errors in OpenAI's shape.
- `ops`, `profile_route`, `recorder_routes`, `limits_route`: health, models, metrics, debug views
  and controls.
- `openapi`, `route_table`, `response_types`, `query_types`: `GET /openapi.json`.
"""
