"""The fold over the log, the policies and the processes of a run."""
