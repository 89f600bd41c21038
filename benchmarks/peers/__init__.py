"""phasescope beside vLLM, OpenVINO GenAI, llama.cpp and transformers: same model, same requests.

Peers live in environments of their own, outside the project's. Servers are measured in turns
within each repetition, because a machine drifts more between minutes than they differ.
"""
