"""The capture proxy: unmodified harnesses in front, an engine that speaks tokens behind.

dialects/      one a protocol: its bytes <-> the neutral form
neutral.py     the neutral form: messages, a request, an answer, a rejection
rendering.py   messages -> text -> token ids, by the model's own template and tokenizer
history.py     which recorded turns a request's messages repeat
prompting.py   the two together: sampled ids as they were sampled, only the new is tokenised
parsing.py     sampled text -> content, reasoning, tool calls
execution.py   one execution's state: prompt in, event out
calls.py       one call's life: the engine, retries, those who wait for it
writer.py      events -> log, many calls to a transaction
delivery.py    replies over HTTP: keep-alive, hang-ups
app.py         the paths, keys and limits
"""
