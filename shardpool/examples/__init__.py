"""Apps to run and to read: `shardpool serve shardpool.examples.arena:app --bind ws://127.0.0.1:7001`."""
