"""The truth the other backends are tested against: numpy, float32, readable as a textbook."""
