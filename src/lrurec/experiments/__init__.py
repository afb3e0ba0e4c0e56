"""The paper's tables again: cells that are trained one by one, and the published numbers beside ours."""
