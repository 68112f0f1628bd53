"""Courier: the built-in task, which a tiny model learns to do in minutes, and everything it needs.

task.py            tasks by seed, the workspace, its tools, six checks, the score
chat.py            the messages of OpenAI Chat Completions that the harness sends and receives
accidents.py       what goes wrong on purpose: hang-ups, time limits, crashed evaluators
harness.py         one execution: an ordinary HTTP client that could be anybody's
tokenizer.py       388 words and the chat template, as Hugging Face files
demonstrations.py  executions of a clumsy agent, for the supervised warm-up

python -m ingest.courier --help
"""
