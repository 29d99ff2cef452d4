"""What the verbs print: lines, tables, pages and JSON of one report."""
