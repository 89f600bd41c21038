"""The front end of an attached engine: the process that has the HTTP requests.

request      what is observed of one request, and how it ended
front        which requests are live, and the facts about them
vllm_front   puts the middleware before vLLM's application, and opens the way to the sidecar
vllm_hooks   the hooks in vLLM's classes
vllm_read    reads vLLM's objects

The middleware itself is `service.attach.inside.middleware`, a name that is given to servers.
"""
