"""The viewer: one run of a layer as a page that shows every array and writes every number as the sum it is."""
