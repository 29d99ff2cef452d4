"""One test per fault of `design/faults.md`, carrying its number."""
