"""What an acceptor and a shard process are."""
