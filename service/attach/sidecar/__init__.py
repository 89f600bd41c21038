"""The receiving end of `service.attach.wire`: connections, and the join of their facts."""
