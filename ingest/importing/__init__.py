"""Raw calls recorded elsewhere into a lake: `headrace import calls`.

command    the command line            run      one import, from files to its summary
rows       what a row may be           lines, parquet, kernels      files to rows
coding     rows to delta-coded calls   spool    where they wait, on disk
writing    whole groups to the lake    refused  rows that could not be, to the dead letters
"""
