"""The protocols that harnesses speak, each between its bytes and the neutral form (ingest.proxy.neutral).

dialect.py     what a dialect and a streamed reply are
chat.py        OpenAI Chat Completions
"""
