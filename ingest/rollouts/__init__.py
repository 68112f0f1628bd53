"""Executions: who launches harnesses, what they are given, and how they end.

launching.py, progress.py   pure: the log's events folded to places to launch, and to what is done
dispatching.py              pure: which groups a rollout hands out next
runner.py, executing.py     launches, runs, closes and assesses executions; publishing.py tells the log
harnesses.py                the seam to whatever carries out a task
commanded.py                any command line as a harness: command_line.py, tasks.py
keeper.py                   leaves nothing of a command line behind
rollout.py                  `headrace rollout`: settings.py, display.py, rollout_command.py
serving.py, outside.py      `headrace proxy` and `headrace execution`, for harnesses that somebody else starts
"""
