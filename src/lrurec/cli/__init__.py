"""The command line: one file per command. Knows arguments and words, not how anything is done."""
