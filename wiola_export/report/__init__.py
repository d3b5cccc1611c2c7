"""A result as numbers first (JSON), then as prose that says nothing more (Markdown)."""
