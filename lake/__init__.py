"""The log, the tables and the SQL that runs over them.  Imports nothing else of ours."""
