"""The capture proxy: unmodified harnesses in front, an engine that speaks tokens behind.

app.py         the paths, keys and limits
delivery.py    replies over HTTP: keep-alive, hang-ups
dialects/      one a protocol: its bytes <-> the neutral form
neutral.py     the neutral form: messages, a request, an answer, a rejection
roles.py       which role a call has, by rules (roles.toml)

executions.py  all executions: whose request it is, state made, let go of, and made again
recall.py      what the log holds of an execution, for a proxy that is started again
execution.py   one execution's state: prompt in, event out
history.py     which recorded turns a request's messages repeat
calls.py       one call's life: the engine, retries, those who wait for it
writer.py      events -> log, many calls to a transaction

rendering.py   messages -> text -> token ids, by the model's own template and tokenizer
templating.py, folding.py   what a template is given, and what it can be given
windows.py     whether the new is rendered the same without the long history before it
prompting.py   sampled ids as they were sampled, only the new is tokenised
parsing.py     sampled text -> content, reasoning, tool calls (call_forms.py, tagged_forms.py)
"""
