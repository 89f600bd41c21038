"""The ASGI application: all routes, and their OpenAPI document.

- `app`: routes, request ids, and errors in OpenAI's shape.
- `app_frame`: what is around the routes of any server: request ids, CORS, errors.
- `attached_app`, `fleet_app`: the applications of a sidecar and of a fleet gateway.
- `view_routes`, `view_table`: routes of any server: health, metrics, debug views.
- `ops`, `profile_route`, `recorder_routes`, `limits_route`, `adapter_routes`: models, records and
  controls.
- `followed_routes`: routes that a screen asks again and again. `token_routes`: tokenizing.
- `peer_routes`: what routers and clients of other servers ask a worker for.
- `openapi`, `route_table`, `types`: `GET /openapi.json`.
"""
