"""Fields, bodies and routes that other clients and routers count on."""
