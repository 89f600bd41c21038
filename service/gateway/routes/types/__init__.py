"""What routes take and give, as types: the reference of the HTTP API is written from them."""
