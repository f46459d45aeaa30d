"""What compiles, differentiates, batches, shards and exports, in each framework."""
