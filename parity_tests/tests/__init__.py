"""The tests, in rooms by what they test; what they share stands here."""
