"""One command per file; what is heavy is imported when the command runs."""
