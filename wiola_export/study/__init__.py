"""Export one checkpoint in many ways, and show which of them no other beats."""
