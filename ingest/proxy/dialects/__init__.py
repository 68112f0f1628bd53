"""The protocols that harnesses speak, each between its bytes and the neutral form (ingest.proxy.neutral).

dialect.py         what a dialect and a streamed reply are
chat.py            OpenAI Chat Completions
responses*.py      OpenAI Responses: bodies; items to messages and back; tools; the stream
anthropic*.py      Anthropic Messages
common.py          what the OpenAI dialects share
surrogates.py      JSON text that JavaScript clients cut inside a character
"""
