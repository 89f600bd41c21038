"""The inference service: a pure engine core, its devices, its text layer and its HTTP gateway."""
