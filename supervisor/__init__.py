"""Processes, recovery, configuration, command line, status."""
