"""Pictures of a report: SVG for a page, drawn in the colours that its style sheet names."""
