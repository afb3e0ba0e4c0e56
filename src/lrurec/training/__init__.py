"""One loop for every model, and runs that can be stopped and continued."""
