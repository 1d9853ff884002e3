"""A multi-core runtime for stateful session servers."""
