"""Positions: rotations, tables of distances, and terms that are added to the scores."""
