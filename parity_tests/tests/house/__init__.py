"""The project itself: layout, generated files, documentation, benchmarks."""
