"""For implementations of your own: adapters, assertions, and traces that go from one machine to another."""
